"""
The ranks of the positives by counting: nothing is sorted, and no ranking is held in memory.

The rank of a positive is 1 + the number of gallery images that come before it. Take four images, a and b of one class,
c and d of another, each a query against the other three, and their scores (the higher, the more similar):

          a    b    c    d
     a         -5   -2   -9       query a: its positive b scores -5; c is above, d is not: rank 2
     b   -5         -4   -6       query b: its positive a scores -5; c is above, d is not: rank 2
     c   -2   -4         -3       query c: its positive d scores -3; a is above, b is not: rank 2
     d   -9   -6   -3             query d: its positive c scores -3; neither is above:     rank 1

First, the scores of the positives are computed (look_up). Then the score matrix is computed in square tiles of TILE
queries and TILE gallery images, and each tile is compared with the positives' scores (count_strip). Three things make
this fast:

- Where each image is a query against all others, the matrix is symmetric: the transposed tile of the queries a, b and
  the images c, d is the tile of the queries c, d and the images a, b, which is not computed again.
- A score below the score of a query's farthest positive changes no rank, nor does a score beyond the last rank that a
  metric uses. One comparison per score finds the others, the candidates, and only these are looked up among the
  scores of the positives. The score at the last rank k is at least the k-th highest score in any part of the gallery;
  the part with the query's class serves if k is at most the number of positives. Otherwise, the score is estimated
  from a sample of the gallery.
- Queries and gallery are in the order of their classes, the largest first. The queries of a tile then have about as
  many positives each, and few tiles contain scores of positives.

A query is left to by_differences if the scores of a positive and an image of another class differ by less than the
error of float32, or if the score of the last rank that matters was estimated too high, so that too few images reach it.
It is left to by_sorting if an image of its class and an image of another class have the same embedding, since their
scores can differ in the last digit from tile to tile.
"""
import threading
from dataclasses import dataclass

import numpy as np
import torch

from evaluation.ranking.deciding import by_differences
from evaluation.ranking.neighbours import bisect, in_threads, product
from evaluation.ranking.sorting import by_sorting
from utilities import stopping

TILE = 1024                  # queries in a tile, and gallery images: 4 MB of scores
GROUP = 4                    # strips of queries whose ranks are yielded together
SAMPLE = 1024                # gallery images with whose scores the score at the last rank that matters is estimated
DEVIATIONS = 4               # standard deviations by which the estimate is lowered, so that it is seldom too high


def by_counting(search, depth):
    """ranking.positive_ranks by counting, on the CPU."""
    counting = Counting(search, depth)
    list(in_threads(counting.count_strip, range(len(counting.strips)), 'rank', counting.stopped))
    unclear, sharing = [], []
    for start in range(0, len(counting.strips), GROUP):
        group = counting.strips[start:start + GROUP]
        width = max(strip.scores.shape[1] for strip in group)
        clear = np.concatenate([~(strip.unclear | strip.too_few()) for strip in group])
        queries = np.concatenate([strip.queries for strip in group])
        shares = search.shares_embeddings[queries]
        sharing.append(queries[shares])
        unclear.append(queries[~clear & ~shares])
        yield queries[clear & ~shares], np.concatenate([strip.ranks(width) for strip in group])[clear & ~shares]
    if unclear:
        yield from by_differences(search, np.concatenate(unclear), depth)
        yield from by_sorting(search, depth, np.concatenate(sharing))


@dataclass
class Strip:
    """
    Up to TILE queries and their positives, up to R each, the farthest first.

    queries:     [q] indices among the queries of the Search.
    labels:      [q] their classes, as Counting numbers them.
    n_positives: [q]
    depth:       [q] the last rank that matters.
    scores:      [q, R] scores of the positives; inf where a query has fewer.
    indices:     [q, R] indices of the positives in the gallery of the Search.
    blur:        [q] Search.blur.
    doubtful:    [q] a score: an image of another class with a lower one cannot be confused with a positive.
    floor:       [q] a score: an image with a lower one comes before no positive whose rank matters.
    above:       [q, R + 1] numbers of images of other classes, counted so far: how many reach the floor, and how many
                 come before each positive.
    unclear:     [q] bool: whether the order of such an image and a positive is within the error of float32.
    rest:        [(start, stop)] the parts of the gallery whose tiles count_strip is to count.
    """
    queries: np.ndarray
    labels: np.ndarray
    n_positives: np.ndarray
    depth: np.ndarray
    scores: np.ndarray
    indices: np.ndarray
    blur: np.ndarray
    doubtful: np.ndarray
    floor: np.ndarray
    above: np.ndarray
    unclear: np.ndarray
    rest: list

    def ranks(self, width):
        """[q, width] ranks of the positives, ascending and padded with inf; inf for positives below the floor, too."""
        nearer = self.n_positives[:, None] - np.arange(1, self.scores.shape[1] + 1)    # number of nearer positives
        matters = (nearer >= 0) & (self.scores >= self.floor[:, None])
        ranks = np.full((len(self.queries), width), np.inf)
        ranks[:, :nearer.shape[1]] = np.where(matters, self.above[:, 1:] + nearer + 1, np.inf)
        return np.sort(ranks, axis=1)

    def too_few(self):
        """[q] bool: fewer images than `depth` reach the floor, so that a positive below it may be within `depth`."""
        below = (self.scores < self.floor[:, None]).sum(axis=1)
        return (below > 0) & (self.above[:, 0] + self.n_positives - below < self.depth)


class Counting:
    """
    The arrays that all strips of a Search share. Classes are numbered by their size in the gallery, the largest first,
    and the gallery images are in that order.

    strips:       the queries with a positive, in Strips, the queries with the most positives first.
    query_labels: [number of queries] each query's class, as a number.
    gallery:      [G, D + 2] the embeddings of the gallery, `labels` [G] their classes, `indices` [G] their indices in
                  the gallery of the Search.
    columns:      [G] the row of `gallery` of each gallery image of the Search.
    sample:       [s, D + 2] rows of `gallery`, sampled at random.
    """

    def __init__(self, search, depth):
        self.search, self.lock, self.stopped = search, threading.Lock(), threading.Event()
        self.depth = np.broadcast_to(depth, len(search.n_positives))
        by_size = np.argsort(-search.sizes, kind='stable')
        number = np.empty_like(by_size)
        number[by_size] = np.arange(len(by_size))
        self.query_labels, gallery_labels = number[search.query_labels], number[search.gallery_labels]
        self.indices = np.argsort(gallery_labels, kind='stable')
        self.labels = gallery_labels[self.indices]
        self.columns = np.empty_like(self.indices)
        self.columns[self.indices] = np.arange(len(self.indices))
        # two more coordinates make the product of (q, 1, -½‖q‖²) and (g, -½‖g‖², 1) the score
        self.half_norms = search.query_half_norms.numpy()
        self.gallery = np.ones((len(self.indices), search.gallery.shape[1] + 2), self.half_norms.dtype)
        for start in range(0, len(self.indices), TILE):                # in parts, to avoid a second copy
            part = search.move(search.gallery[self.indices[start:start + TILE]])
            self.gallery[start:start + TILE, :-2] = part
            self.gallery[start:start + TILE, -2] = -search.half_norms(part)
        self.sample = self.gallery[gallery_sample(len(self.gallery))]
        order = np.lexsort((self.query_labels, -search.n_positives))
        self.order = order[:np.count_nonzero(search.n_positives)]
        self.strips = list(in_threads(self.look_up, range(0, len(self.order), TILE)))

    def points(self, queries):
        """[q, D + 2]: the points whose inner products with `gallery` are the scores."""
        points = self.search.move(self.search.queries[queries]).numpy()
        return np.concatenate([points, np.ones_like(points[:, :1]), -self.half_norms[queries, None]], axis=1)

    def look_up(self, start):
        """The Strip of the queries from `start` on. Counts the tile with the scores of the positives, too."""
        queries = self.order[start:start + TILE]
        points, labels, depth = self.points(queries), self.query_labels[queries], self.depth[queries]
        indices, exists = self.search.positives(queries)
        columns = self.columns[indices]
        low, high, block = columns[exists].min(), columns[exists].max() + 1, None
        if high - low <= 8 * TILE:
            if self.search.symmetric:
                low, high = min(low, start), max(high, min(start + TILE, len(self.gallery)))
            block = product(points, self.gallery[low:high])                # the scores of the positives are in it
            scores = np.take_along_axis(block, np.where(exists, columns - low, 0), axis=1)
        else:                                               # the classes of a few queries can span the whole gallery
            scores = np.stack([np.einsum('qd,qd->q', points, self.gallery[column]) for column in columns.T], axis=1)
        scores[~exists] = np.inf
        scores, indices = farthest_first(scores, indices)
        margins = self.search.margins(queries, torch.from_numpy(scores)).numpy()
        blur, lowest = self.search.blur(queries).numpy(), scores - margins
        n_positives = self.search.n_positives[queries]
        if block is not None and (depth <= n_positives).all():
            nearest = highest(block, depth.max() + max(1, self.search.n_left_out[queries].max()))
        else:
            nearest = estimate(product(points, self.sample), len(self.gallery), depth.max())
        floor = np.maximum(lowest.min(axis=1), nearest)[:, None]
        doubtful = np.where((margins > 0) & (scores >= floor), lowest, np.inf).min(axis=1)
        unclear = ((margins > 0) & (scores < floor) & (scores + 2 * margins >= floor)).any(axis=1)
        above = np.zeros((len(queries), scores.shape[1] + 1), np.int32)
        strip = Strip(queries, labels, n_positives, depth, scores, indices, blur, doubtful, floor[:, 0], above, unclear,
                      [(start if self.search.symmetric else 0, len(self.gallery))])
        if block is not None and self.search.symmetric:              # the rest of the block is in other strips' tiles
            self.count_tile(strip, block[:, start - low:start - low + TILE].copy(), start)
            strip.rest = [(start + TILE, len(self.gallery))]
        elif block is not None:
            self.count_tile(strip, block, low)
            strip.rest = [(0, low), (high, len(self.gallery))]
        return strip

    def count_strip(self, number):
        """Counts for a strip, tile by tile; in a symmetric matrix, only the tiles that no earlier strip has counted."""
        strip = self.strips[number]
        points = self.points(strip.queries)
        for left, right in [(left, min(left + TILE, stop)) for start, stop in strip.rest
                            for left in range(start, stop, TILE)]:
            stopping.check()
            if self.stopped.is_set():                      # a strip takes seconds with a million images
                break
            scores = product(points, self.gallery[left:right])
            self.count_tile(strip, scores, left)
            if self.search.symmetric and number < left // TILE < len(self.strips):
                other = self.strips[left // TILE]          # the queries of that strip are the images of this tile
                self.add(other, scores[:, :len(other.queries)].T, strip.queries)

    def count_tile(self, strip, scores, left):
        """Counts the `scores` [q, g] of a strip's queries with the gallery images from `left` on. Changes `scores`."""
        tile = slice(left, left + scores.shape[1])
        labels = self.labels[tile]
        if strip.labels.min() <= labels[-1] and labels[0] <= strip.labels.max():
            scores[strip.labels[:, None] == labels] = -np.inf                  # ranks() counts the positives
        self.add(strip, scores, self.indices[tile])

    def add(self, strip, scores, indices):
        """Adds the counts from the `scores` [q, g] of a strip's queries with the gallery images `indices` [g]."""
        counts = count(strip, scores, indices)
        with self.lock:
            strip.above += counts
        mark_unclear(strip, scores, self.search.tolerance)


def gallery_sample(n_gallery):
    """[s] ascending indices of up to SAMPLE of the images, at random."""
    return np.sort(np.random.default_rng(0).permutation(n_gallery)[:SAMPLE])


def farthest_first(scores, indices):
    """The scores and indices [q, R] of positives in ascending order of the scores, equal scores by descending index."""
    order = scores.argsort(axis=1)                     # takes a fifth of the time of lexsort, but has no order for ties
    ascending = np.take_along_axis(scores, order, axis=1)
    tied = ((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] < np.inf)).any(axis=1)
    order[tied] = np.lexsort((-indices[tied], scores[tied]))
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)


def highest(scores, number):
    """[q] the `number`-th highest score in each row of `scores` [q, n]; −inf if there are fewer."""
    n = scores.shape[1]
    if number > n:
        return np.full(len(scores), -np.inf, scores.dtype)
    return np.partition(scores, n - int(number), axis=1)[:, n - int(number)]


def estimate(scores, n_gallery, depth):
    """
    [q] low estimates of each query's score at rank `depth`, from its scores [q, s] with a sample of the gallery: the
    `depth` nearest images of nearly all queries reach them; −inf if the sample is too small. The number of the nearest
    images in the sample has the expectation `mean` and a standard deviation below √mean.
    """
    n = scores.shape[1]
    mean = depth * n / n_gallery if depth < n_gallery else np.inf
    place = min(depth, np.ceil(mean + DEVIATIONS * mean ** 0.5)) + 1                   # 1 more for the query itself
    return highest(scores, place)


def count(strip, scores, indices):
    """The counts of Strip.above in a tile: looks up each score that reaches the floor among the positives' scores."""
    query, column, score = pick(scores, scores >= strip.floor[:, None])
    n_slots = strip.scores.shape[1]
    own, own_index = strip.scores.ravel(), strip.indices.ravel()
    first = query * n_slots
    place = bisect(strip.scores, first, score)             # a candidate comes before the positives from first to place
    tied = np.flatnonzero(own.take(place, mode='clip') == score)
    while len(tied):
        tied = tied[place[tied] < first[tied] + n_slots]
        tied = tied[(own[place[tied]] == score[tied]) & (indices[column[tied]] < own_index[place[tied]])]
        place[tied] += 1
    found = np.bincount(place + query, minlength=strip.above.size).reshape(strip.above.shape)
    return found[:, ::-1].cumsum(axis=1)[:, ::-1]


def mark_unclear(strip, scores, tolerance):
    """Marks queries with one of the `scores` [q, g] within float32's error of the score of a positive."""
    rows = np.flatnonzero((strip.doubtful < np.inf) & ~strip.unclear)
    if not len(rows):
        return
    some = scores[rows]
    query, _, score = pick(some, some >= strip.doubtful[rows, None])
    query = rows[query]
    blur, least = strip.blur[query], -strip.blur[query] / tolerance
    for own in strip.scores.T:
        own = own[query]
        strip.unclear[query[(own > least) & (abs(score - own) <= blur)]] = True


def pick(scores, chosen):
    """
    Row, column and value of the `chosen` scores [n, m], faster than by indexing. chosen: a bool array, contiguous in
    either order.
    """
    if not chosen.flags.c_contiguous:
        column, row, score = pick(scores.T, chosen.T)
        return row, column, score
    places = true_places(chosen)
    row = places // chosen.shape[1]
    return row, places - row * chosen.shape[1], scores.ravel().take(places)


def true_places(array):
    """np.flatnonzero of a bool array, faster if few are True: looks only into groups of 8 that are not all False."""
    if array.size % 8 or np.count_nonzero(array) > array.size / 10:
        return np.flatnonzero(array)
    words = array.ravel().view(np.uint64)
    some = np.flatnonzero(words != 0)
    within = np.flatnonzero(words.take(some).view(bool))
    return (some.take(within >> 3) << 3) + (within & 7)
