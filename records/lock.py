"""
A run folder, an index of photos, a download or a study has one writer at a time. The lock belongs to a process: the
system releases it when that process ends, however it ends, and data workers do not inherit it. Readers take no lock.
"""
import contextlib
import functools
import os
import socket
from pathlib import Path

from utilities import processes, stopping
from utilities.errors import UserError

try:
    import fcntl
except ImportError:                                          # Windows has none
    fcntl = None

NAME = '.lock'


@contextlib.contextmanager
def held(folder, waiting=None):
    """
    Holds the lock of `folder` in the block. If the file system has no locks, prints a note and holds none.

    waiting: None: raises UserError if another process holds it; if a run has several processes, process 0 holds it.
             A text: waits until it is free; prints the text once, unless it is empty.
    """
    if waiting is None and not processes.is_main():
        yield
        return
    path = Path(folder) / NAME
    unlocked = None
    try:
        file, holder = acquire(path)
        while holder and waiting is not None:
            if waiting:
                print(waiting, flush=True)
            waiting = ''
            stopping.sleep(stopping.POLL)
            file, holder = acquire(path)
    except OSError as error:
        unlocked = error.strerror or error
    if unlocked:                     # after `except`: else it would be the context of errors in the block
        note_unlocked(folder, unlocked)
        yield
        return
    if holder:
        raise UserError(f'{folder}: {holder} writes to this folder; wait for it or stop it')
    try:
        yield
    finally:
        path.unlink(missing_ok=True)                         # before others can lock it; the folder itself may be gone
        file.close()


@functools.cache
def note_unlocked(folder, reason):
    """Prints, once, that a folder cannot be locked. reason: of the system, a text."""
    print(f'Note: {folder} cannot be locked ({reason}): make sure that nothing else writes to it.')


def acquire(path):
    """(The open and locked file, None), or (None, the process that holds it). Raises OSError where locks fail."""
    if fcntl is None:
        raise OSError('this platform has no file locks')
    file = open(path, 'a+', encoding='utf-8')
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)              # flock() would be inherited by data workers
    except OSError as error:
        file.seek(0)
        holder = file.read() or 'another process'
        file.close()
        if not isinstance(error, BlockingIOError | PermissionError):
            raise
        return None, holder
    if not is_same_file(path, file):                         # its last holder has just removed it
        file.close()
        return acquire(path)
    with contextlib.suppress(OSError):                       # on a full disk, the lock holds without a name
        file.truncate(0)
        os.write(file.fileno(), f'process {os.getpid()} on {socket.gethostname()}'.encode())
    return file, None


def is_same_file(path, file):
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
