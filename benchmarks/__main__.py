"""
Short forms of all benchmarks, as one table. Each runs in a process of its own, with one thread.

python -m benchmarks [NAME ...]
"""
import os
import pkgutil
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context

import benchmarks
from benchmarks.measure import rows_of, table

NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith('_')]
PEERS = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'pytorch-metric-learning')


def cells(row):
    ratio = row.ours / row.peer
    return [row.job, f'{row.ours:.3g}', f'{row.peer:.3g}', f'{ratio:.2f}', f'{row.target:.2f}',
            'yes' if ratio <= row.target else 'no']


def main(names):
    if unknown := set(names) - set(NAMES):
        sys.exit(f'benchmarks: {", ".join(sorted(unknown))}: unknown; choose from {", ".join(NAMES)}')
    os.environ['OMP_NUM_THREADS'] = '1'
    began, rows = time.monotonic(), []
    with ProcessPoolExecutor(1, get_context('spawn'), max_tasks_per_child=1) as pool:
        for name, found in zip(names or NAMES, pool.map(rows_of, names or NAMES), strict=True):
            rows += found
            print(f'{name}: {len(found)} rows, {time.monotonic() - began:.0f} s since the start', file=sys.stderr)
    print(f'{platform.machine()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, '
          + ', '.join(f'{name} {version(name)}' for name in PEERS)
          + '. Medians, in seconds of processor time where the job names no other unit.\n')
    print(table(['job', 'ours', 'peer', 'ratio', 'target', 'met'], [cells(row) for row in rows]))


if __name__ == '__main__':
    main(sys.argv[1:])
