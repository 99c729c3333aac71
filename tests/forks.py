"""
Processes that a program of the tests starts are forks of it rather than new programs, whose imports take seconds.

install() is for programs that launching/fork_server.py has forked itself, and that have no threads yet.
"""
import functools
import os
import socket
import subprocess
import sys
import traceback
import types

from launching import fork_server, process
from utilities import processes

HERE = os.path.dirname(__file__)


def install():
    """
    The server of this process, and the processes of a run on several GPUs, are forks of this process from now on. Does
    nothing in a program that has not been forked, since it has not imported the packages of runs.
    """
    if 'torchvision.models' not in sys.modules:
        return
    environment, original = dict(os.environ), fork_server.server
    made, own = fork_that_serves(), os.getpid()

    @functools.lru_cache(maxsize=1)
    def server(wanted):
        return made if dict(wanted) == environment and os.getpid() == own else original(wanted)

    fork_server.server = server
    processes.subprocess = types.SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)


def install_torchrun():
    """As install(), and the torchrun of a run on several machines is a fork as well, and so are its processes."""
    install()
    process.opened = lambda command, run, log: start(
        [command[0], f'{HERE}/torchrun.py', *command[3:]], run.environment, log)


def fork_that_serves():
    """(connection, process), as fork_server.server returns them."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        os.setsid()
        for stream in (1, 2):                                     # a run's log would stay locked while this is open
            os.dup2(0, stream)
        try:
            if found := fork_server.serve(its):
                fork_server.become(*found)
        except BaseException:
            traceback.print_exc()
        finally:
            fork_server.end(1)                                    # never returns to what called install()
    its.close()
    ours.settimeout(fork_server.PATIENCE)
    ours.recv(1)
    return ours, fork_server.Run(pid)


def start(command, env, log=None, start_new_session=True):
    """As subprocess.Popen, by the server; `log` is by default the file of this program's output."""
    return fork_server.start(command, log or sys.stdout, env)
