"""
Short forms of all benchmarks, as one table. Each runs in a process of its own, with one thread, for at most LIMIT
seconds. They run one after the other, since two at once would slow each other down.

python -m benchmarks [NAME ...]
"""
import argparse
import importlib
import os
import sys

from benchmarks import figures
from utilities import errors, stopping

LIMIT = 240                                               # seconds of wall-clock time for one benchmark
NAMES = ['evaluation', 'loading', 'losses', 'mining', 'step']


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks', description='Short forms of the benchmarks, as one table.')
    parser.add_argument('names', nargs='*', choices=[*NAMES, []], metavar='NAME',
                        help=f'{", ".join(NAMES)}; all by default')
    parser.add_argument('--rows', action='store_true', help='print the rows of one benchmark as JSON, measured here')
    options = parser.parse_args(arguments)
    names = options.names or NAMES
    stopping.install()
    if options.rows:
        name, = names
        return figures.print_rows(importlib.import_module(f'benchmarks.{name}').short())
    os.environ['OMP_NUM_THREADS'] = '1'
    benchmarks = {name: ([sys.executable, '-m', 'benchmarks', '--rows', name], LIMIT) for name in names}
    figures.measure_all(benchmarks, figures.machine(threads=1))


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks', lambda: main(sys.argv[1:])))
