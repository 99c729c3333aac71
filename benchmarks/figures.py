"""Rows of benchmarks with the machine that measured them: as JSON files, and as Markdown tables of several machines."""
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from utilities import files, text_tables
from utilities.errors import UserError
from utilities.machine import processor

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


def write(path, of, rows):
    """
    Writes the machine `of` and the rows to a file. Rows of other benchmarks that the file already has are kept, if they
    are from the same processor and device; else UserError.
    """
    check(path, of)
    measured = {row['benchmark'] for row in rows}
    others = [row for row in read(path)['rows'] if row['benchmark'] not in measured] if Path(path).exists() else []
    files.write_text(path, json.dumps({'machine': of, 'rows': [*others, *rows]}, indent=1) + '\n')


def check(path, of):
    """Raises UserError if the file `path` cannot be written, or has rows of another processor or device."""
    files.require_writable(Path(path), '--json')
    if Path(path).exists():
        before = read(path)['machine']
        if (before['processor'], before['device']) != (of['processor'], of['device']):
            raise UserError(f'--json {path}: has rows of {before["processor"]} {before["device"] or ""}; name another '
                            f'file for {of["processor"]} {of["device"] or ""}')


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
