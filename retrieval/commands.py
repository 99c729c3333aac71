"""The commands of Retrieve_Images.py."""
import json
import os
import sys
from pathlib import Path

import numpy as np

from datasets import decoding
from datasets.loading import workers
from evaluation.protocol import collapse
from retrieval import changes, loading, photos, review, search, server, unknown, vote
from retrieval.index import Index
from utilities import plotting, stopping
from utilities.errors import UserError
from utilities.files import require_writable, write_csv, write_text

STDOUT = '-'                 # the standard output, in place of a file name
NAMED = 3                    # number of images that cannot be read or found whose names are printed
N_ROWS = 12                  # --picture: the most queries
N_COLUMNS = 10               # and nearest images of each


def index(opt):
    """Makes an index of photos, or continues one that was not finished."""
    paths = photos.find(opt.photos)
    network, transform = loading.load(opt.run, opt.device)
    if network.no_threshold and opt.threshold is None:
        print(f'Note: no query will be called unknown: {network.no_threshold}', file=sys.stderr)
    if opt.codes:
        search.built(opt.codes, network.width)               # bad codes fail before the work
    changes.create(opt.out, network, opt.threshold, opt.codes)
    extend(opt, opt.out, network, transform, paths)


def add(opt):
    paths = photos.find(opt.photos)
    extend(opt, opt.index, *Index(opt.index).load_network(opt.run, opt.device), paths)


def extend(opt, folder, network, transform, paths):
    try:
        found, unreadable = changes.add(folder, network, transform, paths, opt.bs, workers(opt))
    except KeyboardInterrupt:
        print('\nStopped. The same command continues.', file=sys.stderr)
        raise
    name_some('Not embedded, since they cannot be read', list(unreadable.values()), len(paths),
              f'; all of them: {Path(folder) / changes.UNREADABLE}')
    note_collapse(found)
    print(found)


def note_collapse(searched):
    if searched.is_collapsed:
        print(collapse('index'), file=sys.stderr)


def remove(opt):
    if not opt.photos and not opt.missing:
        raise UserError('remove: name photos or folders, or give --missing')
    found, n_removed = changes.remove(opt.index, opt.photos, opt.missing)
    print(f'images removed: {n_removed:,}\n{found}')


def query(opt):
    """
    Prints the nearest images of each query and the class for which they vote, with --json - as JSON; writes them to
    --json, --picture and --csv, with which only the number of photos is printed.
    """
    for flag in ('json', 'picture', 'csv'):
        if getattr(opt, flag) not in (None, STDOUT):
            require_writable(getattr(opt, flag), f'--{flag}')
    if opt.csv == STDOUT:
        raise UserError('--csv -: give the name of a file; --json - prints the answers')
    if opt.picture and Path(opt.picture).suffix not in ('.png', '.svg'):
        raise UserError(f'--picture {opt.picture}: give a file that ends in .png or .svg')
    paths = photos.find(opt.photos)
    searched, network, transform = load_index(opt)
    queries = []
    embeddings = []
    reasons = []
    n_workers = min(workers(opt), len(paths) - 1)
    for rows, found, broken in loading.embed_in_batches(network, transform, paths, opt.bs, n_workers):
        queries += [paths[row] for row in rows]
        embeddings.append(found)
        reasons += broken.values()
    if not queries:
        raise UserError(reasons[0])
    name_some('Left out, since they cannot be read', reasons, len(paths))
    rows, distances = searched.nearest(np.concatenate(embeddings), max(opt.k, opt.vote))
    answers = searched.answers(distances, rows, opt.vote)
    nearest = [[searched.paths[row] for row in found[:opt.k]] for found in rows]
    distances = distances[:, :opt.k]
    gone = sorted({path for found in nearest for path in found if not os.path.exists(path)})
    if opt.json != STDOUT and not opt.csv:
        print_nearest(queries, nearest, distances, answers)
    name_some('Moved or deleted since they were indexed', gone, len({path for found in nearest for path in found}),
              ' found; the command remove --missing removes such images from the index')
    if opt.json:
        text = as_json(queries, nearest, distances, answers)
        sys.stdout.write(text) if opt.json == STDOUT else write_text(opt.json, text)
    if opt.csv:
        write_csv(opt.csv, as_rows(queries, nearest, distances, answers))
    if opt.csv and opt.json != STDOUT:
        print(f'{opt.csv}: {len(queries):,} photos')
    if opt.picture:
        draw(opt.picture, queries[:N_ROWS], nearest, distances, answers, transform)


def suspects(opt):
    review.review(opt.run, opt.flags, opt.out)


def serve(opt):
    server.serve(*load_index(opt), opt.k, opt.host, opt.port, opt.vote)


def load_index(opt):
    """The index, which is searched on the device of its network, the network and its transform."""
    searched = Index(opt.index)
    network, transform = searched.load_network(opt.run, opt.device)
    searched.device = network.device
    if opt.threshold is not None:
        searched.open_set = unknown.by_hand(opt.threshold)
    note_collapse(searched)
    return searched, network, transform


def name_some(what, names, n_all, more=''):
    """Prints `what` as a heading, the number of `names` out of `n_all` images, and the first NAMED names."""
    if names:
        print(f'{what}: {len(names):,} of {n_all:,} images{more}', *names[:NAMED], *['...'][:len(names) > NAMED],
              sep='\n  ', file=sys.stderr)


def print_nearest(queries, nearest, distances, answers):
    for photo, found, far, answer in zip(queries, nearest, distances, answers, strict=True):
        print(photo, *unknown.sentences(answer), *vote.sentences(answer), '  rank  distance  nearest', sep='\n')
        for rank, (path, distance) in enumerate(zip(found, far, strict=True), start=1):
            print(f'  {rank:4}  {distance:8.4f}  {path}')


def as_json(queries, nearest, distances, answers):
    """The text [{'query': path, 'nearest': [{'path', 'distance'}, ...]}, ...], with the `answers`."""
    return json.dumps([
        {'query': photo} | answer | {'nearest': [{'path': path, 'distance': round(float(distance), 6)}
                                                 for path, distance in zip(found, far, strict=True)]}
        for photo, found, far, answer in zip(queries, nearest, distances, answers, strict=True)], indent=1) + '\n'


def as_rows(queries, nearest, distances, answers):
    """A row of --csv for each photo; its class is `unknown`, or empty if the images of the index have no classes."""
    rows = []
    for photo, found, far, answer in zip(queries, nearest, distances, answers, strict=True):
        share = answer.get('share')
        rows.append({'path': photo, 'class': 'unknown' if answer.get('unknown') else answer.get('class', ''),
                     'share': '' if share is None else f'{share:.4f}', 'nearest': found[0],
                     'distance': f'{far[0]:.6f}', 'similarity': f'{unknown.similarity(far[0]):.6f}'})
    return rows


@plotting.styled
def draw(file, queries, nearest, distances, answers, transform):
    """A picture of queries and their nearest images, as the network sees them, with their distances."""
    rows = []
    for photo, found, far, answer in zip(stopping.checked(queries), nearest, distances, answers, strict=False):
        tiles = [tile(photo, transform, '', 'black')]
        tiles += [tile(path, transform, f'{distance:.3f}', plotting.GREY)
                  for path, distance in zip(found[:N_COLUMNS], far, strict=False)]
        name = 'unknown' if answer.get('unknown') else answer.get('class')
        title = plotting.literal(Path(photo).name, 60)
        rows.append((f'{title} ({plotting.literal(name, 60)})' if name else title, tiles))
    plotting.save(plotting.panel(rows), file)


def tile(path, transform, text, colour):
    """(pixels [H, W, 3], colour of the frame, text) of a photo; white where the file is gone or broken."""
    try:
        image = transform.pipeline(decoding.read_upright(path))
    except UserError:
        return np.full((1, 1, 3), 255, np.uint8), colour, f'{text} (not found)'
    return (image * 255).round().byte().permute(1, 2, 0).numpy(), colour, text
