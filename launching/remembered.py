"""The plan of a script as it was last checked, so that --status of an unchanged script needs no torch."""
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

from launching import script
from launching.planned import Planned
from utilities.errors import UserError
from utilities.files import write_text


def of_script(file, only=()):
    """
    The runs that launching.plan.of_script returns, but without secrets, so that they cannot be started.

    The plan is kept in the user's cache folder, one file per script. It is made again if the script's commands, a
    loaded module or a file that a flag names has changed since.
    """
    commands, kept = script.commands(file), place_of(file)
    said = hashlib.sha256(json.dumps([os.getcwd(), commands]).encode()).hexdigest()       # commands may hold secrets
    if (runs := recalled(kept, said)) is None:
        from launching import plan  # imports torch
        runs = plan.of_commands(file, commands)
        with contextlib.suppress(OSError, UserError):         # without a folder for it, the plan is made each time
            remember(kept, said, runs)
    return script.chosen(runs, only, file)


def place_of(file):
    folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'deep_metric_learning' / 'plans'
    return folder / f'{hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:32]}.json'


def remember(kept, said, runs):
    records = [dataclasses.asdict(run) | {'parent': str(run.parent), 'environment': {}} for run in runs]
    modules = {getattr(module, '__file__', None) or '' for module in [*sys.modules.values()]}
    files = {file: stamp(file) for file in sorted({*modules, *texts_in(records)})}
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_text(kept, json.dumps({'said': said, 'files': files, 'runs': records}))


def recalled(kept, said):
    """The Planned runs in the file `kept`; None where it is missing, damaged or no longer holds."""
    try:
        content = json.loads(kept.read_text(encoding='utf-8'))
        if content['said'] == said and all(stamp(file) == then for file, then in content['files'].items()):
            return [Planned(**record | {'parent': Path(record['parent'])}) for record in content['runs']]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def stamp(file):
    """[time of the last change in ns, size in bytes] of a file or folder; None where there is none."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return [found.st_mtime_ns, found.st_size]


def texts_in(value):
    """The strings in a nested value: each may name a file."""
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set().union(*map(texts_in, parts))
