"""
Processes that a program of the tests starts are forks rather than new programs, whose imports take seconds.

install() is for programs that tests/fork_server.py has forked itself, and that have no threads yet.
"""
import json
import multiprocessing.forkserver
import os

from launching import process
from tests import fork_server
from tests.blank.plots import MAIN

HERE = os.path.dirname(__file__)
NEW_PROGRAM = process.new_process
SCRIPTS = {str(MAIN)}                                             # those that are forked


def new_process(command, run, log):
    """As process.new_process(), but a run of one of the SCRIPTS is a fork."""
    forked = fork_server.start(command, log, run.environment) if command[1] in SCRIPTS else None
    return forked or NEW_PROGRAM(command, run, log)


def install(n_processes=0):
    """
    From now on, this process forks its runs from the server that has forked it, and the n_processes of a run on
    several GPUs from itself. Does nothing in a program that no server has forked.
    """
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_address is None:
        return
    server.ensure_running = lambda: None
    process.new_process = new_process
    if n_processes:
        install_processes(n_processes)


def install_processes(n):
    """From now on, the n processes that processes.start() starts are forks of this one."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    spares = [Spare() for _ in range(n)]
    subprocess_handler.Popen = lambda args, env, **options: spares.pop().become(args, env)


class Spare(multiprocessing.get_context('fork').Process):
    """A child of this process, forked before it has threads and sockets, that waits for its command."""
    returncode, poll, wait, join = (vars(fork_server.Run)[name] for name in ('returncode', 'poll', 'wait', 'join'))

    def __init__(self):
        super().__init__()
        self.reading, self.writing = os.pipe()
        self.start()
        os.close(self.reading)

    def run(self):
        os.setsid()
        os.close(self.writing)
        with os.fdopen(self.reading) as file:
            if content := file.readline():                        # otherwise the parent has ended
                fork_server.execute(*json.loads(content))

    def become(self, command, environment):
        self.command = command
        os.write(self.writing, (json.dumps([command[1:], dict(environment)]) + '\n').encode())
        os.close(self.writing)
        return self
