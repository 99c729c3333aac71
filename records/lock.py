"""
A run folder, or an index of photos, has one writer at a time. The lock belongs to the main process: the system releases
it when that process ends, however it ends, and data workers do not inherit it. Readers take no lock.
"""
import contextlib
import os
import socket
from pathlib import Path

from utilities import processes
from utilities.errors import UserError

try:
    import fcntl
except ImportError:                                          # Windows has none
    fcntl = None

NAME = '.lock'


@contextlib.contextmanager
def held(folder):
    """
    Holds the lock of `folder` in the block; if a run has several processes, process 0 holds it. Raises UserError where
    another run holds it. If the file system has no locks, prints a note and holds none.
    """
    if not processes.is_main():
        yield
        return
    path = Path(folder) / NAME
    try:
        file = acquire(path)
    except OSError as error:
        print(f'Note: {folder} cannot be locked ({error.strerror or error}): make sure that nothing else writes to it.')
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)                         # before others can lock it; the folder itself may be gone
        file.close()


def acquire(path):
    """Opens and locks the file. Raises UserError where another process holds the lock, OSError where locks fail."""
    if fcntl is None:
        raise OSError('this platform has no file locks')
    while True:
        file = open(path, 'a+', encoding='utf-8')
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)          # flock() would be inherited by data workers
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read() or 'another process'
            file.close()
            raise UserError(f'{path.parent}: {holder} writes to this folder; wait for it or stop it') from None
        except OSError:
            file.close()
            raise
        if is_same_file(path, file):                         # else its last holder has just removed it
            with contextlib.suppress(OSError):               # on a full disk, the lock holds without a name
                file.truncate(0)
                os.write(file.fileno(), f'process {os.getpid()} on {socket.gethostname()}'.encode())
            return file
        file.close()


def is_same_file(path, file):
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
