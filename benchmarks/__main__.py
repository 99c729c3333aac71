"""
Short forms of all benchmarks, as one table. Each runs in a process of its own, with one thread, for at most LIMIT
seconds. They run one after the other, since two at once would slow each other down. A line on the standard error says
when one ends and how long it took.

python -m benchmarks [NAME ...]
"""
import argparse
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import benchmarks
from benchmarks import Row
from benchmarks.measure import table
from utilities.cores import processor

LIMIT = 240                                               # seconds of wall-clock time for one benchmark
PEERS = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'pytorch-metric-learning')
FOLDER = Path(benchmarks.__file__).parent
NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)
         if module.name != '__main__' and 'def short()' in (FOLDER / f'{module.name}.py').read_text(encoding='utf-8')]


def cells(row):
    ratio = row.ours / row.peer
    return [row.job, f'{row.ours:.3g}', f'{row.peer:.3g}', f'{ratio:.2f}', f'{row.target:.2f}',
            'yes' if ratio <= row.target else 'no']


def print_rows(name):
    """Prints each Row of the short form of the benchmark `name` as a line of JSON, as soon as it is measured."""
    for row in importlib.import_module(f'benchmarks.{name}').short():
        print(json.dumps(row), flush=True)


def run(name):
    """(Rows of the benchmark `name`, seconds, how it ended); those measured so far if it fails or exceeds LIMIT."""
    began, end = time.monotonic(), 'complete'
    try:
        done = subprocess.run([sys.executable, '-m', 'benchmarks', '--rows', name], cwd=FOLDER.parent, timeout=LIMIT,
                              capture_output=True, text=True)
        output = done.stdout
        if done.returncode:
            end = f'FAILED: {(done.stderr.strip().splitlines() or [done.returncode])[-1]}'
    except subprocess.TimeoutExpired as error:
        output, end = (error.stdout or b'').decode(), f'STOPPED after {LIMIT} s, INCOMPLETE'
    lines = [line for line in output.splitlines(keepends=True) if line.startswith('["') and line.endswith('\n')]
    return [Row(*json.loads(line)) for line in lines], time.monotonic() - began, end


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks', description='Short forms of the benchmarks, as one table.')
    parser.add_argument('names', nargs='*', choices=[*NAMES, []], metavar='NAME',
                        help=f'{", ".join(NAMES)}; all by default')
    parser.add_argument('--rows', action='store_true', help='print the rows of one benchmark as JSON, measured here')
    options = parser.parse_args(arguments)
    if options.rows:
        return print_rows(*options.names)
    os.environ['OMP_NUM_THREADS'] = '1'
    names, found, began = options.names or NAMES, {}, time.monotonic()
    for name in names:
        rows, seconds, end = found[name] = run(name)
        print(f'[{len(found)}/{len(names)}] {name}: {end}, {len(rows)} rows in {seconds:.0f} s; '
              f'{time.monotonic() - began:.0f} s since the start', file=sys.stderr, flush=True)
    print(f'{processor()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, '
          + ', '.join(f'{name} {version(name)}' for name in PEERS)
          + '. Medians, in seconds of processor time where the job names no other unit.\n')
    print(table(['job', 'ours', 'peer', 'ratio', 'target', 'met'],
                [cells(row) for name in names for row in found[name][0]]))
    return int(any(end != 'complete' for _, _, end in found.values()))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
