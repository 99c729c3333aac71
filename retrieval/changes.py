"""Makes an index, and adds images to it or removes them. A kill at any moment leaves a complete index."""
import json
import os
import time
from pathlib import Path

import numpy as np

from records import lock
from retrieval import loading, search, store, unknown
from retrieval.index import Index
from utilities.errors import RunFailed, UserError
from utilities.files import remove_temporary, require_writable, write_text

SECONDS = 10                 # seconds of embedding that a kill can lose
GROWTH = 2                   # faiss is fitted again when the index has grown by this factor
UNREADABLE = 'unreadable.txt'


def create(folder, network, recall=0.95, threshold=None, codes=''):
    """
    Makes an index for the embeddings of `network`, if it does not exist yet; else changes what differs, which takes
    effect in the next add(). Raises UserError if the folder is something else, or an index made by another network.

    recall:    the fraction of the exact ten nearest that an approximate search should find; with 1, without `codes`,
               search is exact.
    threshold: None: the thresholds of the network's run, if it has some; or the similarity below which a query is
               unknown; or 'none': no query is unknown.
    codes:     faiss's string for the search; '': by the number of images.
    """
    folder = Path(folder)
    open_set = network.open_set
    if threshold is not None:
        open_set = None if threshold == 'none' else unknown.by_hand(threshold)
    if not (folder / store.NAME).exists():
        if folder.exists() and (not folder.is_dir() or any(not file.name.startswith('.') for file in folder.iterdir())):
            raise UserError(f'--out {folder}: it exists and is no index; give a new folder')
        store.create(folder, network, recall, open_set, codes)
        return
    with lock.held(folder):
        index = Index(folder)
        index.require(network)
        content = index.content | {'recall': recall, 'codes': codes}
        if open_set or threshold:
            content['open_set'] = open_set
        if content != index.content:
            store.write(folder, content)


def record(path):
    """[path, size, time of modification] of a file; None where it cannot be read."""
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
        refresh(folder)
        return Index(folder), unreadable


def fill(folder, network, transform, records, bs, kernels):
    """Embeds and adds images, {path: record()}; returns {path: reason} for images that cannot be read."""
    paths, content, unreadable = [*records], store.read(folder), {}
    photos, points, saved = [], [], time.monotonic()
    try:
        for rows, found, broken in loading.embedded(network, transform, paths, bs, kernels):
            unreadable |= {paths[row]: reason for row, reason in broken.items()}
            if rows and not np.isfinite(found).all():
                bad = int(np.isfinite(found).all(axis=1).argmin())
                raise RunFailed(f'the embedding of {paths[rows[bad]]} is not finite; the network of {network.source} '
                                'cannot be used')
            photos += [records[paths[row]] or [paths[row], 0, 0] for row in rows]
            points += [found] if rows else []
            if photos and time.monotonic() - saved >= SECONDS:
                content = append(folder, content, photos, np.concatenate(points))
                photos, points, saved = [], [], time.monotonic()
    finally:
        if photos:                                           # after Ctrl-C as well
            append(folder, content, photos, np.concatenate(points))
    return unreadable


def append(folder, content, photos, embeddings):
    """Adds images, their records and embeddings [n, D]; returns the content of the index."""
    content = content | {'dim': embeddings.shape[1], 'n_images': content['n_images'] + len(photos)}
    return store.put(folder, content, embeddings=as_bytes(embeddings), photos=as_lines(photos))


def as_bytes(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def as_lines(photos):
    return ''.join(json.dumps(photo) + '\n' for photo in photos).encode()


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
        refresh(folder)
        return Index(folder), kept.count(False)


def keep(index, kept):
    """Removes the images that are not `kept`, [N] bool, from the files of the index."""
    photos = [photo for photo, is_kept in zip(index.photos, kept, strict=True) if is_kept]
    store.put(index.folder, index.content | {'n_images': len(photos)}, replaced=('embeddings', 'photos'),
              embeddings=as_bytes(index.embeddings[np.array(kept)]), photos=as_lines(photos))


def refresh(folder):
    """Brings faiss's search to the images of the index: adds them, or fits it anew where it is new or has grown."""
    index = Index(folder)
    content, how, asked = index.content, index.content['search'], [index.content['codes'], index.content['recall']]
    factory = search.chosen(*asked, len(index))
    if not factory:
        if how:
            store.put(folder, content | {'search': {}}, replaced=['search'])
    elif how.get('asked') != asked or len(index) >= GROWTH * how['n_images']:
        found, recall = search.fit(index.embeddings, factory, content['recall'])
        is_better = content['codes'] or recall >= content['recall']
        write_search(index, found, {'asked': asked, 'factory': factory if is_better else '', 'recall': recall,
                                    'n_images': len(index)})
    elif how['factory'] and index.approximate is None:
        found = search.opened(index.files['search'])
        if how['embeddings'] != content['files']['embeddings']['name']:                # images were removed
            found.reset()
        search.add(found, factory, index.embeddings[found.ntotal:])
        write_search(index, found, how)


def write_search(index, found, how):
    content = index.content | {'search': how | {'embeddings': index.content['files']['embeddings']['name']}}
    rows = {'search': search.as_bytes(found)} if how['factory'] else {}
    store.put(index.folder, content, replaced=['search'], **rows)
