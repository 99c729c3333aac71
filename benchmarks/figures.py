"""Rows of benchmarks as a Markdown table, with the machine that measured them."""
import os
import platform
from importlib.metadata import PackageNotFoundError, version

from utilities import text_tables
from utilities.machine import processor

PEERS = ('torch', 'torchvision', 'numpy', 'faiss-cpu', 'pytorch-metric-learning')
SETTINGS = ('OPENBLAS_CORETYPE', 'ATEN_CPU_CAPABILITY')   # the environment's choice of the kernels of numpy and torch


def machine(threads, device=None):
    """What the rows depend on, in one line: processor, device, cores, threads, versions, and settings."""
    versions = [f'Python {platform.python_version()}', *(f'{name} {version_of(name)}' for name in PEERS)]
    settings = [f'{name}={os.environ[name]}' for name in SETTINGS if os.environ.get(name)]
    parts = [processor(), *([device] if device else []), f'{os.cpu_count()} cores', f'threads: {threads}']
    return '; '.join(', '.join(part) for part in (parts, versions, settings) if part)


def version_of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return 'missing'


def markdown(rows):
    """The table of Rows, with their ratios, and whether these meet the targets."""
    return text_tables.markdown(['job; peer', 'ours', 'peer', 'ratio', 'target', 'met'], [
        [row.job, f'{row.ours:.3g}', f'{row.peer:.3g}', f'{row.ours / row.peer:.2f}', f'{row.target:.2f}',
         'yes' if row.ours / row.peer <= row.target else 'no'] for row in rows])
