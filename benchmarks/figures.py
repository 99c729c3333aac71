"""Measures benchmarks in processes of their own; their rows as JSON files, and as tables of one or several machines."""
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import Row
from utilities import files, stopping, text_tables
from utilities.errors import RunFailed, UserError
from utilities.machine import processor

ROOT = Path(__file__).parents[1]
PEERS = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'pytorch-metric-learning')
KEYS = ('benchmark', 'job', 'ours', 'peer', 'ratio', 'target', 'met')
SETTINGS = ('OPENBLAS_CORETYPE', 'ATEN_CPU_CAPABILITY')   # the environment's choice of the kernels of numpy and torch


def machine(threads, device=None):
    """What the rows depend on: processor, device, cores, threads, versions, and settings; None for what is not set."""
    versions = {'Python': platform.python_version()}
    for name in PEERS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {'processor': processor(), 'device': device, 'cores': os.cpu_count(), 'threads': threads,
            'versions': versions, 'settings': {name: os.environ.get(name) for name in SETTINGS}}


def described(of):
    """A machine in one line."""
    versions = ', '.join(f'{name} {number or "missing"}' for name, number in of['versions'].items())
    settings = ', '.join(f'{name}={value}' for name, value in of['settings'].items() if value)
    return (f'{of["processor"]}{", " + of["device"] if of["device"] else ""}, {of["cores"]} cores, threads: '
            f'{of["threads"]}; {versions}{"; " + settings if settings else ""}')


def as_record(benchmark, row):
    """A Row as a dictionary, for JSON."""
    ratio = row.ours / row.peer
    return {'benchmark': benchmark, 'job': row.job, 'ours': row.ours, 'peer': row.peer, 'ratio': ratio,
            'target': row.target, 'met': ratio <= row.target}


def read(path):
    """{'machine': see machine(), 'rows': [see as_record()]}, from a file of --json."""
    try:
        found = json.loads(Path(path).read_text(encoding='utf-8'))
        described(found['machine'])
        return {'machine': found['machine'], 'rows': [{key: row[key] for key in KEYS} for row in found['rows']]}
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path}: not a file of python -m benchmarks --json ({error!r})') from error


def print_rows(rows):
    """Prints each Row as a line of JSON as soon as it is measured, for the process that has started this one."""
    for row in rows:
        print(json.dumps(row), flush=True)


def rows_of(command, seconds):
    """
    Yields the Rows that a command prints. Raises RunFailed if it fails or exceeds these seconds, and UserError if it
    ends with code 2. It is ended together with all processes that it has started.
    """
    code = None
    end = time.monotonic() + seconds
    with tempfile.NamedTemporaryFile('w') as out, open(out.name) as lines:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, process_group=0)
        try:
            while code is None and time.monotonic() < end:
                stopping.sleep(stopping.POLL)
                code = process.poll()
                yield from (Row(*json.loads(line)) for line in lines.readlines() if line.startswith('["'))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code is None:
        raise RunFailed(f'ended after {seconds} s')
    if code:
        raise (UserError if code == 2 else RunFailed)(f'its process ended with exit code {code}')


def measure_all(benchmarks, of, path=None):
    """
    Prints the table of benchmarks, {name: (the command that prints its Rows, its limit in seconds)}, on the machine
    `of`. Their rows are written to the file `path`, if there is one, as soon as they are measured.

    Raises RunFailed in the end if a benchmark was not complete; the others are measured all the same.
    """
    if path:
        files.require_writable(path, '--json')
    rows = []
    incomplete = []
    began = time.monotonic()
    for name, (command, seconds) in benchmarks.items():
        print(f'[{time.monotonic() - began:.0f} s] {name}', file=sys.stderr, flush=True)
        try:
            for row in rows_of(command, seconds):
                rows.append(as_record(name, row))
                print(f'  {row.job}: {row.ours / row.peer:.2f}', file=sys.stderr, flush=True)
                if path:
                    files.write_text(path, json.dumps({'machine': of, 'rows': rows}, indent=1) + '\n')
        except UserError:
            print('  not measured', file=sys.stderr, flush=True)
        except RunFailed as error:
            print(f'  not complete: {error}', file=sys.stderr, flush=True)
            incomplete.append(name)
    print_table([{'machine': of, 'rows': rows}])
    if incomplete:
        raise RunFailed(f'{", ".join(incomplete)}: not complete')


def print_table(found, names=()):
    """Prints the machines and the table of results of read(). names: of their benchmarks; all if none is given."""
    for one in found:
        print(f'{described(one["machine"])}. Medians, in seconds where the job names no other unit.')
        one['rows'] = [row for row in one['rows'] if not names or row['benchmark'] in names]
    print(f'\n{markdown(found)}')


def markdown(found):
    """
    The table of one machine, with seconds, or of several, with the ratios of each, in bold where they miss the target.
    A target is met if no machine misses it. found: results of read().
    """
    if len(found) == 1:
        return text_tables.markdown(['job; peer', 'ours', 'peer', 'ratio', 'target', 'met'],
                     [[row['job'], f'{row["ours"]:.3g}', f'{row["peer"]:.3g}', f'{row["ratio"]:.2f}',
                       f'{row["target"]:.2f}', 'yes' if row['met'] else 'no'] for row in found[0]['rows']])
    of_machine = [{(row['benchmark'], row['job'], row['target']): row for row in one['rows']} for one in found]
    order = list(dict.fromkeys(row['benchmark'] for one in found for row in one['rows']))
    keys = sorted(dict.fromkeys(key for rows in of_machine for key in rows), key=lambda key: order.index(key[0]))
    heads = [one['machine']['device'] or one['machine']['processor'] for one in found]
    return text_tables.markdown(['job; peer', *heads, 'target', 'met'], [
        [key[1], *(ratio_text(rows[key]) if key in rows else '' for rows in of_machine), f'{key[2]:.2f}',
         'yes' if all(rows[key]['met'] for rows in of_machine if key in rows) else 'no'] for key in keys])


def ratio_text(row):
    """The ratio of a record, in bold if it misses the target."""
    return f'{row["ratio"]:.2f}' if row['met'] else f'**{row["ratio"]:.2f}**'
