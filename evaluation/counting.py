"""
The ranks of the positives by counting: nothing is sorted, and no ranking is held in memory.

The rank of a positive is 1 + the number of gallery images that come before it. Take four images, a and b of one class,
c and d of another, each a query against the other three, and their scores (the higher, the more similar):

          a    b    c    d
     a         -5   -2   -9       query a: its positive b scores -5; c is above, d is not: rank 2
     b   -5         -4   -6       query b: its positive a scores -5; c is above, d is not: rank 2
     c   -2   -4         -3       query c: its positive d scores -3; a is above, b is not: rank 2
     d   -9   -6   -3             query d: its positive c scores -3; neither is above:     rank 1

First, the scores of the positives are computed (look_up). Then the score matrix is computed tile by tile, and each tile
is compared with them (count_strip). Three things make this fast:

- Where each image is a query against all others, the matrix is symmetric: the tile of the queries a, b and the images
  c, d is, transposed, that of the queries c, d and the images a, b, which is not computed again.
- A score below that of a query's farthest positive changes no rank, so that a single comparison per score leaves most
  of them out. The same holds of a score beyond the last rank that a metric looks at.
- Queries and gallery are in the order of their classes, the largest first. The queries of a tile then have about as
  many positives each, and few tiles contain scores of positives.

A query is left to by_differences where an image of another class scores within float32's error of one of its positives.
"""
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from evaluation.deciding import by_differences
from utilities import stopping

TILE = 1024                  # queries, and gallery images, of a tile: 4 MB of scores
GROUP = 4                    # strips of queries whose ranks are returned together
PICK = 100                   # cost of a score that is picked out of a tile, in comparisons within a whole tile
SAMPLE = 1024                # gallery images whose scores bound those of the `depth` nearest


def by_counting(search, depth):
    """ranking.positive_ranks by counting, on the CPU."""
    counting = Counting(search, depth)
    in_threads(counting.count_strip, range(len(counting.strips)), 'rank')
    for start in range(0, len(counting.strips), GROUP):
        group = counting.strips[start:start + GROUP]
        width = max(len(strip.scores) for strip in group)
        clear = ~np.concatenate([strip.unclear for strip in group])
        queries = np.concatenate([strip.queries for strip in group])
        yield queries[clear], np.concatenate([strip.ranks(width) for strip in group])[clear]
    unclear = [strip.queries[strip.unclear] for strip in counting.strips]
    if unclear:
        yield from by_differences(search, np.concatenate(unclear), depth)


@dataclass
class Strip:
    """
    Up to TILE queries and their positives, up to R each, the farthest first.

    queries:     [q] indices among the queries of the Search.
    labels:      [q] their classes, as Counting numbers them.
    n_positives: [q]
    scores:      [R, q] of the positives; inf where a query has fewer.
    indices:     [R, q] of the positives in the gallery of the Search.
    blur:        [q] Search.blur.
    doubtful:    [q] an image of another class with a lower score is too far to be confused with a positive.
    floor:       [q] an image with a lower score comes before no positive whose rank matters.
    above:       [R, q] how many images of other classes have been counted so far that come before the positive.
    unclear:     [q] bool: whether one of them cannot be told from a positive.
    """
    queries: np.ndarray
    labels: np.ndarray
    n_positives: np.ndarray
    scores: np.ndarray
    indices: np.ndarray
    blur: np.ndarray
    doubtful: np.ndarray
    floor: np.ndarray
    above: np.ndarray
    unclear: np.ndarray

    def ranks(self, width):
        """[q, width], ascending and padded with inf: those of positives below the floor are inf as well."""
        nearer = self.n_positives - np.arange(1, len(self.scores) + 1)[:, None]        # positives
        matters = (nearer >= 0) & (self.scores >= self.floor)
        ranks = np.full((len(self.queries), width), np.inf)
        ranks[:, :len(nearer)] = np.where(matters, self.above + nearer + 1, np.inf).T
        return np.sort(ranks, axis=1)


class Counting:
    """
    What the counting of a Search shares. Classes are numbered by their size in the gallery, the largest first, and the
    gallery images are in that order.

    strips:       the queries with a positive, those with the most positives first.
    query_labels: [number of queries] the number of each query's class.
    gallery:      [G, D + 2] the embeddings of the gallery, `labels` [G] their classes, `indices` [G] their indices in
                  the gallery of the Search.
    starts:       [number of classes + 1] where each class begins in `gallery`.
    columns:      [G + 1] where each gallery image of the Search is in `gallery`; the last one, G: nowhere.
    """

    def __init__(self, search, depth):
        self.search, self.lock = search, threading.Lock()
        self.depth = np.broadcast_to(depth, len(search.n_positives))
        by_size = np.argsort(-search.sizes, kind='stable')
        number = np.empty_like(by_size)
        number[by_size] = np.arange(len(by_size))
        self.query_labels, gallery_labels = number[search.query_labels], number[search.gallery_labels]
        self.starts = np.concatenate([[0], search.sizes[by_size].cumsum()])
        self.indices = np.argsort(gallery_labels, kind='stable')
        self.labels = gallery_labels[self.indices]
        self.columns = np.full(len(self.indices) + 1, len(self.indices))
        self.columns[self.indices] = np.arange(len(self.indices))
        # two more coordinates make the product of (q, 1, -½‖q‖²) and (g, -½‖g‖², 1) the score
        self.half_norms = search.query_half_norms.numpy()
        self.gallery = np.ones((len(self.indices), search.gallery.shape[1] + 2), self.half_norms.dtype)
        for start in range(0, len(self.indices), TILE):                # in parts, for there is no second copy of it all
            part = search.move(search.gallery[self.indices[start:start + TILE]])
            self.gallery[start:start + TILE, :-2] = part
            self.gallery[start:start + TILE, -2] = -search.half_norms(part)
        order = np.lexsort((self.query_labels, -search.n_positives))
        order = order[:np.count_nonzero(search.n_positives)]
        self.strips = in_threads(self.look_up, [order[start:start + TILE] for start in range(0, len(order), TILE)])

    def points(self, queries):
        """[q, D + 2]: what the gallery is multiplied with."""
        points = self.search.move(self.search.queries[queries]).numpy()
        return np.concatenate([points, np.ones_like(points[:, :1]), -self.half_norms[queries, None]], axis=1)

    def look_up(self, queries):
        """The Strip of some queries."""
        points, labels, n_positives = self.points(queries), self.query_labels[queries], self.search.n_positives[queries]
        slots = np.arange(n_positives.max())
        exists = slots < n_positives[:, None]
        columns = self.starts[labels, None] + slots
        columns += columns >= self.columns[self.search.own[queries], None]     # the query itself is no positive
        columns = np.where(exists, columns, self.starts[labels, None])
        low, high = self.starts[labels].min(), self.starts[labels + 1].max()
        if high - low <= 8 * TILE:
            scores = np.take_along_axis(points @ self.gallery[low:high].T, columns - low, axis=1)
        else:                                               # the classes of a few queries can span the whole gallery
            scores = np.stack([np.einsum('qd,qd->q', points, self.gallery[column]) for column in columns.T], axis=1)
        scores[~exists] = np.inf
        indices = self.indices[columns]
        farthest_first = np.lexsort((-indices, scores))
        scores, indices = (np.ascontiguousarray(np.take_along_axis(array, farthest_first, axis=1).T)
                           for array in (scores, indices))
        margins = self.search.margins(queries, torch.from_numpy(scores.T)).numpy().T
        blur, lowest = self.search.blur(queries).numpy(), scores - margins
        floor = np.maximum(lowest.min(axis=0), self.bound(points, self.depth[queries].max(), blur))
        doubtful = np.where((margins > 0) & (scores >= floor), lowest, np.inf).min(axis=0)
        return Strip(queries, labels, n_positives, scores, indices, blur, doubtful, floor,
                     np.zeros(scores.shape, np.int32), np.zeros(len(queries), bool))

    def bound(self, points, depth, blur):
        """[q] scores that the `depth` nearest images of each query reach; −inf where the sample is too small to say."""
        sample = self.gallery[::max(1, len(self.gallery) // SAMPLE)]
        if depth >= len(sample):
            return -np.inf
        # the query may be in the sample, so that one image more than `depth` has to score as much or more; the
        # tolerance is for the rounding, which may be another one in another product
        rest = len(sample) - 1 - int(depth)
        bound = np.partition(points @ sample.T, rest, axis=1)[:, rest]
        return bound - 1e-6 * abs(bound) - blur

    def count_strip(self, number):
        """Counts for a strip, tile by tile; where the matrix is symmetric, only what no earlier strip has counted."""
        strip, symmetric = self.strips[number], self.search.symmetric
        points = self.points(strip.queries)
        for left in range(number * TILE if symmetric else 0, len(self.gallery), TILE):
            scores, labels = points @ self.gallery[left:left + TILE].T, self.labels[left:left + TILE]
            if strip.labels.min() <= labels[-1] and labels[0] <= strip.labels.max():
                scores[strip.labels[:, None] == labels] = -np.inf              # ranks() counts the positives
            self.add(strip, scores, self.indices[left:left + TILE])
            if symmetric and number < left // TILE < len(self.strips):
                other = self.strips[left // TILE]          # the queries of that strip are the images of this tile
                self.add(other, scores[:, :len(other.queries)].T, strip.queries)

    def add(self, strip, scores, indices):
        """Adds what the `scores` [q, g] of a strip's queries and the gallery images `indices` [g] contribute."""
        candidates = scores >= strip.floor[:, None]
        if PICK * np.count_nonzero(candidates) <= scores.size * len(strip.scores):
            counts = count_some(strip, scores, indices, candidates)
        else:
            counts = count_all(strip, scores, indices)
        with self.lock:
            strip.above += counts
        mark_unclear(strip, scores, self.search.tolerance)


def count_some(strip, scores, indices, candidates):
    """How many images come before each of a strip's positives, [R, q], if only `candidates` [q, g] can."""
    query, column = positions(candidates)
    score, index = scores[query, column], indices[column]
    counts = np.zeros_like(strip.above)
    for slot, (own, own_index) in enumerate(zip(strip.scores, strip.indices, strict=True)):
        before = score > own[query]
        tied = np.flatnonzero(score == own[query])
        before[tied] = index[tied] < own_index[query[tied]]
        query, score, index = query[before], score[before], index[before]      # the others come before no nearer one
        counts[slot] = np.bincount(query, minlength=len(own))
    return counts


def count_all(strip, scores, indices):
    """How many images come before each of a strip's positives, [R, q]."""
    counts = np.empty_like(strip.above)
    for slot, (own, own_index) in enumerate(zip(strip.scores, strip.indices, strict=True)):
        counts[slot] = (scores > own[:, None]).sum(axis=1, dtype=np.uint16)    # quicker than wider integers
        tied = scores == own[:, None]
        if tied.any():
            query, column = positions(tied)
            before = indices[column] < own_index[query]
            counts[slot] += np.bincount(query[before], minlength=len(own))
    return counts


def mark_unclear(strip, scores, tolerance):
    """Finds the queries of which a score in `scores` [q, g] cannot be told from that of a positive."""
    rows = np.flatnonzero((strip.doubtful < np.inf) & ~strip.unclear)
    some = scores[rows]
    query, column = positions(some >= strip.doubtful[rows, None])
    score, query = some[query, column], rows[query]
    blur, least = strip.blur[query], -strip.blur[query] / tolerance
    for own in strip.scores:
        own = own[query]
        strip.unclear[query[(own > least) & (abs(score - own) <= blur)]] = True


def positions(array):
    """np.nonzero of a [n, m] bool array, contiguous in either order: faster."""
    if array.flags.c_contiguous:
        return np.divmod(np.flatnonzero(array), array.shape[1])
    return np.divmod(np.flatnonzero(array.T), array.shape[0])[::-1]


def in_threads(work, items, description=None):
    """[work(item) for each], on as many threads as torch would use, with a single-threaded BLAS in each."""
    from threadpoolctl import threadpool_limits
    stopped = threading.Event()

    def step(item):
        return None if stopped.is_set() else work(item)

    bar = tqdm(total=len(items), desc=description, leave=False, disable=None if description else True)
    with threadpool_limits(1, 'blas'), bar, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            results = []
            for result in stopping.checked(pool.map(step, items)):
                results.append(result)
                bar.update()
            return results
        finally:
            stopped.set()                                  # after Ctrl-C the rest is skipped
