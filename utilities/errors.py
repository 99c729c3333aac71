"""The two kinds of failure that are reported by a sentence instead of a traceback, and the exit codes of scripts."""
import argparse
import contextlib
import difflib
import errno
import os
import re
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

from .stopping import check  # relative: hubconf.py loads this file under another package's name

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE}
SQLITE_NO_ACCESS = ('SQLITE_BUSY', 'SQLITE_CANTOPEN', 'SQLITE_IOERR', 'SQLITE_LOCKED', 'SQLITE_PERM', 'SQLITE_PROTOCOL',
                    'SQLITE_READONLY')
NO_MEMORY = re.compile(
    r".*(MemoryError|out of memory|can't allocate memory|not enough memory|ALLOC_FAILED|bad_alloc).*")
NEEDS_LESS = ('training needs less with a smaller --micro_bs, which keeps the loss, a smaller --bs or --amp bfloat16, '
              'and evaluation with a smaller --eval_bs')
LOST_WORKER = re.compile(r'DataLoader worker \(pid|Pin memory thread exited unexpectedly')
SHARED_MEMORY = re.compile(r'unable to \w+ shared memory|shm_open|/dev/shm')
LONGEST_LINE = 2000                                          # characters of an error that are printed
KEPT = 'Everything up to the last saved epoch is kept.'
# attributes of opt that are no flags: a run sets them when it knows its data and its network
SET_BY_A_RUN = {'device': 'the torch.device of the run', 'n_classes': 'number of training classes',
                'class_names': 'names of the training classes', 'class_counts': 'number of images per training class',
                'superclasses': 'super-classes of the training classes, [n_classes, levels], or None',
                'n_features': 'number of pooled features of the backbone',
                'n_maps': 'number of its feature maps, or None'}


class UserError(Exception):
    """Something the user must change: a flag, a file, the data, a combination. main.py prints it and exits with 2."""

    def __init__(self, message):
        # If it is raised in a data worker, torch puts the worker's traceback before the sentence.
        super().__init__(str(message).rsplit('UserError: ', 1)[-1].strip())


class RunFailed(Exception):
    """A failure of the run itself, such as a loss that is not finite. main.py prints it and exits with 1."""


class WorkerLost(RunFailed):
    """A data worker was ended from outside."""


class OutOfMemory(RunFailed):
    """The memory of a device, or of the machine, does not suffice."""


class Unwritable(OSError):
    """A file cannot be written, since its disk is full or refuses access. Its text is a sentence with its name."""

    def __init__(self, path, cause):
        super().__init__(getattr(cause, 'errno', None), getattr(cause, 'strerror', None) or str(cause), str(path))
        self.is_full = is_full(cause)

    def __str__(self):
        if self.is_full:
            return f'{self.filename}: its disk is full ({self.strerror}); make room, or choose another place'
        return f'{self.filename}: no access ({self.strerror}); allow it, or choose another place'


def number_of(error):
    """The system's number of an error; safetensors has it in the text only. None for other errors."""
    in_text = re.search(r'\(os error (\d+)\)', str(error))
    return int(in_text[1]) if in_text else getattr(error, 'errno', None)


def is_full(error):
    """Whether an error says that no space is left on a disk."""
    return number_of(error) in NO_SPACE or getattr(error, 'sqlite_errorname', '') == 'SQLITE_FULL'


def is_disk_error(error):
    """Whether an error says that a disk is full or refuses access."""
    of_sqlite = getattr(error, 'sqlite_errorname', '').startswith(SQLITE_NO_ACCESS)
    return is_full(error) or number_of(error) in NO_ACCESS or of_sqlite


def causes(error):
    """An error and the errors that caused it: torch.save raises its own error from the original one."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def machine_reason(error, folder):
    """Why a run that writes to `folder` ended with `error`, if the cause is the machine; None for any other cause."""
    if not (Path(folder) / 'config.yaml').exists():
        return f'The run folder {folder} was removed while the run was writing to it.'
    for one in filter(is_disk_error, causes(error)):
        text = getattr(one, 'strerror', None) or one
        place = getattr(one, 'filename', None)
        if not isinstance(place, str | os.PathLike) or Path(place).resolve().is_relative_to(Path(folder).resolve()):
            place = folder
        if is_full(one):
            return f'No space is left to write to {place} ({text}). {KEPT}'
        return f'{place} cannot be {"written to" if place == folder else "accessed"} ({text}). {KEPT}'
    return None


def nearest(name, names, prefix=''):
    """The end of a sentence about an unknown `name`: the most similar of `names`, after `prefix`, if one is similar."""
    close = difflib.get_close_matches(name, names, n=1)
    return f'; did you mean {prefix}{close[0]}?' if close else ''


def choose(table, name, flag):
    """table[name]. For an unknown name, raises UserError with the flag, the value and the choices."""
    if name not in table:
        raise UserError(f'{flag} {name}: unknown; choose from {", ".join(table)}{nearest(name, table)}')
    return table[name]


@contextlib.contextmanager
def undeclared_flags():
    """
    In the block, or the decorated function, reading a flag that parameters.py does not declare is a UserError, and so
    is reading a value of SET_BY_A_RUN before it is set.
    """
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, argparse.Namespace):
            raise
        if error.name == 'epoch':
            raise UserError('opt.epoch is read, which nothing sets here; the epoch is an argument of forward(..., '
                            'epoch) of a loss, __call__(..., epoch) of a miner and start_epoch(epoch)') from error
        if error.name in SET_BY_A_RUN:
            raise UserError(f'opt.{error.name} ({SET_BY_A_RUN[error.name]}) is read, which main.py sets before it '
                            'builds the criterion; a program of your own has to set it, too') from error
        raise undeclared(error.name) from error


def undeclared(name):
    """The UserError for a flag that is read, but not declared."""
    return UserError(f'the flag --{name} is read, which parameters.py does not declare; declare it there: '
                     f"add('--{name}', type=float, default=...)")


@contextlib.contextmanager
def explained(needs_less=NEEDS_LESS):
    """
    In the block, errors of torch that other flags can avoid become errors with an advice: WorkerLost, OutOfMemory, and
    RunFailed for a full shared memory and for a step beyond float32. needs_less: what needs less memory, in words.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if LOST_WORKER.match(str(error)):
            check()                                          # schedulers send SIGTERM to the data workers as well
            raise WorkerLost('A data worker was killed, as the system does where memory runs out; fewer --kernels need '
                             'less.') from None
        if 'converted to type float without overflow' in str(error):
            raise RunFailed('A step of the optimizer is too large for float32 numbers: give a lower --lr.') from None
        if SHARED_MEMORY.search(str(error)):
            raise RunFailed('The shared memory of this machine, /dev/shm, is full, by which data workers hand over '
                            'images: give --kernels 0, or more of it (docker run --shm-size 8g).') from None
        found = NO_MEMORY.search(f'{type(error).__name__}: {error}')
        if found:
            raise OutOfMemory(f'Memory ran out ({found[0][:120].strip()}): {needs_less}.') from None
        raise


@contextlib.contextmanager
def named_flags():
    """
    In the block, or the decorated function, a ValueError whose text begins with a flag is a UserError: files that can
    be copied alone raise it so.
    """
    try:
        yield
    except ValueError as error:
        if not str(error).startswith('--'):
            raise
        raise UserError(str(error)) from None


class Ended(Exception):
    """Request to exit with `code`; the message was already printed."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def printable(text):
    """The text of an error for a terminal: control characters as escapes, long words and lines cut."""
    text = ''.join(letter if letter.isprintable() or letter == '\n' else ascii(letter)[1:-1] for letter in str(text))
    text = re.sub(r'\S{300,}', lambda word: f'{word[0][:120]}...{word[0][-60:]}', text)
    return '\n'.join(line if len(line) <= LONGEST_LINE else f'{line[:LONGEST_LINE]}...' for line in text.split('\n'))


@contextlib.contextmanager
def reported(script):
    """
    Gives the block an object whose `code` is the exit code of the script. The block may set it; by default it is 0. It
    becomes 2 after a UserError, for a path that is too long and where a disk is full or refuses access, 1 after a
    RunFailed and where memory runs out, and 130 after Ctrl-C. The sentence of the error is printed. Any other exception
    keeps its traceback.
    """
    end = SimpleNamespace(code=0)
    needs_less = 'a smaller --bs needs less' if script == 'Retrieve_Images.py' else NEEDS_LESS
    try:
        with explained(needs_less):
            yield end
    except UserError as error:
        print(f'{script}: error: {printable(error)}', file=sys.stderr)
        end.code = 2
    except RunFailed as error:
        print(f'{script}: the run failed: {printable(error)}', file=sys.stderr)
        end.code = 1
    except Ended as error:
        end.code = error.code
    except (OSError, sqlite3.OperationalError) as error:
        if getattr(error, 'errno', None) == errno.ENAMETOOLONG:
            error = f'{error.filename}: {error.strerror}; shorten it'
        elif not is_disk_error(error):
            raise
        elif not isinstance(error, Unwritable):
            error = Unwritable(getattr(error, 'filename', None) or 'an output', error)
        print(f'{script}: error: {error}', file=sys.stderr)
        end.code = 2
    except KeyboardInterrupt:
        end.code = 130


def exit_code(script, work):
    """Calls work() and returns the exit code of the script, as in reported(): the result of work(), or 0 for None."""
    with reported(script) as end:
        end.code = work() or 0
    return end.code
