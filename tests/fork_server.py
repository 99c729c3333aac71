"""
Starts programs as forks of a process that has already imported their packages, since the import takes several seconds.

That process is the fork server of Python's multiprocessing: it imports tests.preload once, and forks for each program.
The fork executes main.py as `python main.py ...` does, in a session of its own, and continues if the test or the server
ends. Linux only: elsewhere, tests start new programs.
"""
import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from multiprocessing import reduction
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Run(multiprocessing.get_context('forkserver').Process):
    """
    The process of `command`, [python, main.py, arguments ...], with the methods of subprocess.Popen that are used.

    log:         the open file of its output and errors.
    environment: its environment variables, {variable: value}. OMP_NUM_THREADS acts on torch alone; other variables
                 that packages read when they are imported are those of the server.
    """

    def __init__(self, command, log, environment):
        super().__init__()
        self.command = command[1:]
        self.folder = os.getcwd()
        self.environment = environment
        self.log = log.fileno()

    def __getstate__(self):
        return self.__dict__ | {'log': reduction.DupFd(self.log)}

    def run(self):
        """Executes the command in the forked process."""
        os.setsid()
        log = self.log.detach()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(self.folder)
        execute(self.command, self.environment)

    @property
    def returncode(self):
        return self.exitcode

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        multiprocessing.process.BaseProcess.join(self, timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.command, timeout)
        return self.exitcode

    def join(self, timeout=None):
        """Returns at once: multiprocessing calls it when a program ends, and its runs may outlive it."""


def execute(command, environment):
    """Turns this forked process into `python main.py arguments ...`, as Python ends it. command: without python."""
    os.environ.clear()
    os.environ.update(environment)
    import numpy as np
    import torch
    if 'OMP_NUM_THREADS' in os.environ:
        torch.set_num_threads(int(os.environ['OMP_NUM_THREADS']))
    np.random.seed()                                              # otherwise the generator is the same in all runs
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    finally:                                                      # multiprocessing leaves these steps out
        threading._shutdown()
        atexit._run_exitfuncs()


def start(command, log, secrets):
    """
    Starts `command` as Run does, with the environment of this process and `secrets`; returns the Run, or None if there
    is no server to do it. The first call waits until the server has imported the packages.
    """
    multiprocessing.set_forkserver_preload(['tests.preload'])
    environment = dict(os.environ)
    run = Run(command, log, environment | secrets)
    try:
        os.environ['PYTHONPATH'] = str(ROOT)                      # the server finds tests.preload there
        run.start()
    except (OSError, EOFError):                                   # no server, or it has ended
        return None
    finally:
        os.environ.pop('PYTHONPATH')
        os.environ.update(environment)
    return run
