"""Makes an index, and adds images to it or removes them. A kill at any moment leaves a complete index."""
import json
import os
import time
from pathlib import Path

import numpy as np

from records import lock
from retrieval import loading, search, store, unknown
from retrieval.index import Index
from retrieval.photos import named_by
from utilities.errors import UserError
from utilities.files import remove_temporary, require_writable, require_writable_folder, write_text
from utilities.optional import faiss_or_none

SECONDS = 10                 # seconds of embedding that a kill can lose
UNREADABLE = 'unreadable.txt'


def create(folder, network, threshold=None, codes=''):
    """
    Makes an index for the embeddings of `network`, if it does not exist yet; else changes what differs, which takes
    effect in the next add(). Raises UserError if the folder is something else, or an index made by another network.

    threshold: None: the threshold of the network's run, if it has one; or the similarity below which a query is
               unknown; or 'none': no query is unknown.
    codes:     faiss's string for the search; '': the search is exact.
    """
    folder = Path(folder)
    open_set = network.open_set if threshold is None else unknown.by_hand(threshold)
    if not (folder / store.NAME).exists():
        if folder.exists() and (not folder.is_dir() or any(not file.name.startswith('.') for file in folder.iterdir())):
            raise UserError(f'--out {folder}: it exists and is no index; give a new folder')
        require_writable_folder(folder, '--out')
        folder.mkdir(parents=True, exist_ok=True)
        store.write(folder, {
            'version': store.VERSION, 'run': os.path.abspath(network.source), 'network_id': network.id,
            'settings': network.settings, 'open_set': open_set, 'generation': 0, 'n_images': 0, 'dim': None,
            'codes': codes, 'search': {}, 'files': {}})
        return
    with lock.held(folder):
        index = Index(folder)
        index.require(network)
        content = index.content | {'codes': codes}
        if open_set or threshold:
            content['open_set'] = open_set
        if content != index.content:
            store.write(folder, content)


def record(path):
    """[path, size, time of modification] of a file; None where the file cannot be found or accessed."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return [path, state.st_size, state.st_mtime_ns]


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
        known = dict(zip(index.paths, index.photos, strict=True))
        new = {path: record(path) for path in paths}
        new = {path: now for path, now in new.items() if path not in known or now not in (None, known[path])}
        if new.keys() & known.keys():
            keep(index, [path not in new for path in index.paths])
        unreadable = fill(folder, network, transform, new, bs, kernels)
        write_text(Path(folder) / UNREADABLE, ''.join(f'{reason}\n' for reason in unreadable.values()))
        return refresh(folder), unreadable


def fill(folder, network, transform, records, bs, kernels):
    """Embeds and adds images, {path: record()}; returns {path: reason} for images that cannot be read."""
    paths = [*records]
    content = store.read(folder)
    unreadable = {}
    photos = []
    points = []
    saved = time.monotonic()
    try:
        for rows, found, broken in loading.embed_in_batches(network, transform, paths, bs, kernels):
            unreadable |= {paths[row]: reason for row, reason in broken.items()}
            photos += [records[paths[row]] or [paths[row], 0, 0] for row in rows]
            points.append(found)
            if photos and time.monotonic() - saved >= SECONDS:
                content = append(folder, content, photos, np.concatenate(points))
                photos = []
                points = []
                saved = time.monotonic()
    finally:
        if photos:                                           # photos embedded before Ctrl-C are kept
            append(folder, content, photos, np.concatenate(points))
    return unreadable


def append(folder, content, photos, embeddings, replaced=()):
    """
    Adds images, by their records and embeddings [n, D]; with `replaced`, kinds of files, they replace all others.
    Returns the content of the index.
    """
    before = 0 if replaced else content['n_images']
    content = content | {'dim': embeddings.shape[1], 'n_images': before + len(photos)}
    return store.put(folder, content, replaced,
                     embeddings=np.ascontiguousarray(embeddings).reshape(-1).view(np.uint8),
                     photos=''.join(json.dumps(photo) + '\n' for photo in photos).encode())


def remove(folder, places=(), missing=False):
    """
    Removes the images at or below `places`, which need not exist any more; a .csv or .txt file stands for the paths
    that it lists. With `missing`, also the images whose files do not exist. Returns the index and the number of removed
    images. Raises UserError if there are none.
    """
    with lock.held(folder):
        remove_temporary(folder)
        index = Index(folder)
        gone = {os.path.abspath(path) for place in map(Path, places) for path in named_by(place)}
        above = tuple(os.path.join(place, '') for place in gone - set(index.paths))
        kept = [not (path in gone or path.startswith(above) or missing and not os.path.exists(path))
                for path in index.paths]
        if all(kept) and missing:
            return index, 0
        if all(kept):
            raise UserError(f'{folder}: the index has no image in {", ".join(map(str, places))}'
                            + (f'; its first is {index.paths[0]}' if len(index) else ''))
        keep(index, kept)
        return refresh(folder), kept.count(False)


def keep(index, kept):
    """Removes the images that are not `kept`, [N] bool, from the files of the index."""
    photos = [photo for photo, is_kept in zip(index.photos, kept, strict=True) if is_kept]
    append(index.folder, index.content, photos, index.embeddings[np.array(kept)], ('embeddings', 'photos'))


def refresh(folder):
    """Fits the search by --codes anew where images or codes have changed, or removes it; returns the index."""
    index = Index(folder)
    codes = index.content['codes'] if len(index) and faiss_or_none() else ''
    if codes == index.content['search'].get('factory', '') and (index.approximate is not None or not codes):
        return index
    how = {}
    rows = {}
    if codes:
        fitted, recall = search.fit(index.embeddings, codes)
        how = {'factory': codes, 'recall': recall, 'embeddings': index.content['files']['embeddings']['name']}
        rows['search'] = faiss_or_none().serialize_index(fitted)
    store.put(folder, index.content | {'search': how}, replaced=['search'], **rows)
    return Index(folder)
