"""Faults of processes: killed and stopped at random moments, and two on one run folder."""
import contextlib
import itertools
import os
import shutil
import signal
import time
from pathlib import Path

from benchmarks.faults.runs import CONFIGURATIONS, difference, outcome, start
from records import checkpoint, reading, run_folder
from utilities.errors import UserError


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

    changed = ['--merge_argparse_when_resuming', '--bs', 8, '--optim', 'sgd', '--augmentation', 'adv']
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
    """Two processes resume one run, and two start runs of one name: neither disturbs the other."""
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
