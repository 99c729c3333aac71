"""
Starts runs as forks of a process that has already imported their packages, since the import takes several seconds.

The launcher starts this module once, as a server. It imports the packages that runs import, computes nothing, and
starts no threads. For each run, it forks. The fork executes main.py as `python main.py ...` does, in a session of its
own. It becomes a child of the launcher, which waits for it and sends it signals, and it continues if the server or the
launcher ends. This works on Linux only; elsewhere, and if the server cannot be used, launching.process starts each run
as a new program.
"""
import atexit
import ctypes
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from utilities import stopping

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 1 << 20                                                 # bytes of a request at most
PATIENCE = 120                                                    # seconds to wait for a fork on a very busy machine
ADOPT = 36                                                        # PR_SET_CHILD_SUBREAPER of Linux' prctl


class Run:
    """A child of this process that another process has forked, with the methods of subprocess.Popen that are used."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f'process {self.pid}', timeout)
            time.sleep(0.02)
        return self.returncode

    def terminate(self):
        self.send(signal.SIGTERM)

    def kill(self):
        self.send(signal.SIGKILL)

    def send(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def start(command, log, secrets):
    """
    Starts `command`, [python, main.py, arguments ...], and returns it as a Run; None if there is no server to do it.

    log:     the open file of its output and errors.
    secrets: {variable: value} in addition to the environment of this process.
    """
    if sys.platform != 'linux':
        return None
    request = {'command': command[1:], 'folder': os.getcwd(), 'environment': secrets}
    try:
        connection, _ = server(tuple(sorted(os.environ.items())))
        adopt(True)
        socket.send_fds(connection, [json.dumps(request).encode()], [log.fileno()])
        answer = connection.recv(64)
    except OSError:                                               # no server, or it has ended
        answer = b''
    finally:
        adopt(False)
    if not answer:
        server.cache_clear()
        return None
    return Run(int(answer))


def adopt(is_adopting):
    """Sets whether this process becomes the parent of its descendants when their own parent ends."""
    ctypes.CDLL(None).prctl(ADOPT, int(is_adopting), 0, 0, 0)


@functools.lru_cache(maxsize=1)
def server(environment):
    """
    Starts a server, waits until it has imported the packages, and returns (the connection to it, its process). It ends
    when the connection is closed.

    environment: the server's variables, ((variable, value), ...). It is an argument since packages read variables when
    they are imported, so that another environment needs another server.

    Raises OSError if the server ends or a stop is requested before it is ready.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, '-m', 'launching.fork_server', str(its.fileno())], cwd=ROOT, env=dict(environment),
            pass_fds=[its.fileno()], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
    ours.settimeout(PATIENCE)
    while not stopping.requested:
        if select.select([ours], [], [], stopping.POLL)[0]:
            if not ours.recv(1):
                break
            return ours, process
    ours.close()
    process.kill()
    process.wait()
    raise ConnectionError('no server')


def import_packages():
    """Imports the packages of most runs, including packages that runs import only when they use them."""
    for name in ('main', 'torchvision.models', 'torchvision.transforms.v2', 'torch._dynamo', 'faiss', 'threadpoolctl',
                 'matplotlib.figure', 'matplotlib.backends.backend_agg', 'torch.utils.tensorboard'):
        try:
            __import__(name)
        except ImportError:                                       # runs work without it, or print what is missing
            continue


def serve(connection):
    """
    Answers requests until the connection is closed, then returns None. Also returns in the process of each run, with
    the request and the log of the run.
    """
    connection.send(b'.')                                         # ready
    while True:
        message, files, *_ = socket.recv_fds(connection, LONGEST, 1)
        if not message:
            return None
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            run = os.fork()
            if not run:
                while os.getppid() == middle:                     # then its parent is the launcher
                    time.sleep(0.001)
                connection.close()
                os.close(reading)
                os.close(writing)
                return json.loads(message), files[0]
            os.write(writing, str(run).encode())
            os._exit(0)                                           # its child is now the launcher's
        os.waitpid(middle, 0)
        connection.send(os.read(reading, 64))
        for file in (reading, writing, *files):
            os.close(file)


def become(request, log):
    """Turns this process into one that `python main.py ...` would have started; does not return."""
    import numpy as np
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(request['folder'])
    os.environ.update(request['environment'])
    np.random.seed()                                              # otherwise the generator is the same in all runs
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    sys.argv, sys.path[0] = request['command'], str(Path(request['command'][0]).parent)
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as error:
        if not isinstance(error.code, int | None):                # a text, which Python prints
            raise
        code = error.code or 0
    end(code)


def end(code):
    """
    Ends this process as Python does, but does not free the memory of the packages: that would copy the pages which the
    process shares with the server, and would take half a second.
    """
    threading._shutdown()                                         # waits for threads, as multiprocessing does in a fork
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(connection):
    import_packages()
    if not os.fork():
        os._exit(0)                                               # OpenBLAS ends its threads before a fork
    os.wait()
    if len(os.listdir('/proc/self/task')) > 1:
        sys.exit('a process with threads cannot be forked')
    gc.freeze()                                                   # the garbage collector of runs skips the packages
    if found := serve(connection):
        become(*found)


if __name__ == '__main__':
    main(socket.socket(fileno=int(sys.argv[1])))
