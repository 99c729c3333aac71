"""
Faults on purpose: runs are killed and stopped at random moments, their files damaged, their disk filled, their inputs
mutated. Prints how many faults of each kind were tried and survived; the exit code is 0 if all were.

python -m benchmarks.faults [--quick] [--only KIND ...] [--seed 0]

On two cores, all kinds take about half an hour, and with --quick a few minutes.

A fault is survived if the disturbed and resumed run ends bit for bit like an undisturbed one, or if the exit code and a
sentence say what to change. It is not survived if there is a traceback, a hang, or a run that cannot be resumed. POSIX
systems only.
"""
import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from benchmarks.faults import files, foreign, images, inputs, processes
from benchmarks.faults.runs import Lab, draw, preload
from utilities.text_tables import aligned

# kind of fault: its generator, which yields None for each fault that was survived, else a text on what happened; its
# number n with --quick, and without
KINDS = {
    'kills': (processes.kills, 1, 4),
    'merged kills': (processes.merged_kills, 2, 20),
    'crash points': (processes.crash_points, 4, None),
    'signals': (processes.signals, 6, 60),
    'damaged files': (files.damaged, 1, 3),
    'damaged starts': (files.damaged_starts, 1, 10),
    'concurrent runs': (processes.concurrent, 1, 10),
    'full disk': (files.full_disk, 3, 30),
    'start-ups': (processes.start_ups, 6, 30),
    'ends of two processes': (processes.ends, 2, 24),
    'lost worker': (processes.lost_worker, 2, 20),
    'removed folder': (processes.removed, 2, 20),
    'mutated YAML': (inputs.mutated_yaml, 30, 180),
    'swapped files': (files.swapped_files, 1, 3),
    'unwritable outputs': (files.unwritable_outputs, 2, 6),
    'mutated CSV': (inputs.mutated_csv, 30, 200),
    'changed data': (inputs.changed_data, 8, 60),
    'wrong splits': (inputs.wrong_splits, 5, 50),
    'mutated command lines': (inputs.mutated_command_lines, 30, 180),
    'foreign image formats': (images.foreign_formats, 6, 40),
    'image bombs': (images.bombs, 6, 40),
    'bad requests': (images.bad_requests, 6, 60),
    'damaged networks': (files.damaged_networks, 1, 20),
    'hostile archives': (foreign.hostile_archives, 30, 300),
    'swapped indexes': (foreign.swapped_indexes, 5, 15),
    'damaged exports': (foreign.damaged_exports, 18, 90),
}


def main(arguments):
    """Returns the exit code: 0 if everything was survived, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='a few faults of each kind, in minutes')
    parser.add_argument('--only', nargs='+', choices=KINDS, default=list(KINDS), metavar='KIND',
                        help=f'some of: {", ".join(KINDS)}')
    parser.add_argument('--n', type=int, help='the number of faults of each kind, instead of the default')
    parser.add_argument('--seed', type=int, default=0, help='seed of the faults')
    opt = parser.parse_args(arguments)
    preload()
    folder = Path(tempfile.mkdtemp(prefix='faults_'))
    draw(folder / 'data')
    counts, lab = {}, Lab(folder, random.Random(opt.seed))
    for kind in opt.only:
        faults, quick, usual = KINDS[kind]
        n = opt.n or (quick if opt.quick else usual)
        lab.random.seed(f'{opt.seed} {kind}')
        results, began = [], time.monotonic()
        for problem in tqdm(faults(lab, n), desc=kind, leave=False, disable=None):
            results.append(problem)
            if problem:
                tqdm.write(f'{kind}: {problem}')
        counts[kind] = len(results), results.count(None), round(time.monotonic() - began)
    rows = [[kind, *map(str, counted)] for kind, counted in counts.items()]
    print(aligned([['kind of fault', 'tried', 'survived', 'seconds'], *rows]))
    if lost := sum(tried - survived for tried, survived, _ in counts.values()):
        print(f'{lost} were not survived; what they left is in {folder}')
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
