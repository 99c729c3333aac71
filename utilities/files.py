"""Atomic writes: a file is written beside its path, then moved onto it."""
import contextlib
import csv
import glob
import os
import shutil
import time
from pathlib import Path

from utilities.errors import UserError

STALE = 600                                                  # seconds without a change


@contextlib.contextmanager
def atomic(path):
    """
    Yields a temporary path beside `path`, of the same suffix, which is moved onto `path` after a block without error.

    Raises UserError where `path` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f'{path} is a folder; give the name of a file')
    temporary = path.with_name(f'.{path.stem}.{os.getpid()}.tmp{path.suffix}')      # two processes may write one file
    try:
        yield temporary
        with open(temporary, 'rb') as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(folder):
    """Removes what processes that were killed in atomic() have left in a folder that nothing else writes to."""
    for pattern in ('.*.tmp*', 'plots/.*.tmp*'):
        for file in Path(folder).glob(pattern):
            file.unlink(missing_ok=True)


def remove_stale(folder):
    """
    Removes the unfinished folders beside `folder`, .<name>.<anything>, of processes that were killed while they made
    it. Those of the last minutes may be of processes that are still at it, here or on another machine.
    """
    for old in folder.parent.glob(f'.{glob.escape(folder.name)}.*'):
        if old.is_dir() and old.stat().st_mtime < time.time() - STALE:
            shutil.rmtree(old, ignore_errors=True)


def write_text(path, text):
    """Writes `text` to `path` as UTF-8; a reader, or a process killed in between, sees the old file or the new one."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding='utf-8')


def require_folder(file, flag):
    """Raises UserError where the folder of a file that `flag` names is not there, or the file is a folder."""
    if not Path(file).parent.is_dir():
        raise UserError(f'{flag} {file}: there is no folder {Path(file).parent}')
    if Path(file).is_dir():
        raise UserError(f'{flag} {file}: it is a folder; give the name of a file')


def read_csv(file):
    if not file.exists():
        return []
    with open(file, newline='', encoding='utf-8') as opened:
        return list(csv.DictReader(opened))


def write_csv(file, rows):
    """Writes all rows anew, with all their columns in the order of first appearance; without rows there is no file."""
    if not rows:
        file.unlink(missing_ok=True)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic(file) as temporary, open(temporary, 'w', newline='', encoding='utf-8') as opened:
        writer = csv.DictWriter(opened, columns, restval='', lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
