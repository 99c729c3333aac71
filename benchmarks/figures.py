"""The table of benchmarks.gpu: measures its parts in processes of their own, and prints their rows."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from records.run_folder import versions
from utilities import stopping
from utilities.errors import RunFailed, UserError
from utilities.text_tables import markdown

ROOT = Path(__file__).parents[1]
PEERS = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'pytorch-metric-learning')


class Row(NamedTuple):
    """
    A line of the table: ours should take at most `target` times as much as the peer.

    job:    the measured function, its sizes, and the peer.
    ours:   median, in seconds unless the job names another unit; the smaller the better.
    peer:   the same for the peer, measured in turn with ours.
    target: the largest ratio ours / peer that meets the target.
    """
    job: str
    ours: float
    peer: float
    target: float


def machine(device):
    """The machine and the versions that rows depend on, in one line. device: the name of the GPU, or None."""
    found = versions()
    parts = [found['processor'], *([device] if device else []), f'{os.cpu_count()} cores',
             f'threads: {found["threads"]}', f'Python {found["python"]}']
    return ', '.join(parts + [f'{name} {found.get(name, "missing")}' for name in PEERS])


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
        kind = UserError if code == 2 else RunFailed
        raise kind(f'its process ended with exit code {code}')


def measure_all(benchmarks, of):
    """
    Prints the table of benchmarks, {name: (the command that prints its Rows, its limit in seconds)}, on the machine
    `of`; each row also on the standard error, as soon as it is measured.

    Raises RunFailed in the end if a benchmark was not complete; the others are measured all the same.
    """
    rows = []
    incomplete = []
    began = time.monotonic()
    for name, (command, seconds) in benchmarks.items():
        print(f'[{time.monotonic() - began:.0f} s] {name}', file=sys.stderr, flush=True)
        try:
            for row in rows_of(command, seconds):
                rows.append(row)
                print(f'  {" | ".join(cells(row))}', file=sys.stderr, flush=True)
        except UserError:
            print('  not measured', file=sys.stderr, flush=True)
        except RunFailed as error:
            print(f'  not complete: {error}', file=sys.stderr, flush=True)
            incomplete.append(name)
    print(f'{of}. Medians, in seconds where the job names no other unit.\n')
    print(markdown(['job; peer', 'ours', 'peer', 'ratio', 'target', 'met'], map(cells, rows)))
    if incomplete:
        raise RunFailed(f'{", ".join(incomplete)}: not complete')


def cells(row):
    ratio = row.ours / row.peer
    return [row.job, f'{row.ours:.3g}', f'{row.peer:.3g}', f'{ratio:.2f}', f'{row.target:.2f}',
            'yes' if ratio <= row.target else 'no']
