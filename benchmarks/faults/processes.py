"""Faults of processes: killed and stopped at random moments, while they start and end, and two on one run folder."""
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.faults.runs import CONFIGURATIONS, ROOT, difference, outcome, start
from records import checkpoint, reading, run_folder
from utilities.errors import UserError

TORCHRUN = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2']
TWO = ['--gpu', '0', '1']


def kills(lab, n):
    """The main process, but no data worker, is killed at random moments; the run is resumed at once, until it ends."""
    for name, _ in itertools.product(CONFIGURATIONS, range(n)):
        lab.undisturbed(name)
        group = lab.group()
        for attempt in range(4):
            child = lab.start(name, group)
            lab.wait(name, (attempt + 1) / 4)
            child.send(signal.SIGKILL)
            child.code()
        yield lab.end(name, group)


def merged_kills(lab, n):
    """A run that is continued with other flags is killed at a random moment; resumed, it ends as if it were not."""
    def go_on(folder, *flags):
        return start(['--resume', folder, '--n_epochs', 3, *flags])

    changed = ['--merge_argparse_when_resuming', '--bs', 8, '--optim', 'sgd', '--views', 2]
    lab.undisturbed('plain')
    whole = lab.copied(lab.half)
    yield outcome(go_on(whole, *changed), {0})
    for _ in range(n):
        folder = lab.copied(lab.half)
        child = go_on(folder, *changed)
        lab.wait('plain')
        child.send(signal.SIGKILL)
        child.code()
        is_merged = 'merged' in run_folder.read(folder)              # else it was killed before it began
        yield outcome(go_on(folder, *([] if is_merged else changed)), {0}) or difference(whole, folder)


def crash_points(lab, n):
    """The process is killed immediately before or after a file or folder is moved to its place."""
    def count(report=None, kill_at=None, before=None):
        made = itertools.count(1)

        def counted(move):
            def moved(source, target, **options):
                number = next(made)
                if number == kill_at and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                move(source, target, **options)
                if number == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if report:
                    print(f'move {number}', flush=True)
            return moved

        os.replace, os.rename = counted(os.replace), counted(os.rename)

    child = start(lab.arguments('plain', lab.group()), functools.partial(count, report=True))
    child.code()
    points = list(itertools.product(range(1, child.text.count('move ') + 1), (True, False)))
    for kill_at, before in points if n is None else lab.random.sample(points, n):
        group = lab.group()
        child = start(lab.arguments('plain', group), functools.partial(count, kill_at=kill_at, before=before))
        code = child.code()
        yield f'exit code {code}' if code != -signal.SIGKILL else lab.end('plain', group)


def signals(lab, n):
    """SIGINT or SIGTERM at a random moment, sometimes twice: ends in seconds with 130, and can be continued."""
    for i in range(n):
        name, number = lab.random.choice(['plain', 'workers']), lab.random.choice([signal.SIGINT, signal.SIGTERM])
        is_twice = i % 5 == 4
        lab.undisturbed(name)
        group = lab.group()
        child = lab.start(name, group)
        lab.wait(name)
        child.send(number)
        if is_twice:
            time.sleep(lab.random.uniform(0, .05))
            child.send(number)
        codes = {130, 0} | ({-signal.SIGINT} if is_twice and number == signal.SIGINT else set())
        problem = outcome(child, codes, limit=60)
        yield problem or (lab.end(name, group) if i % 4 == 0 or not lab.place(group).exists()
                          else unreadable(lab.place(group)))


def unreadable(folder):
    """Returns None if the state of a run folder can be read, else the error."""
    try:
        reading.read(folder)
        if (folder / checkpoint.LAST).exists():
            checkpoint.load(folder / checkpoint.LAST)
    except UserError as error:
        return str(error)
    shutil.rmtree(folder)
    return None


def concurrent(lab, n):
    """
    Two processes resume one run, and two start runs of one name: neither disturbs the other. Of two that start one run
    with --auto_resume, one trains it.
    """
    whole = lab.undisturbed('plain')
    for _ in range(n):
        folder = lab.copied(lab.half)
        children = [start(['--resume', folder, '--n_epochs', 3]) for _ in range(2)]
        problems = [outcome(child, {0, 2}) for child in children]
        if all('main.py: error' in child.text for child in children):
            problems.append('both were refused')
        yield next(filter(None, problems), None) or difference(whole, folder)
        group = lab.group()
        children = [start(lab.arguments('plain', group)) for _ in range(2)]
        problems = [outcome(child, {0}) for child in children]
        places = [lab.place(group), lab.place(group).with_name(f'{group}_s1_1')]
        yield next(filter(None, problems), None) or next(
            filter(None, (difference(whole, place) for place in places)), None)
        group = lab.group()
        children = [start([*lab.arguments('plain', group), '--auto_resume']) for _ in range(2)]
        problems = [outcome(child, {0, 2}) for child in children]
        n_trained = sum('epoch   1  loss' in child.text for child in children)
        if n_trained != 1 or lab.place(group).with_name(f'{group}_s1_1').exists():
            problems.append(f'{n_trained} have trained it: {[child.text[-300:] for child in children]}')
        yield next(filter(None, problems), None) or difference(whole, lab.place(group))


def lost_worker(lab, n):
    """A data worker is killed at a random moment: exit code 1 and a sentence, and the run can be continued."""
    lab.undisturbed('workers')
    for _ in range(n):
        group = lab.group()
        child = lab.start('workers', group)
        lab.wait('workers')
        with contextlib.suppress(ProcessLookupError):                        # it has ended since
            for worker in children(child)[:1]:
                os.kill(worker, signal.SIGKILL)
        yield outcome(child, {0, 1}) or lab.end('workers', group)


def children(child):
    """Returns the ids of the processes that a Child has started; none once it has ended."""
    try:
        return [*map(int, Path(f'/proc/{child.pid}/task/{child.pid}/children').read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return []


def removed(lab, n):
    """The run folder is removed at a random moment: exit code 1 and a sentence."""
    lab.undisturbed('plain')
    for _ in range(n):
        group = lab.group()
        child = lab.start('plain', group)
        lab.wait('plain')
        while lab.place(group).exists():
            shutil.rmtree(lab.place(group), ignore_errors=True)
        yield outcome(child, {0, 1})


# While a program starts or ends: these runs are new programs, not forks. Linux only.

def new_program(arguments, python=()):
    """Returns the Child that executes python with these arguments, main.py, and its own arguments."""
    command = [sys.executable, *python, str(ROOT / 'main.py'), *map(str, arguments)]
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
    """Returns whether a process has a handler for a signal."""
    status = Path(f'/proc/{pid}/status').read_text()
    handled, = (line.split()[1] for line in status.splitlines() if line.startswith('SigCgt'))
    return bool(int(handled, 16) >> (number - 1) & 1)


def wait_for_none(group, limit=60):
    """Returns how many processes have the name of this group among their arguments, after `limit` seconds at most."""
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
