"""
Atomic writes: a file is written under a temporary name and then renamed, so that it is never incomplete. Files in CSV,
and YAML texts of plain values.
"""
import contextlib
import csv
import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path

import yaml

from utilities.errors import Unwritable, UserError, causes, is_disk_error

OTHER_OBJECTS = 'a pickle of objects other than tensors'        # how describe_kind() begins for such a file
PLAIN_TAGS = {f'tag:yaml.org,2002:{name}' for name in ('str', 'int', 'float', 'bool', 'null', 'seq', 'map')}
BLOCK = 4096                                                 # bytes that are written to see whether there is room


@contextlib.contextmanager
def atomic(path):
    """
    Yields a temporary path with the suffix of `path`, in the same folder. It is renamed to `path` if the block ends
    without an exception. The target of a link is replaced, and not the link; pipes and devices are written into.

    Raises UserError if `path` is a folder or a disk, and Unwritable where the disk is full or refuses access.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder, writing(path):
            temporary = Path(folder) / Path(path).name
            yield temporary
            with open(temporary, 'rb') as source, open(path, 'wb') as stream:
                shutil.copyfileobj(source, stream)
        return
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    try:
        with writing(path):
            yield temporary
            with open(temporary, 'rb') as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_stream(path):
    """Whether `path` is a pipe, a character device or /dev/stdout. Raises UserError for what is no output at all."""
    try:
        mode = os.stat(path).st_mode
    except OSError:                                          # it does not exist, or the writer says what is wrong
        return False
    if stat.S_ISDIR(mode):
        raise UserError(f'{path} is a folder; give the name of a file')
    if stat.S_ISBLK(mode):
        raise UserError(f'{path} is a disk; give the name of a file')
    is_of_process = os.path.abspath(path).startswith(('/dev/std', '/dev/fd/', '/proc/'))       # open, maybe as a file
    return not stat.S_ISREG(mode) or is_of_process


@contextlib.contextmanager
def writing(path):
    """In the block, which writes `path`, an error of a disk that is full or refuses access becomes Unwritable."""
    try:
        yield
    except Exception as error:  # libraries raise their own errors from the system's errors
        cause = next(filter(is_disk_error, causes(error)), None)
        if cause:
            raise Unwritable(path, cause) from error
        raise


def temporary_path(path):
    return path.with_name(f'.{path.stem}.{os.getpid()}.tmp{path.suffix}')      # two processes may write one file


def remove_temporary(folder):
    """Removes temporary files of killed processes (see atomic) from a folder that no other process writes to."""
    for pattern in ('.*.tmp*', 'plots/.*.tmp*'):
        for file in Path(folder).glob(pattern):
            file.unlink(missing_ok=True)


def cache_folder():
    """The folder for files that are computed once for all runs of a user; it may not exist yet."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'deep_metric_learning'


def write_text(path, text):
    """Writes `text` to `path` as UTF-8, atomically: at any moment the file has either the old or the new content."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding='utf-8')


def require_writable(file, flag):
    """
    Raises UserError if the file that `flag` names cannot be written: there is no such folder, it is a folder, the disk
    is full or refuses access. Called before the work whose result the file will hold.
    """
    file = Path(file)
    try:
        if not file.parent.is_dir():
            raise UserError(f'{flag} {file}: there is no folder {file.parent}')
        if file.is_dir():
            raise UserError(f'{flag} {file}: it is a folder; give the name of a file')
        if is_stream(file):
            return
        try_to_write(Path(os.path.realpath(file)))
    except OSError as error:
        raise UserError(f'{flag} {file}: it cannot be written ({error.strerror}); choose another place') from None


def require_writable_folder(folder, flag):
    """Raises UserError if nothing can be written into the folder that `flag` names, which may not exist yet."""
    folder = Path(folder)
    try:
        above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not above.is_dir():
            file = 'it' if above == folder else above
            raise UserError(f'{flag} {folder}: {file} is a file; give a folder')
        try_to_write(above / 'file')
    except OSError as error:
        raise UserError(f'{flag} {folder}: nothing can be written there ({error.strerror}); choose another '
                        'folder') from None


def try_to_write(file):
    """Raises OSError where BLOCK bytes cannot be written beside `file`, which stays as it is."""
    temporary = temporary_path(file)
    try:
        temporary.write_bytes(bytes(BLOCK))
    finally:
        temporary.unlink(missing_ok=True)


def describe_kind(path, error):
    """
    Says what kind of file `path` is, which torch.load or safetensors could not read. error: the exception they raised;
    its text is not shown, since torch's advice in it is to load such files without protection.
    """
    with open(path, 'rb') as file:
        start = file.read(1024)
    if not start:
        return 'an empty file'
    found = re.search(r'GLOBAL (\S+)', str(error))
    if found:
        return f'{OTHER_OBJECTS} ({found[1]})'
    if 'TorchScript' in str(error):
        return 'a TorchScript program'
    if start.startswith(b'PK'):
        return 'a zip archive that torch.save did not write' if zipfile.is_zipfile(path) else 'a file that is cut off'
    if start.startswith(b'\x80'):
        return 'a pickle that torch.save did not write, or a damaged one'
    if start.isascii() and b'\0' not in start:
        return 'a text file'
    return 'a file of another format, or a damaged one'


def file_hash(file, algorithm='sha256'):
    """The hexadecimal hash of a file's content."""
    with open(file, 'rb') as opened:
        return hashlib.file_digest(opened, algorithm).hexdigest()


def read_csv(file):
    """The rows of a CSV file, as csv.DictReader gives them; [] without the file. Raises UserError for another file."""
    if not file.exists():
        return []
    try:
        with open(file, newline='', encoding='utf-8') as opened:
            return list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{file}: damaged, or not a CSV file in UTF-8 ({getattr(error, "strerror", None) or error}); '
                        'copy it again') from None


def write_csv(file, rows, columns=()):
    """
    Writes all rows atomically: first the given columns, then all others in the order in which they appear. Without rows
    and columns, deletes the file.
    """
    if not rows and not columns:
        if not is_stream(file):
            Path(file).unlink(missing_ok=True)
        return
    columns = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    with atomic(file) as temporary, open(temporary, 'w', newline='', encoding='utf-8') as opened:
        writer = csv.DictWriter(opened, columns, restval='', lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


class YamlLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):            # ten times as fast, where PyYAML has it
    """Reads plain values only, and dates as strings, as the command line does."""
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != 'tag:yaml.org,2002:timestamp']
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    yaml_constructors = {tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items()
                         if tag is None or tag in PLAIN_TAGS}


class UniqueKeys(YamlLoader):
    """Refuses a mapping in which a key occurs twice."""

    def construct_mapping(self, node, deep=False):
        found = set()
        for key, _ in node.value:
            if str(key.value) in found:
                raise ValueError(f'line {key.start_mark.line + 1}: the key {key.value} occurs twice')
            found.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(text, loader=YamlLoader):
    """A YAML text of plain values -> its content. Raises ValueError, in one line, for other texts."""
    try:
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, KeyError, IndexError, TypeError) as error:       # `!!int abc` and such
        raise ValueError(' '.join(str(error).split())[:200]) from None
