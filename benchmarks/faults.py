"""
Faults on purpose: runs are killed and stopped at random moments, their files damaged, their disk filled, their inputs
mutated. Prints how many faults of each kind were tried and survived; the exit code is 0 where all were.

python -m benchmarks.faults [--quick] [--only KIND ...] [--seed 0]

A fault is survived if the disturbed and resumed run ends bit for bit like an undisturbed one, or if the exit code and a
sentence say what to change. It is not survived if there is a traceback, a hang, or a run that cannot be resumed. POSIX
systems only.
"""
import argparse
import functools
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.disturbed import CONFIGURATIONS, Lab, difference, draw, outcome, start
from benchmarks.exchanged import flipped_pixels, swapped_files, unwritable_outputs
from benchmarks.hostile_images import bombs, damaged_indexes, foreign_formats
from benchmarks.mutations import mutated_command_lines, mutated_csv, mutated_yaml
from benchmarks.programs import ends, start_ups
from launching import fork_server
from records import checkpoint, reading
from utilities.errors import UserError

# The kinds of faults: generators, which yield None for each fault that was survived, else a text on what happened

def kills(lab, n):
    """The main process, but no data worker, is killed at random moments; the run is resumed at once, until it ends."""
    for name, _ in itertools.product(CONFIGURATIONS, range(n)):
        lab.undisturbed(name)
        group = lab.group()
        for attempt in range(4):
            folder = lab.place(group)
            child = start(['--resume', folder] if folder.exists() else lab.arguments(name, group))
            time.sleep(lab.random.uniform(0, lab.seconds[name] * (attempt + 1) / 4))
            child.send(signal.SIGKILL)
            child.code()
        yield lab.end(name, group)


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
        name = lab.random.choice(['plain', 'workers'])
        lab.undisturbed(name)
        group, number = lab.group(), lab.random.choice([signal.SIGINT, signal.SIGTERM])
        child = start(lab.arguments(name, group))
        time.sleep(lab.random.uniform(0, lab.seconds[name]))
        child.send(number)
        if i % 5 == 4:
            time.sleep(lab.random.uniform(0, .05))
            child.send(number)
        twice = {-signal.SIGINT} if i % 5 == 4 and number == signal.SIGINT else set()
        problem = outcome(child, {130, 0} | twice, limit=60)
        yield problem or (lab.end(name, group) if i % 4 == 0 or not lab.place(group).exists()
                          else resumable(lab.place(group)))


def resumable(folder):
    """None where the state of a run folder can be read."""
    try:
        reading.read(folder)
        if (folder / checkpoint.LAST).exists():
            checkpoint.load(folder / checkpoint.LAST)
    except UserError as error:
        return str(error)
    shutil.rmtree(folder)
    return None


def damage(file, how, generator):
    """Damages a file in place."""
    data = bytearray(file.read_bytes())
    if how == 'bit':
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif how == 'digit':
        digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
        place = generator.choice(digits)
        data[place] = ord('0') + (data[place] - ord('0') + generator.randrange(1, 10)) % 10
    elif how == 'cut':
        del data[generator.randrange(len(data)):]
    elif how == 'emptied':
        data.clear()
    else:
        place = generator.randrange(len(data))
        data[place:place] = {'NUL': b'\0', 'no UTF-8': b'\xff\xfe'}[how]
    file.write_bytes(data)


def damaged(lab, n):
    """A file of the run folder is damaged: the resumed run refuses it in a sentence, or ends as undisturbed."""
    files = ['checkpoint_last.pt', 'log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json', 'config.yaml']
    hows = ['bit', 'bit', 'digit', 'cut', 'emptied', 'NUL', 'no UTF-8', 'removed']
    whole = lab.undisturbed('plain')
    for (name, how), _ in itertools.product(itertools.product(files, hows), range(n)):
        folder = lab.copied(lab.half)
        if how == 'removed':
            (folder / name).unlink()
        else:
            damage(folder / name, how, lab.random)
        child = start(['--resume', folder, '--n_epochs', 3])
        problem = outcome(child, {0, 2})
        if not problem and 'main.py: error' not in child.text:
            problem = difference(whole, folder)
        shutil.rmtree(folder)
        yield problem and f'{name}, {how}: {problem}'


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


def full_disk(lab, n):
    """No file can become larger than a random size: exit code 1 and a sentence, and the run can be continued."""
    whole = lab.undisturbed('plain')
    largest = max(file.stat().st_size for file in whole.rglob('*'))
    for _ in range(n):
        group, size = lab.group(), int(100 * (1.1 * largest / 100) ** lab.random.random())
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        child = start(lab.arguments('plain', group), limit)
        problem = outcome(child, {0, 1, 2})
        yield f'{size} bytes: {problem}' if problem else lab.end('plain', group)


def lost_worker(lab, n):
    """A data worker is killed at a random moment: exit code 1 and a sentence, and the run can be continued."""
    lab.undisturbed('workers')
    for _ in range(n):
        group = lab.group()
        child = start(lab.arguments('workers', group))
        time.sleep(lab.random.uniform(0, lab.seconds['workers']))
        try:
            for worker in Path(f'/proc/{child.pid}/task/{child.pid}/children').read_text().split()[:1]:
                os.kill(int(worker), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass                                            # it has ended
        problem = outcome(child, {0, 1})
        yield problem or lab.end('workers', group)


def removed(lab, n):
    """The run folder is removed at a random moment: exit code 1 and a sentence."""
    lab.undisturbed('plain')
    for _ in range(n):
        group = lab.group()
        child = start(lab.arguments('plain', group))
        time.sleep(lab.random.uniform(0, lab.seconds['plain']))
        while lab.place(group).exists():
            shutil.rmtree(lab.place(group), ignore_errors=True)
        yield outcome(child, {0, 1})


# kind of fault: its generator, the number n for it with --quick, and without
KINDS = {
    'kills': (kills, 1, 5), 'crash points': (crash_points, 4, None), 'signals': (signals, 6, 100),
    'damaged files': (damaged, 1, 4), 'concurrent runs': (concurrent, 1, 10), 'full disk': (full_disk, 3, 40),
    'start-ups': (start_ups, 6, 60), 'ends of two processes': (ends, 2, 50),
    'lost worker': (lost_worker, 2, 20), 'removed folder': (removed, 2, 20), 'mutated YAML': (mutated_yaml, 30, 300),
    'swapped files': (swapped_files, 1, 3), 'flipped pixels': (flipped_pixels, 4, 30),
    'unwritable outputs': (unwritable_outputs, 2, 10),
    'mutated CSV': (mutated_csv, 30, 300), 'mutated command lines': (mutated_command_lines, 30, 300),
    'foreign image formats': (foreign_formats, 6, 40), 'image bombs': (bombs, 6, 40),
    'damaged indexes': (damaged_indexes, 100, 1000)}


def main(arguments):
    """Returns the exit code: 0 where everything was survived, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='a few faults of each kind, in minutes')
    parser.add_argument('--only', nargs='+', choices=KINDS, default=list(KINDS), metavar='KIND',
                        help=f'some of: {", ".join(KINDS)}')
    parser.add_argument('--n', type=int, help='the number of faults of each kind, instead of the default')
    parser.add_argument('--seed', type=int, default=0, help='seed of the faults')
    opt = parser.parse_args(arguments)
    torch.set_num_threads(1)                                 # a process of more threads cannot be forked
    fork_server.import_packages()
    folder = Path(tempfile.mkdtemp(prefix='faults_'))
    draw(folder / 'data')
    counts, lab = {}, Lab(folder, random.Random(opt.seed))
    for kind in opt.only:
        faults, quick, usual = KINDS[kind]
        n = opt.n or (quick if opt.quick else usual)
        lab.random.seed(f'{opt.seed} {kind}')
        results = []
        for problem in tqdm(faults(lab, n), desc=kind, leave=False, disable=None):
            results.append(problem)
            if problem:
                tqdm.write(f'{kind}: {problem}')
        counts[kind] = len(results), results.count(None)
    print(f'{"kind of fault":<24}{"tried":>8}{"survived":>10}')
    for kind, (tried, survived) in counts.items():
        print(f'{kind:<24}{tried:>8}{survived:>10}')
    if lost := sum(tried - survived for tried, survived in counts.values()):
        print(f'{lost} were not survived; what they left is in {folder}')
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
