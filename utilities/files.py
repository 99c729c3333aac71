"""Files that are whole or not there: written beside their place, then moved into it."""
import contextlib
import csv
import os
import re
import zipfile
from pathlib import Path

from utilities.errors import UserError


@contextlib.contextmanager
def atomic(path):
    """
    Yields a temporary path beside `path`, of the same suffix, which takes its place after a block without error.

    Raises UserError where `path` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f'{path} is a folder; give the name of a file')
    temporary = path.with_name(f'.{path.stem}.tmp{path.suffix}')
    try:
        yield temporary
        with open(temporary, 'rb') as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def kind_of(path, error):
    """
    What the file `path` is that torch.load or safetensors did not take, in words. `error`: what they raised; it is not
    shown, since torch advises to load such files without its protection.
    """
    with open(path, 'rb') as file:
        start = file.read(1024)
    if not start:
        return 'an empty file'
    if found := re.search(r'GLOBAL (\S+)', str(error)):
        return f'a pickle of objects other than tensors ({found[1]})'
    if 'TorchScript' in str(error):
        return 'a TorchScript program'
    if start.startswith(b'PK'):
        return 'a zip archive that torch.save did not write' if zipfile.is_zipfile(path) else 'a file that is cut off'
    if start.startswith(b'\x80'):
        return 'a pickle that torch.save did not write, or a damaged one'
    if start.isascii() and b'\0' not in start:
        return 'a text file'
    return 'a file of another format, or a damaged one'


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
