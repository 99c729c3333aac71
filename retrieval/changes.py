"""Makes an index, and adds images to it or removes them. A kill at any moment leaves a complete index."""
import json
import os
import time
from pathlib import Path

import numpy as np

from datasets import decoding
from records import lock
from retrieval import loading, search, store, unknown
from retrieval.codes import to_int8
from retrieval.index import Index
from utilities.errors import RunFailed, UserError
from utilities.files import remove_temporary, require_writable, write_text

SECONDS = 10                 # seconds of embedding that a kill can lose
GROWTH = 2                   # the search of a large index is chosen again when the index has grown by this factor
UNREADABLE = 'unreadable.txt'


def create(folder, network, recall=0.95, threshold=None, codes='float32'):
    """
    Makes an index for the embeddings of `network`, if it does not exist yet. Raises UserError if the folder is
    something else, or an index made by another network.

    recall: for search.LARGE images or more, the fraction of the exact ten nearest that an approximate search must find;
            with 1, search is exact. A change of an existing index takes effect in the next add().
    threshold: None: the thresholds of the network's run, if it has some; or the similarity below which a query is
            unknown; or 'none': no query is unknown.
    codes:  float32, the embeddings themselves, or int8, codes of about a quarter of their size.
    """
    folder = Path(folder)
    open_set = network.open_set if threshold is None else None if threshold == 'none' else unknown.by_hand(threshold)
    if (folder / store.NAME).exists():
        with lock.held(folder):
            index = Index(folder)
            index.require(network)
            if codes != index.codes:
                raise UserError(f'--codes {codes}: the index {folder} stores {index.codes}; give '
                                f'--codes {index.codes}, or another folder with --out')
            content = index.content
            if recall != content['recall']:
                content = content | {'recall': recall, 'search': content['search'] | {'n_images': 0}}
            if (open_set or threshold) and open_set != content.get('open_set'):
                content = {name: part for name, part in content.items() if name != 'open_set'}
                content |= {'open_set': open_set} if open_set else {}
            if content != index.content:
                store.write(folder, content)
    elif folder.exists() and (not folder.is_dir() or any(not file.name.startswith('.') for file in folder.iterdir())):
        raise UserError(f'--out {folder}: it exists and is no index; give a new folder')
    else:
        store.create(folder, network, recall, open_set, codes)


def add(folder, network, transform, paths, bs=112, kernels=0):
    """
    Embeds the images `paths` that are not in the index yet, or whose size or time of modification has changed since,
    and adds them. A kill loses at most the last SECONDS of embedding, and the same call continues.

    Returns the index, and {path: reason} of the images that cannot be read, which are listed in UNREADABLE.
    """
    with lock.held(folder):
        remove_temporary(folder)
        index = Index(folder)
        index.require(network)
        require_writable(Path(folder) / store.NAME, 'index')
        states = {}
        known = dict(zip(index.paths, index.photos, strict=True))
        unreadable = {}
        for path in paths:
            try:
                state = os.stat(path)
            except OSError as error:
                unreadable[path] = f'{decoding.shown(path)}: {error.strerror}'
                continue
            if known.get(path) != [path, state.st_size, state.st_mtime_ns]:
                states[path] = [path, state.st_size, state.st_mtime_ns]
        changed = states.keys() & known.keys()
        if changed:
            keep(index, [path not in changed for path in index.paths])
        unreadable |= fill(Index(folder), network, transform, states, bs, kernels)
        refit(Index(folder))
        write_text(Path(folder) / UNREADABLE, ''.join(f'{reason}\n' for reason in unreadable.values()))
        return Index(folder), unreadable


def fill(index, network, transform, states, bs, kernels):
    """Embeds and adds images, {path: its record}; returns {path: reason} for images that cannot be read."""
    paths = list(states)
    content = index.content
    pending = []
    saved = time.monotonic()
    unreadable = {}
    centroids = index.array('centroids', np.float32, content['dim'] or 0)

    def save():
        nonlocal content, saved
        if pending:
            rows, found = zip(*pending, strict=True)
            content = extended(index.folder, content, [states[paths[i]] for part in rows for i in part],
                               np.concatenate(found), centroids)
        pending.clear()
        saved = time.monotonic()

    try:
        for rows, found, broken in loading.embedded(network, transform, paths, bs, kernels):
            unreadable |= {paths[i]: reason for i, reason in broken.items()}
            if rows:
                bad = ~np.isfinite(found).all(axis=1)
                if bad.any():
                    raise RunFailed(f'the embedding of {paths[rows[int(bad.argmax())]]} is not finite; the network of '
                                    f'{network.source} cannot be used')
                pending.append((rows, found))
            if time.monotonic() - saved >= SECONDS:
                save()
    finally:
        save()                                               # after Ctrl-C as well
    return unreadable


def extended(folder, content, photos, embeddings, centroids):
    """The content of the index after some images were added to its files."""
    lines = ''.join(json.dumps(photo) + '\n' for photo in photos).encode()
    stored = to_int8(embeddings) if 'codes' in content else embeddings
    rows = {'embeddings': as_bytes(stored), 'photos': lines}
    if len(centroids):
        rows['cells'] = as_bytes(search.nearest_cells(embeddings, centroids))
    return store.append(folder, content | {'dim': embeddings.shape[1]}, len(photos), **rows)


def as_bytes(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def remove(folder, places=(), missing=False):
    """
    Removes the images whose paths are among `places` or below them, which need not exist any more; with `missing`, also
    the images whose files do not exist. Returns the index and the number of removed images. Raises UserError if there
    are none.
    """
    with lock.held(folder):
        remove_temporary(folder)
        index = Index(folder)
        gone = {os.path.abspath(place) for place in places}
        above = tuple(os.path.join(place, '') for place in gone - set(index.paths))
        kept = [not (path in gone or path.startswith(above) or missing and not os.path.exists(path))
                for path in index.paths]
        if all(kept) and missing:
            return index, 0
        if all(kept):
            raise UserError(f'{folder}: the index has no image in {", ".join(map(str, places))}'
                            + (f'; its first is {index.paths[0]}' if len(index) else ''))
        keep(index, kept)
        return Index(folder), kept.count(False)


def keep(index, kept):
    """Removes the images that are not `kept`, [N] bool, from the files of the index."""
    kept = np.array(kept)
    lines = ''.join(json.dumps(photo) + '\n' for photo, keep in zip(index.photos, kept, strict=True) if keep).encode()
    rows = {'embeddings': as_bytes(index.stored[kept]), 'photos': lines}
    if index.content['search']['n_cells']:
        rows['cells'] = as_bytes(index.array('cells', np.int32, 1)[kept])
    store.replace(index.folder, index.content, int(kept.sum()), **rows)


def refit(index):
    """Chooses the search of a large index, if that was not done yet or the index has grown by GROWTH since."""
    if len(index) < max(search.LARGE, GROWTH * index.content['search']['n_images']):
        return
    how, centroids, cells = search.train(index.embeddings, index.content['recall'])
    files = {kind: file for kind, file in index.content['files'].items() if kind not in ('centroids', 'cells')}
    rows = {} if centroids is None else {'centroids': as_bytes(centroids), 'cells': as_bytes(cells)}
    content = index.content | {'search': how, 'files': files, 'generation': index.content['generation'] + 1}
    store.append(index.folder, content, 0, **rows)
