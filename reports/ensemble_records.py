"""
The records of an ensemble, in a folder that, like a run's, is created in one move and never overwritten:
ensemble.yaml, log.csv, folds.csv, records.sqlite.
"""
import contextlib
import shutil
import sqlite3
import time
import uuid
from pathlib import Path

import pandas

from records import columns, run_folder
from utilities.errors import UserError
from utilities.files import read_yaml

SETTINGS = 'ensemble.yaml'


def find(folder, identity):
    """The folder among `folder`, folder_1 ... that records the evaluation with this identity; None if there is none."""
    for path in run_folder.places(Path(folder)):
        if not path.exists():
            return None
        try:
            recorded = read_yaml((path / SETTINGS).read_text(encoding='utf-8'))['identity']
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f'{path}: not the records of an ensemble ({SETTINGS} is not there or broken); move it, or '
                            'choose another --save_path') from None
        if recorded == identity:
            return path


def read(folder):
    """The tables log.csv and folds.csv, with all digits; nan where there is no value."""
    tables = []
    for name in ('log.csv', 'folds.csv'):
        try:
            table = pandas.read_csv(folder / name)
            if table.empty:
                raise ValueError
            tables.append(table.astype(dict.fromkeys(filter(is_score, table), float)))
        except (OSError, ValueError):
            raise UserError(f'{folder / name}: missing or damaged; delete the folder and start again to '
                            'evaluate the ensemble') from None
    return tables


def is_score(column):
    """Whether a column holds a metric, or its standard error over folds."""
    return columns.parse(column.removeprefix(columns.SEM)) is not None


def write(folder, settings, log, folds):
    """
    Args:
        folder:   the folder to create; _1, _2 ... is appended if the name is taken.
        settings: the content of ensemble.yaml, with the 'identity' that find() looks for.
        log:      rows, one per form and state of the networks: {'form', 'trained_status', ..., 'test_<metric>': float}.
        folds:    rows, one per fold and state of the networks.

    Returns the folder. Raises UserError where it cannot be made.
    """
    folder = Path(folder)
    unfinished = folder.with_name(f'.{folder.name}.{uuid.uuid4().hex[:8]}')      # in containers, process ids repeat
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise UserError(f'--save_path: {folder.parent}: no folder can be made there ({error.strerror})') from None
    try:
        run_folder.write_yaml(unfinished / SETTINGS, settings | {
            'versions': run_folder.versions(), 'git_commit': run_folder.git_commit(),
            'written': time.strftime('%Y-%m-%d %H:%M:%S')})
        with contextlib.closing(sqlite3.connect(unfinished / 'records.sqlite')) as database:
            for name, rows in (('log', log), ('folds', folds)):
                table = pandas.DataFrame(rows)
                table.to_csv(unfinished / f'{name}.csv', index=False, lineterminator='\n')
                table.to_sql(name, database, index=False, dtype=dict.fromkeys(filter(is_score, table), 'REAL'))
        return run_folder.settle(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
