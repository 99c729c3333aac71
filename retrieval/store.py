"""
The files of an index folder. index.json names the other files, with the size and the SHA-256 of each:

    embeddings   float32 [N, D], one row after the other
    photos       N lines of JSON: [path, size of the file in bytes, time of its modification in ns]
    search       faiss's index of the embeddings (search.py), where there is one

Rows are appended at the recorded ends of the files; if a killed process left more there, it is overwritten. All other
changes write new files. index.json is replaced last, atomically, so that the folder is a complete index at any moment.
"""
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from utilities.errors import UserError
from utilities.files import file_hash, write_text, writing

NAME = 'index.json'
VERSION = 3                  # raise it when the format changes
PLAIN, INT8 = 1, 2           # versions of earlier programs: as now, without the file `search`; and int8 codes
KINDS = ('embeddings', 'photos', 'search')


def checksum(content):
    return hashlib.sha256(json.dumps(content | {'sha256': ''}, sort_keys=True).encode()).hexdigest()


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
    if version == INT8:
        raise UserError(f'{file}: an index of int8 codes, which are no longer made; make it again: python '
                        f'Retrieve_Images.py index {content.get("run")} PHOTOS --out NEW_FOLDER --codes SQ8')
    if version == PLAIN:
        files = {kind: file for kind, file in content['files'].items() if kind in KINDS}
        return {'open_set': None} | content | {'version': VERSION, 'codes': '', 'search': {}, 'files': files}
    if version != VERSION:
        raise UserError(f'{file}: not an index of this version of the program; make the index again')
    if content.get('sha256') != checksum(content):
        raise UserError(f'{file}: it was changed since it was written (its SHA-256 differs); make the index again')
    return content


def write(folder, content):
    """Replaces index.json, and removes the files that it does not name."""
    write_text(Path(folder) / NAME, json.dumps(content | {'sha256': checksum(content)}, indent=1) + '\n')
    named = {file['name'] for file in content['files'].values()}
    for kind in (*KINDS, 'cells'):                           # earlier programs wrote cells
        for file in Path(folder).glob(f'{kind}_[0-9]*'):
            if file.name not in named:
                file.unlink()


def put(folder, content, replaced=(), **rows):
    """
    Appends rows, {kind: uint8 array}, to the files; for the kinds in `replaced`, begins new files. content: of
    index.json, perhaps changed. Returns the content that is written to index.json.
    """
    files = {kind: file for kind, file in content['files'].items() if kind not in replaced}
    content = content | {'files': files, 'generation': content['generation'] + 1}
    for kind, data in rows.items():
        file = files.get(kind, {'name': f'{kind}_{content["generation"]}', 'bytes': 0})
        path = Path(folder) / file['name']
        with writing(path), open(path, 'ab') as opened:
            opened.truncate(file['bytes'])
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        files[kind] = {'name': file['name'], 'bytes': file['bytes'] + len(data), 'sha256': file_hash(path)}
    write(folder, content)
    return content


def mapped(folder, file):
    """
    A file that index.json names, uint8 [bytes], mapped into memory, so that it stays readable after it is replaced; for
    None, an empty array. Raises UserError if the file is missing, cut off or changed.
    """
    if file is None:
        return np.empty(0, np.uint8)
    path = Path(folder) / file['name']
    n_bytes = file['bytes']
    if path.name != file['name'] or not path.is_file() or path.stat().st_size < n_bytes:
        raise UserError(f'{path}: missing, or cut off; make the index again')
    data = np.memmap(path, np.uint8, 'c', shape=(n_bytes,)) if n_bytes else np.empty(0, np.uint8)
    if file.get('sha256', '') not in ('', hashlib.sha256(data).hexdigest()):
        raise UserError(f'{path}: it was changed since it was written (its SHA-256 differs); make the index again')
    return np.asarray(data)                                  # torch wants writable memory
