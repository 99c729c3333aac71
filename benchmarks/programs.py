"""Faults of benchmarks.faults while a program starts or ends: these runs are new programs, not forks. Linux only."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.disturbed import outcome, start

MAIN = Path(__file__).resolve().parents[1] / 'main.py'
TORCHRUN = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2']
TWO = ['--gpu', '0', '1']


def new_program(arguments, python=()):
    """The Child that executes python with these arguments, main.py, and its own arguments."""
    command = [sys.executable, *python, str(MAIN), *map(str, arguments)]
    return start([], lambda: os.execv(sys.executable, command))


def start_ups(lab, n):
    """
    SIGINT or SIGTERM between the first line of main.py and the first epochs: ends with 130. And SIGKILL there for a
    main.py that starts two processes: none is left.
    """
    began = time.monotonic()
    if problem := outcome(new_program(['--help']), {0}):
        raise SystemExit(f'main.py --help: {problem}')
    seconds = time.monotonic() - began
    for i in range(n):
        group, number = lab.group(), (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[i % 3]
        arguments = [*lab.arguments('plain', group), '--n_epochs', 500]
        if number == signal.SIGKILL:
            child = new_program([*arguments, *TWO])
            time.sleep(lab.random.uniform(0, 3 * seconds))
            child.send(number)
            child.code()
            left = wait_for_none(group)
            yield f'after SIGKILL of the process that started them, {left} are left' if left else None
            continue
        child = new_program(arguments)
        while child.code(limit=.01) is None and not catches(child.pid, signal.SIGTERM):
            pass                                             # Python itself is starting
        time.sleep(lab.random.uniform(0, 1.5 * seconds))
        child.send(number)
        yield outcome(child, {130}, limit=60)


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    status = Path(f'/proc/{pid}/status').read_text()
    handled, = (line.split()[1] for line in status.splitlines() if line.startswith('SigCgt'))
    return bool(int(handled, 16) >> (number - 1) & 1)


def wait_for_none(group, limit=60):
    """The number of processes that still have the name of this group among their arguments after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        listed = subprocess.run(['ps', '-eo', 'args='], capture_output=True, text=True, check=True).stdout
        left = sum(f' --group {group} ' in line for line in listed.splitlines())
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(.2)


def ends(lab, n):
    """A run of two processes that finishes, by torchrun and by --gpu in turn: exit code 0."""
    for i in range(n):
        arguments = [*lab.arguments('workers', lab.group()), '--n_epochs', 1, '--iterations_per_epoch', 20]
        child = new_program(arguments, TORCHRUN) if i % 2 == 0 else new_program([*arguments, *TWO])
        problem = outcome(child, {0})
        yield problem or ('terminate called' in child.text and f'exit code 0: {child.text[-300:]}') or None
