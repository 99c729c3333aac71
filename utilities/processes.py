"""
The processes that compute one run together. torchrun or start() below starts them; torch.distributed connects them.

All execute the same program. Only process 0 writes, prints, and does the work that is needed once (run_on_rank_zero).
If a process ends early, for any reason, all of them end: it writes its exit code to the store to which all are
connected, so that none of them waits for it.

Whoever reaches the store can write to it, so that nothing read from it is ever unpickled. On one machine, nothing that
the processes open can be reached from another one.
"""
import contextlib
import functools
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist

from utilities import stopping
from utilities.errors import Ended, RunFailed, UserError
from utilities.machine import n_cores

TIMEOUT = timedelta(minutes=30)          # limit of a collective operation, for failures that Watcher does not notice
PIECE = 1 << 22                          # bytes; a TCPStore takes no more than 8 MiB in one value
CONNECTING = timedelta(minutes=10)       # limit from the first process that connects to the last one
LONGEST_PAUSE = 0.05                     # seconds between two checks for a result of another process
GRACE = 10                               # seconds that a process has to end by itself after another one has ended
LAUNCHER = 'RUN_LAUNCHER_PID'            # environment variable: the process whose start() has started this one
ENDED = 'ended'                          # key in the store: '<rank> <exit code>' of the first process that ended early
WRITTEN = re.compile(rb'\d+ (\d{1,3})')  # values of ENDED
N_ENDED = 'n_ended'                      # key in the store: the number of processes that have read or written ENDED
HERE = '127.0.0.1'                       # the address of this machine that no other machine reaches
FOREIGN = ('The store through which the processes of the run communicate holds a value that none of them has written. '
           'Another program has reached it: start the run where only trusted programs and machines can.')
CODES = {KeyboardInterrupt: 130, UserError: 2, RunFailed: 1}


def connected():
    """Whether this process is one of several that compute one run."""
    return dist.is_available() and dist.is_initialized()


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


def store():
    return dist.distributed_c10d._get_default_store()


def run_on_rank_zero(work, *arguments):
    """
    Calls work(*arguments) in process 0 and returns its result in all processes, which wait for it. The others get it as
    JSON: a tuple or an array becomes a list, and a path a text. All processes must call this function equally often.
    Unlike a collective operation, it has no time limit.
    """
    if not connected():
        return work(*arguments)
    key = f'run_on_rank_zero/{n_calls("run_on_rank_zero")}'
    if is_main():
        result = work(*arguments)
        content = json.dumps(result, default=as_json).encode()
        pieces = [content[start:start + PIECE] for start in range(0, len(content), PIECE)]
        for number, piece in enumerate(pieces):
            store().set(f'{key}/{number}', piece)
        store().set(key, str(len(pieces)))
        return result
    try:
        keys = [f'{key}/{number}' for number in range(int(awaited(store(), key)))]
        result = json.loads(b''.join(map(store().get, keys)))
    except ValueError:
        raise RunFailed(FOREIGN) from None
    if store().add(f'{key}/readers', 1) == count() - 1:
        for read in (*keys, key, f'{key}/readers'):
            store().delete_key(read)
    return result


def rank_zero_only(function):
    """The decorated function does nothing, and returns None at once, in all processes except process 0."""
    @functools.wraps(function)
    def limited(*arguments, **options):
        return function(*arguments, **options) if is_main() else None
    return limited


def as_json(value):
    """An array or a number of NumPy or torch as a list or a number, and a path as a text."""
    return value.tolist() if hasattr(value, 'tolist') else os.fspath(value)


def one_first(work):
    """Calls work(), which may download or cache files, in one process of each machine first, then in the others."""
    if not connected():
        return work()
    key = f'one_first/{os.environ.get("GROUP_RANK", 0)}/{n_calls("one_first")}'
    if local_rank() > 0:
        awaited(store(), key)
    result = work()
    if local_rank() == 0:
        store().set(key, '')
    return result


def n_calls(function):
    """How often this process has called the function, including this call."""
    return store().add(f'{function}/calls of {rank()}', 1)


def awaited(place, key, until=float('inf')):
    """Waits until the key is in a store, and returns its value. Raises TimeoutError at the time `until`."""
    pause = 0.001
    while not place.check([key]):
        check_wait(until)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return place.get(key)


def check_wait(until):
    """Raises TimeoutError after the time `until`, and KeyboardInterrupt where a stop was requested."""
    stopping.check()
    if time.monotonic() > until:
        raise TimeoutError


@contextlib.contextmanager
def together():
    """
    In the block, this process is connected with the others of its run, if there are any. Only process 0 prints to
    standard output and standard error.

    An exception that ends the block in a process is raised there, so that it is printed. The other processes are
    interrupted, and there Ended is raised with the exit code of the exception.
    """
    if int(os.environ.get('WORLD_SIZE') or 1) == 1:
        yield
        return
    watcher = Watcher()
    watcher.start()
    try:
        connect()
        with silent_unless_main(), ending_together():
            watcher.store = store().clone()     # another connection, since this one may block
            yield
            run_on_rank_zero(int)               # waits until process 0 has written everything, without a time limit
            dist.all_reduce(torch.zeros(1))     # process 0 may host the store, so that no process ends before the last
        dist.destroy_process_group()
    except SystemExit:                                       # after --help
        raise
    except BaseException as error:
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
        first = end(1 if code is None else code)
        if first is not None:
            raise Ended(first) from None
        if code is not None:
            raise
        traceback.print_exc()
        raise Ended(1) from None
    finally:
        watcher.over.set()
        watcher.join(GRACE)                                  # see leave()


def connect():
    """Raises UserError if the variables of torchrun are not set, and RunFailed if the others cannot be reached."""
    if not dist.is_available():
        raise UserError('this PyTorch was built without torch.distributed; start a single process, without torchrun')
    try:
        base, number, n = rendezvous()
        base.set_timeout(TIMEOUT)
        dist.init_process_group('cpu:gloo,cuda:nccl' if torch.cuda.is_available() else 'gloo', timeout=TIMEOUT,
                                store=dist.PrefixStore(attempt(base, number, n), base), rank=number, world_size=n)
    except TimeoutError:
        raise RunFailed(f'Not all of the {n} processes of the run have connected within {CONNECTING} hours; the others '
                        'may have printed why.') from None
    except (KeyError, ValueError) as error:
        raise UserError(f'WORLD_SIZE is {os.environ["WORLD_SIZE"]}, but the other variables of torchrun are not set '
                        f'({error}); start the processes by torchrun') from None
    except (RuntimeError, OSError) as error:
        raise RunFailed(f'The processes of the run cannot be connected: {str(error).splitlines()[0]}') from None


def rendezvous():
    """
    A store that all processes share, the number of this process, and the number of processes, from the variables of
    torchrun. If all are on this machine, gloo and NCCL listen on this machine only, and so does a store that process 0
    hosts; that of torchrun listens everywhere. Raises KeyError or ValueError if a variable is not set.
    """
    address, n = os.environ.get('MASTER_ADDR', ''), os.environ['WORLD_SIZE']
    is_local = os.environ.get('LOCAL_WORLD_SIZE') == n or re.match(r'127\.|localhost$', address)
    for loopback in {'lo', 'lo0'} & {name for _, name in socket.if_nameindex()} if is_local else ():  # Linux's; macOS's
        os.environ.setdefault('GLOO_SOCKET_IFNAME', loopback)
        os.environ.setdefault('NCCL_SOCKET_IFNAME', loopback)
    if not is_local or os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == str(True):
        return next(dist.rendezvous('env://', timeout=CONNECTING))
    number, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])
    hosted = local_store(port) if number == 0 else dist.TCPStore(HERE, port, timeout=CONNECTING)
    return hosted, number, int(n)


def local_store(port=0):
    """A new store that listens on this machine only, at a free port by default; TCPStore would listen everywhere."""
    listening = socket.create_server((HERE, port))
    return dist.TCPStore(HERE, listening.getsockname()[1], is_master=True, wait_for_workers=False,
                         master_listen_fd=listening.detach())


def attempt(base, number, n):
    """
    A name for this attempt to connect n processes, of which this one has the index `number`. When torchrun starts the
    processes again, its store `base` still has the entries of earlier attempts. The processes therefore agree on a new
    name, under which the entries of this attempt are stored. Raises TimeoutError if they are not there in time.
    """
    own, until = uuid.uuid4().hex, time.monotonic() + CONNECTING.total_seconds()
    if number == 0:
        base.set('attempt', own)
        others = [awaited(base, f'{own}/{other}', until) for other in range(1, n)]
        base.set(f'{own}/others', b' '.join(others))
        return own
    while True:
        name = awaited(base, 'attempt', until).decode(errors='replace')     # it may be an earlier attempt's name
        base.set(f'{name}/{number}', own)
        while base.get('attempt').decode(errors='replace') == name:
            if base.check([f'{name}/others']) and own.encode() in base.get(f'{name}/others'):
                return name
            check_wait(until)
            time.sleep(LONGEST_PAUSE)


def signals():
    """A pipe to which the numbers of signals are written at once, even while a collective operation blocks Python."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))         # data workers must not write to it
    return reading


@contextlib.contextmanager
def silent_unless_main():
    """In the block, the standard output and errors of all processes except process 0 are discarded."""
    with contextlib.ExitStack() as stack:
        if not is_main():
            nowhere = stack.enter_context(open(os.devnull, 'w'))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


@contextlib.contextmanager
def ending_together():
    """
    If an exception in the block was caused by the end of another process, such as a lost connection, raises the kind of
    exception that ended that process instead: KeyboardInterrupt, UserError or RunFailed.
    """
    try:
        yield
    except BaseException as error:
        if not connected() or isinstance(error, SystemExit):
            raise
        code = code_of_ended()
        if code is not None:
            kind = next((kind for kind, its_code in CODES.items() if its_code == code), RunFailed)
            raise kind('Another process of the run has ended.') from None
        if isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and 'gloo' in str(error):
            raise RunFailed('Another process of the run was killed or cannot be reached any more.') from None
        raise


def end(code, place=None):
    """
    Writes to the store that this process ends with `code`. Returns the code of one that ended earlier, or None.

    place: a connection to the store; by default that of the main thread.
    """
    if not connected():
        return None
    place, mine = place or store(), f'{rank()} {code}'
    try:
        first = place.compare_set(ENDED, '', mine)
        if not WRITTEN.fullmatch(first):                     # then no process of the run has ended before this one
            first = place.compare_set(ENDED, first, mine)
        place.add(N_ENDED, 1)
        if is_main() and os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != str(True):
            until = time.monotonic() + GRACE + 1             # it hosts the store, where the others read the code
            while place.add(N_ENDED, 0) < count() and time.monotonic() < until:
                time.sleep(LONGEST_PAUSE)
    except RuntimeError:                                     # the process that hosts the store has ended
        return None
    return None if first == mine.encode() else exit_code_in(first)


def code_of_ended():
    """
    The exit code of the first process that has ended early; None if there is none, or the store ended before this one
    had read it. Raises RunFailed if the store has a value that no process of the run has written.
    """
    try:
        entry = store().get(ENDED) if store().check([ENDED]) else None
    except RuntimeError:
        entry = Watcher.entry
    if entry is not None and not WRITTEN.fullmatch(entry):
        raise RunFailed(FOREIGN)
    return entry and exit_code_in(entry)


def exit_code_in(entry):
    """The exit code in the store's entry ENDED; that of a failure, if no process of the run has written it."""
    written = WRITTEN.fullmatch(entry)
    return int(written[1]) if written else CODES[RunFailed]


class Watcher(threading.Thread):
    """
    Interrupts this process if another process of the run has ended; before the processes are connected, if the process
    that started this one has ended. If this process is still running GRACE seconds later, since it waits for an ended
    process in a collective operation or is in a long call, it is ended at once, and the others learn this from the
    store. Before the processes are connected, nothing has to be cleaned up, and this process gets one second instead.

    over:  an Event that is set when this process need not be watched any more.
    store: a connection to the store that is used by this thread only; None until the processes are connected.
    entry: the value of ENDED, read as soon as it is there: the store may end before the main thread can read it.
    """
    entry = None

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.signals, self.store = threading.Event(), signals(), None

    def run(self):
        ended = False
        while not (ended or stopping.requested):
            if self.over.wait(stopping.POLL):
                return
            with contextlib.suppress(BlockingIOError):               # raised where no signal has come
                stopping.requested |= bool({signal.SIGINT, signal.SIGTERM} & {*os.read(self.signals, 100)})
            try:
                ended = self.store.check([ENDED]) if self.store else is_orphan()
                if ended and self.store:
                    Watcher.entry = self.store.get(ENDED)
            except RuntimeError:
                ended = True
        stopping.requested = True
        if not self.over.wait(GRACE if self.store else 1):
            first = end(CODES[KeyboardInterrupt], self.store)
            leave_now(CODES[KeyboardInterrupt] if first is None else first)


def is_orphan():
    """Whether start() or torchrun in another process has started this one, and that process has ended."""
    parent = os.environ.get(LAUNCHER) or 'TORCHELASTIC_RUN_ID' in os.environ and stopping.parent
    return bool(parent) and os.getppid() != int(parent)


def leave(code):
    """
    Ends this process with an exit code. If it is one of several and has failed, it ends without cleaning up; so does a
    process whose Watcher still waits for the store: Python would abort if this thread came back from C++ at the end.
    """
    if code and connected() or any(isinstance(thread, Watcher) for thread in threading.enumerate()):
        leave_now(code)
    sys.exit(code)


def leave_now(code):
    for worker in multiprocessing.active_children():         # data workers hold connections of this process open
        worker.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(n, command, environment):
    """
    Starts n processes of `command` on this machine with the environment variables of torchrun, and waits for them. If
    OMP_NUM_THREADS is not set, it is set such that the cores are divided among the processes.

    environment: variables of the processes in addition to this process's environment.

    Returns 0, or the exit code of a process that failed. Raises RunFailed if one was killed, and
    KeyboardInterrupt if a stop is requested.
    """
    shared = local_store()
    environment = {'OMP_NUM_THREADS': str(max(1, n_cores() // n))} | os.environ | environment | {
        'MASTER_ADDR': HERE, 'MASTER_PORT': str(shared.port), 'TORCHELASTIC_USE_AGENT_STORE': str(True),
        'TORCHELASTIC_RESTART_COUNT': '0', 'GROUP_RANK': '0', 'WORLD_SIZE': str(n), 'LOCAL_WORLD_SIZE': str(n),
        LAUNCHER: str(os.getpid())}
    running = [subprocess.Popen(command, env=environment | {'RANK': str(i), 'LOCAL_RANK': str(i)},
                                start_new_session=True) for i in range(n)]    # Ctrl-C then reaches this process only
    try:
        while not any(codes := [process.poll() for process in running]) and None in codes:
            stopping.sleep(stopping.POLL)
    finally:
        end_all(running)
    failed = [(i, code) for i, code in enumerate(codes) if code]
    if not failed:
        return 0
    number, code = min(failed, key=lambda entry: entry[1])
    if code < 0:
        raise RunFailed(f'Process {number} of {n} was killed by {signal.Signals(-code).name}.')
    return code


def end_all(processes):
    """Interrupts the processes that run and waits until they have ended; after 2 * GRACE seconds, kills them."""
    for process in processes:
        process.terminate()
    limit = time.monotonic() + 2 * GRACE
    for process in processes:
        try:
            process.wait(max(0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
