"""Files that are whole or not there: written beside their place, then moved into it."""
import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def atomic(path):
    """Yields a temporary path beside `path`, of the same suffix, which takes its place after a block without error."""
    path = Path(path)
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
