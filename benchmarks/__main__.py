"""
Short forms of all benchmarks, as one table. Each runs in a process of its own, with one thread, for at most LIMIT
seconds. They run one after the other, since two at once would slow each other down. A line on the standard error says
when one ends and how long it took.

python -m benchmarks [NAME ...] [--json FILE]
python -m benchmarks [NAME ...] --table FILE [FILE ...]    the table from files of --json: measures nothing
"""
import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import benchmarks
from benchmarks import Row, figures
from utilities import errors

LIMIT = 240                                               # seconds of wall-clock time for one benchmark
FOLDER = Path(benchmarks.__file__).parent
NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)
         if not module.ispkg and module.name != '__main__'
         and 'def short()' in (FOLDER / f'{module.name}.py').read_text(encoding='utf-8')]


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
    parser.add_argument('--json', metavar='FILE', help='also write the rows and the machine to FILE; rows of other '
                        'benchmarks in FILE are kept')
    parser.add_argument('--table', nargs='+', metavar='FILE', help='print the table of these files of --json, ratios '
                        'side by side if there are several; measure nothing')
    options = parser.parse_args(arguments)
    if options.rows:
        return print_rows(*options.names)
    if options.table:
        return print_table(options.names, options.table)
    os.environ['OMP_NUM_THREADS'] = '1'
    names, found, began, machine = options.names or NAMES, {}, time.monotonic(), figures.machine(threads=1)
    if options.json:
        figures.check(options.json, machine)
    for name in names:
        rows, seconds, end = found[name] = run(name)
        print(f'[{len(found)}/{len(names)}] {name}: {end}, {len(rows)} rows in {seconds:.0f} s; '
              f'{time.monotonic() - began:.0f} s since the start', file=sys.stderr, flush=True)
        if options.json:
            figures.write(options.json, machine, [figures.as_record(name, row) for row in rows])
    rows = [figures.as_record(name, row) for name in names for row in found[name][0]]
    print(f'{figures.described(machine)}. Medians, in seconds of processor time where the job names no other unit.\n')
    print(figures.markdown([{'machine': machine, 'rows': rows}]))
    return int(any(end != 'complete' for _, _, end in found.values()))


def print_table(names, paths):
    """Prints the rows of these benchmarks, of all if none is named, from files of --json."""
    found = [figures.read(path) for path in paths]
    for one in found:
        print(f'{figures.described(one["machine"])}.')
        one['rows'] = [row for row in one['rows'] if not names or row['benchmark'] in names]
    print(f'\n{figures.markdown(found)}')


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks', lambda: main(sys.argv[1:])))
