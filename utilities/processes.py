"""
The processes that compute one run together. torchrun or start() below starts them; torch.distributed connects them.

All execute the same program; only process 0 writes, prints, and does the work that is needed once. If one ends early,
the program that has started them ends the others; if that program ends, they end by themselves. Nothing that they
exchange is unpickled.
"""
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from utilities import stopping
from utilities.errors import Ended, RunFailed, UserError, explained

TIMEOUT = timedelta(minutes=30)          # limit of a collective operation in a step
CONNECTING = timedelta(minutes=10)       # limit from the first process that connects to the last one
UNLIMITED = timedelta(days=365)          # limit of waiting for the work of process 0
HERE = '127.0.0.1'                       # the address of this machine that no other machine reaches
store = None                             # the store that all processes share
is_alone = False                         # whether this process is in the block of alone()
group_without_limit = None               # the gloo group of all processes whose limit is UNLIMITED


def connected():
    """Whether this process is one of several that compute one run."""
    return not is_alone and dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def alone():
    """In the block, which one process enters, it computes as if it were the only one; the others wait for it later."""
    global is_alone
    is_alone = True
    try:
        yield
    finally:
        is_alone = False


def rank():
    """The number of this process in the run, from 0."""
    return dist.get_rank() if connected() else 0


def count():
    """The number of processes that compute the run."""
    return dist.get_world_size() if connected() else 1


def is_main():
    """Whether this is the process that writes, prints and computes the loss: number 0."""
    return rank() == 0


def local_rank():
    """The number of this process on its machine, from 0."""
    return int(os.environ.get('LOCAL_RANK', 0)) if connected() else 0


def local_count():
    """The number of processes of the run on this machine."""
    return int(os.environ.get('LOCAL_WORLD_SIZE', count())) if connected() else 1


def run_on_rank_zero(work, *arguments):
    """
    Calls work(*arguments) in process 0 and returns its result in all processes, which wait for it. The others get it as
    JSON: a tuple or an array becomes a list, and a path a text. All processes must call this function equally often.
    """
    if not connected():
        return work(*arguments)
    result = work(*arguments) if is_main() else None
    content = json.dumps(result, default=lambda value: value.tolist() if hasattr(value, 'tolist') else os.fspath(value))
    content = torch.frombuffer(bytearray(content.encode()), dtype=torch.uint8)
    length = torch.tensor([len(content)])
    dist.broadcast(length, src=0, group=group_without_limit)
    content = content if is_main() else torch.zeros(int(length), dtype=torch.uint8)
    dist.broadcast(content, src=0, group=group_without_limit)
    return result if is_main() else json.loads(content.numpy().tobytes())


def rank_zero_only(function):
    """The decorated function does nothing, and returns None at once, in all processes except process 0."""
    @functools.wraps(function)
    def limited(*arguments, **options):
        return function(*arguments, **options) if is_main() else None
    return limited


def one_first(work):
    """Calls work(), which may download or cache files, in one process of each machine first, then in the others."""
    result = work() if local_rank() == 0 else None
    if connected():
        dist.barrier(group=group_without_limit)
    return result if local_rank() == 0 else work()


@contextlib.contextmanager
def together():
    """
    In the block, this process is connected with the others of its run, if there are any, and only process 0 prints.

    If exceptions end several processes, only the first raises its own, so that one is printed; the others raise Ended.
    """
    if int(os.environ.get('WORLD_SIZE') or 1) == 1:
        yield
        return
    stopping.end_with_parent()
    connect()
    try:
        with silent_unless_main(), ending_together(), explained():
            yield
            dist.barrier(group=group_without_limit)          # process 0 may still be writing
    except Exception as error:
        if not is_first_to_fail():
            code = 2 if isinstance(error, UserError) else 1
            raise Ended(code) from None
        if isinstance(error, (UserError, RunFailed)):
            raise
        traceback.print_exc()
        raise Ended(1) from None
    dist.destroy_process_group()


def is_first_to_fail():
    """Notes that this process has failed, and returns whether none did before, as far as this can be asked."""
    try:
        return store.compare_set('first to fail', '', str(rank())) == str(rank()).encode()
    except RuntimeError:                                     # process 0, which may hold the store, was killed
        return True


def connect():
    """Raises UserError or RunFailed where the processes cannot be connected."""
    global group_without_limit, store
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)                # Python calls no handler while this process waits below
    try:
        base, number, n = next(dist.rendezvous('env://', timeout=CONNECTING))      # may keep old entries
        store = dist.PrefixStore(os.environ.get('TORCHELASTIC_RESTART_COUNT', '0'), base)
        os.environ.setdefault('TORCH_DIST_INIT_BARRIER', '1')      # none goes on, and may end, while another connects
        dist.init_process_group(backends(), timeout=TIMEOUT, store=store, rank=number, world_size=n)
        group_without_limit = dist.new_group(backend='gloo', timeout=UNLIMITED)
    except (KeyError, ValueError) as error:
        raise UserError(f'WORLD_SIZE is {os.environ["WORLD_SIZE"]}, but the other variables of torchrun are not set '
                        f'({error}); start the processes by torchrun') from None
    except (RuntimeError, OSError) as error:
        raise RunFailed(f'The processes of the run cannot be connected: {str(error).splitlines()[0]}') from None
    stopping.install()


def n_cores():
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def accelerator():
    """
    The type of the GPUs that --device cuda means: 'cuda', or the type of the accelerator for which this torch was built
    or extended. None if there is no such GPU; an Apple GPU, which --device mps means, does not count.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type == 'mps' else found.type


def backends():
    """What sends the tensors of each type of device: gloo those of the CPU; NCCL those of an NVIDIA GPU."""
    gpu = accelerator()
    return f'cpu:gloo,{gpu}:{dist.get_default_backend_for_device(gpu)}' if gpu else 'gloo'


@contextlib.contextmanager
def silent_unless_main():
    """In the block, the standard output and errors of all processes except process 0 are discarded."""
    if is_main():
        yield
        return
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def ending_together():
    """In the block, a lost connection raises RunFailed, or after a request to stop KeyboardInterrupt."""
    try:
        yield
    except Exception as error:
        if not connected():
            raise
        if not isinstance(error, dist.DistError) and 'gloo' not in str(error):
            is_first_to_fail()          # noted before the run folder is removed, which makes the others fail, too
            raise
        stopping.sleep(1)                        # the launcher stops this process when another has ended
        raise RunFailed('Another process of the run was killed or cannot be reached any more.') from None


def leave(code):
    """Ends this process. One of several that have failed does not clean up, which could wait for the others."""
    if code and connected():
        for worker in multiprocessing.active_children():     # data workers hold connections of this process open
            worker.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def start(n, command, environment):
    """
    Starts n processes of `command` on this machine, divides the cores among them, and waits until they have ended.

    environment: variables of the processes in addition to this process's environment.

    Returns the exit code of the run. Raises RunFailed if processes were killed and no other process has reported it,
    and KeyboardInterrupt if a stop is requested.
    """
    from torch.distributed.elastic import multiprocessing as elastic  # needed in this process only
    logging.disable()                                        # the processes themselves say why they end
    os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'] = ''        # none: stopping.py handles them
    base = local_store()
    loopback = 'lo0' if sys.platform == 'darwin' else 'lo'
    defaults = {'GLOO_SOCKET_IFNAME': loopback, 'NCCL_SOCKET_IFNAME': loopback}
    common = defaults | {'OMP_NUM_THREADS': str(max(1, n_cores() // n))} | os.environ | environment | {
        'MASTER_ADDR': HERE, 'MASTER_PORT': str(base.port), 'TORCHELASTIC_USE_AGENT_STORE': str(True),
        'WORLD_SIZE': str(n), 'LOCAL_WORLD_SIZE': str(n)}
    variables = {number: common | {'RANK': str(number), 'LOCAL_RANK': str(number)} for number in range(n)}
    running = elastic.start_processes('run', command[0], dict.fromkeys(variables, tuple(command[1:])), variables,
                                      logs_specs=elastic.DefaultLogsSpecs(os.devnull))
    result = None
    try:
        while result is None:
            stopping.check()
            result = running.wait(timeout=1, period=stopping.POLL)
    finally:
        running.close(timeout=2 * stopping.GRACE)
    codes = {failure.exitcode for failure in result.failures.values()} or {0}
    code = max(codes - {130} or codes)                       # 130 may be a consequence of another one
    if code < 0:
        raise RunFailed(f'A process of the run was killed by {signal.Signals(-code).name}.')
    return code


def local_store():
    """A new store that listens on this machine only, at a free port; TCPStore would listen everywhere."""
    listening = socket.create_server((HERE, 0))
    return dist.TCPStore(HERE, listening.getsockname()[1], is_master=True, wait_for_workers=False,
                         master_listen_fd=listening.detach())
