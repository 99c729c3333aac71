"""
The files of an index folder. index.json names the other files, with the number of bytes of each:

    embeddings   float32 [N, D], one row after the other; or codes, uint8 [N, D + 4] (retrieval.codes.to_int8)
    photos       N lines of JSON: [path, size of the file in bytes, time of its modification in ns]
    centroids, cells   float32 [C, D] and int32 [N], of an inverted file (search.py), where there is one

Rows are appended at the recorded ends of the files; if a killed process left more there, it is overwritten. All other
changes write new files. index.json is replaced last, atomically, so that the folder is a complete index at any moment.
"""
import functools
import json
import os
import sys
from pathlib import Path

import numpy as np

from retrieval import search
from utilities.errors import UserError
from utilities.files import write_text, writing

NAME = 'index.json'
VERSION = 1                  # raise it when the format changes
WITH_CODES = 2               # the version of an index of codes, which has the key `codes`
KINDS = ('embeddings', 'photos', 'centroids', 'cells')


def is_count(value):
    return type(value) is int and 0 <= value <= sys.maxsize


def has(value, **forms):
    """Whether `value` is a dict with these keys, and each of their values has the form that a function says."""
    return isinstance(value, dict) and all(name in value and fits(value[name]) for name, fits in forms.items())


def is_fraction(value):
    return type(value) in (int, float) and 0 <= value <= 1


def is_file(value):
    return has(value, name=lambda name: isinstance(name, str), bytes=is_count)


# the form that each entry of index.json must have; it may have `open_set` and `codes`, too
FORMS = {
    **dict.fromkeys(('run', 'network_id'), lambda value: isinstance(value, str)),
    'settings': has,
    **dict.fromkeys(('generation', 'n_images'), is_count),
    'dim': lambda value: value is None or is_count(value) and value > 0,
    'recall': is_fraction,
    'search': functools.partial(has, n_cells=is_count, n_visited=is_count, recall=is_fraction, n_images=is_count),
    'files': lambda value: has(value) and all(name in KINDS and is_file(file) for name, file in value.items()),
}
KEYS = FORMS.keys()


def create(folder, network, recall, open_set=None, codes='float32'):
    """
    Makes an empty index for the embeddings of a loading.Network, which are stored as they are (float32), or as codes
    (int8). open_set: the thresholds of unknown.py, or None. Raises UserError where it cannot.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{folder}: no folder can be made there ({error.strerror})') from None
    version = {'version': VERSION} if codes == 'float32' else {'version': WITH_CODES, 'codes': codes}
    thresholds = {'open_set': open_set} if open_set else {}
    write(folder, version | thresholds | {
        'run': os.path.abspath(network.source), 'network_id': network.id, 'settings': network.settings, 'generation': 0,
        'n_images': 0, 'dim': None, 'recall': recall, 'search': search.EXACT, 'files': {}})


def read(folder):
    """The content of index.json. Raises UserError if it is missing, damaged or of another version."""
    file = Path(folder) / NAME
    try:
        content = json.loads(file.read_text(encoding='utf-8'))
    except OSError as error:
        raise UserError(f'{folder}: not an index: {file}: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise UserError(f'{file}: damaged ({error}); make the index again') from None
    version = content.get('version') if isinstance(content, dict) else None
    keys = KEYS | ({'codes'} if version == WITH_CODES else set())
    if version not in (VERSION, WITH_CODES) or not keys <= content.keys():
        raise UserError(f'{file}: not an index of this version of the program; make the index again')
    wrong = [name for name, fits in FORMS.items() if not fits(content[name])]
    if wrong:
        raise UserError(f'{file}: damaged ({", ".join(wrong)}); make the index again')
    return content


def stamp(folder):
    """What changes whenever index.json is written or replaced, also by an index of the same size; None without it."""
    try:
        status = (Path(folder) / NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def write(folder, content):
    """Replaces index.json, and removes the files of earlier generations."""
    write_text(Path(folder) / NAME, json.dumps(content, indent=1) + '\n')
    named = {file['name'] for file in content['files'].values()}
    for kind in KINDS:
        for file in Path(folder).glob(f'{kind}_[0-9]*'):
            if file.name not in named:
                file.unlink()


def append(folder, content, n_images, **rows):
    """
    Adds the rows of `n_images` images to the files, {kind: bytes or uint8 array}. content: index.json's, possibly with
    changes. Returns the content that is written.
    """
    files = dict(content['files'])
    for kind, data in rows.items():
        file = files.get(kind, {'name': f'{kind}_{content["generation"]}', 'bytes': 0})
        path = Path(folder) / file['name']
        with writing(path), open(path, 'ab') as opened:
            opened.truncate(file['bytes'])
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        files[kind] = file | {'bytes': file['bytes'] + len(data)}
    content = content | {'files': files, 'n_images': content['n_images'] + n_images}
    write(folder, content)
    return content


def replace(folder, content, n_images, **rows):
    """As append(), but with new files of these kinds instead of the old ones; files of other kinds stay."""
    kept = {kind: file for kind, file in content['files'].items() if kind not in rows}
    return append(folder, content | {'files': kept, 'n_images': 0, 'generation': content['generation'] + 1}, n_images,
                  **rows)


def load(folder, content):
    """
    {kind: uint8 [bytes]} of all KINDS. The files are mapped into memory, so that they remain readable after they are
    replaced. Raises UserError where a file is missing or cut off.
    """
    return {kind: mapped(folder, content['files'].get(kind)) for kind in KINDS}


def mapped(folder, file):
    """
    Maps a file of index.json into memory: uint8 [bytes]; an empty array for None. Raises UserError where the file is
    missing or too short.
    """
    if file is None or not file['bytes']:
        return np.empty(0, np.uint8)
    path = Path(folder) / file['name']
    if path.name != file['name'] or not path.is_file() or path.stat().st_size < file['bytes']:
        raise UserError(f'{path}: missing, or cut off; make the index again')
    return np.asarray(np.memmap(path, np.uint8, 'c', shape=(file['bytes'],)))      # torch wants writable memory
