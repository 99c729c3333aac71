"""An index of photos: the embeddings of a trained network, and the search in them."""
import functools
import json
from pathlib import Path

import numpy as np
import torch

from evaluation.protocol import are_same
from retrieval import search, store, unknown, vote
from retrieval.loading import load
from retrieval.nearest_rows import MORE, exact, measured
from utilities.errors import UserError
from utilities.optional import faiss_or_none

QUERIES = 1024               # queries that are compared with the index at a time


class Index:
    """
    An index folder, open for queries. Later additions and removals are not seen.

    Args:
        folder: an index folder that changes.create has made.
        device: the device of exact search, a torch.device or its name.

    paths:      list of N absolute paths.
    open_set:   the threshold below which a query is unknown (unknown.py); None: no query is.
    embeddings: [N, D] float32 array, mapped into memory.
    run:        the run folder or checkpoint whose network made the embeddings; network_id: its Network.id.

    Raises UserError where `folder` is no index, or is damaged.
    """

    def __init__(self, folder, device='cpu'):
        self.folder = Path(folder)
        self.device = torch.device(device)
        self.content = store.read(folder)
        self.run = self.content['run']
        self.network_id = self.content['network_id']
        self.open_set = self.content['open_set']
        if isinstance(self.open_set, list):                  # an older index: for several gallery sizes
            n_images = self.content['n_images']
            self.open_set = min(self.open_set, key=lambda row: abs((row['gallery_size'] or 0) - n_images))
        self.files = {kind: store.mapped(folder, self.content['files'].get(kind)) for kind in store.KINDS}
        shape = self.content['n_images'], self.content['dim'] or 0
        self.embeddings = self.files['embeddings'].view(np.float32).reshape(shape)

    def __len__(self):
        return len(self.embeddings)

    def __str__(self):
        threshold = f'; {unknown.described(self.open_set, len(self))}' if self.open_set else ''
        kind_of_search = 'exact search'
        if self.approximate is not None:
            found = self.content['search']
            kind_of_search = (f'searched by {found["factory"]}: finds {found["recall"]:.1%} of the exact '
                              f'{search.N_NEAREST} nearest')
        return f'{self.folder}: {len(self):,} images, {kind_of_search}{threshold}'

    @functools.cached_property
    def photos(self):
        """The records of the images: N lists [path, size in bytes, time of modification in ns]."""
        return [json.loads(line) for line in self.files['photos'].tobytes().splitlines()]

    @functools.cached_property
    def paths(self):
        return [path for path, *_ in self.photos]

    def load_network(self, run=None, device='auto'):
        """
        The (network, transform) that made the index, as loading.load returns them. run: the path of the run folder, if
        it was moved. Raises UserError if its weights or settings have changed since then.
        """
        if not run and not Path(self.run).exists():
            raise UserError(f'{self.folder}: its run is not at {self.run} any more; give its path by --run')
        network, transform = load(run or self.run, device)
        self.require(network)
        return network, transform

    def require(self, network):
        """Raises UserError where the embeddings of `network` cannot be compared with the index's embeddings."""
        if network.id == self.network_id:
            return
        others = [f'--{name} {network.settings.get(name)} instead of {value}'
                  for name, value in self.content['settings'].items() if value != network.settings.get(name)]
        raise UserError(f'{self.folder}: the network of {network.source} did not make this index: '
                        f'{", ".join(others) or "the weights differ, as after further training"}. Give --run with the '
                        f'run folder or checkpoint that made it (it was {self.run}), or make a new index')

    @functools.cached_property
    def approximate(self):
        """faiss's index of the images; None where search is exact, as while images are added or removed."""
        how = self.content['search']
        files = self.content['files']
        if not how.get('factory') or self.device.type != 'cpu' or faiss_or_none() is None:
            return None
        if how['embeddings'] != files['embeddings']['name']:
            return None
        with search.reported(how['factory']):
            found = faiss_or_none().deserialize_index(self.files['search'])
        return found if found.ntotal == len(self) else None

    @functools.cached_property
    def gallery(self):
        """The embeddings, on the device of exact search."""
        if self.device.type == 'cpu':
            return self.embeddings
        return torch.tensor(self.embeddings, device=self.device)

    def require_images(self):
        if not len(self):
            raise UserError(f'{self.folder}: the index has no images yet; add some')

    def nearest(self, embeddings, k=10):
        """
        The k nearest images of each query, the nearest first.

        embeddings: [Q, D] array or tensor.

        Returns rows [Q, k] int64, indices into `paths` and `embeddings`, and their Euclidean distances [Q, k] float32;
        all images, if the index has fewer than k. Raises UserError for queries of another dimension, or not finite.
        """
        self.require_images()
        queries = checked(embeddings, self.embeddings.shape[1], self.folder)
        rows = np.empty((len(queries), min(k, len(self))), np.int64)
        distances = np.empty(rows.shape, np.float32)
        for start in range(0, len(queries), QUERIES):
            some = slice(start, start + QUERIES)
            found = None
            if self.approximate is not None:
                found = search.candidates(self.approximate, queries[some], k)
            if found is None:                                # exact search, or cells with fewer than k images
                found = exact(self.gallery, queries[some], min(k + MORE, len(self)), self.device)
            rows[some], distances[some] = measured(self.embeddings, queries[some], found, k)
        return rows, distances

    def query(self, embeddings, k=10):
        """[Q, D] queries -> a list of the paths of the k nearest images for each, and the distances [Q, k]."""
        rows, distances = self.nearest(embeddings, k)
        return [[self.paths[row] for row in found] for found in rows], distances

    @functools.cached_property
    def has_classes(self):
        """Whether the images are in several folders, which are taken as their classes."""
        return any(vote.class_of(path) != vote.class_of(self.paths[0]) for path in self.paths)

    @functools.cached_property
    def is_collapsed(self):
        """Whether all embeddings are the same."""
        return are_same(torch.from_numpy(self.embeddings))

    def answers(self, distances, rows=None, n_votes=None):
        """
        For each query, by the distances [Q, k] of nearest() or query(): {'unknown': bool, 'similarity', 'threshold'},
        without these if the index has no threshold; and by the rows [Q, k] of nearest(), if they are given and the
        images are in several folders, the vote of the `n_votes` nearest of these images, None: of all (vote.vote). The
        class of an unknown query, and of any query where all embeddings are the same, is None.
        """
        answers = [unknown.answer(self.open_set, far[0]) for far in distances]
        if rows is not None and n_votes != 0 and self.has_classes:
            for answer, found, far in zip(answers, rows, distances, strict=True):
                voted = {'class': None, 'share': None}
                if not (answer.get('unknown') or self.is_collapsed):
                    voted = vote.vote([vote.class_of(self.paths[row]) for row in found[:n_votes]], far[:n_votes])
                answer |= voted
        return answers


def checked(points, dim, folder):
    """Embeddings as a float32 array [n, dim]. Raises UserError for other shapes and for what is not finite."""
    points = np.ascontiguousarray(torch.as_tensor(points).detach().cpu().numpy(), np.float32)
    if points.ndim != 2 or points.shape[1] != dim:
        raise UserError(f'{folder}: expected embeddings [n, {dim}], not {list(points.shape)}')
    bad = ~np.isfinite(points).all(axis=1)
    if bad.any():
        raise UserError(f'{folder}: the embedding {int(bad.argmax())} is not finite')
    return points
