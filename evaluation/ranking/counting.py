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
queries and TILE gallery images, and each tile is compared with the positives' scores (count_strip). Two things make
this fast:

- Where each image is a query against all others, the matrix is symmetric: the transposed tile of the queries a, b and
  the images c, d is the tile of the queries c, d and the images a, b, which is not computed again. Queries and gallery
  are in the order of their classes, the largest first, so that the queries of a tile have about as many positives each.
- A score below the score of a query's farthest positive changes no rank, nor does a score beyond the last rank that a
  metric uses, which is estimated from a sample of the gallery. One comparison per score finds the others, the
  candidates, and only these are looked up among the scores of the positives.

A query is left to by_differences if the scores of a positive and an image of another class differ by less than the
error of float32, or if the score of the last rank that matters was estimated too high, so that too few images reach it.
It is left to by_sorting if an image of its class and an image of another class have the same embedding, since their
scores can differ in the last digit from tile to tile.
"""
import threading
from dataclasses import dataclass

import numpy as np
import torch

from evaluation.ranking.arrays import bisect, in_threads, pick
from evaluation.ranking.neighbours import product
from evaluation.ranking.sorting import by_sorting
from utilities import stopping

TILE = 1024                  # queries in a tile, and gallery images: 4 MB of scores
SAMPLE = 1024                # gallery images with whose scores the score at the last rank that matters is estimated
DEVIATIONS = 4               # standard deviations by which the estimate is lowered, so that it is seldom too high


def by_counting(search, depth):
    """One of ranks.WAYS: by counting, on the CPU."""
    counting = Counting(search, depth)
    list(in_threads(counting.count_strip, range(len(counting.strips)), 'rank', counting.stopped))
    shares = search.shares_embeddings & (search.n_positives > 0)
    for strip in counting.strips:
        own = ~shares[strip.queries]
        yield strip.queries[own], strip.ranks()[own], ~(strip.unclear | strip.too_few())[own]
    yield from by_sorting(search, depth, np.flatnonzero(shares))


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
    margins:     [q, R] Search.margins of the scores.
    floor:       [q] a score: an image with a lower one comes before no positive whose rank matters.
    unclear:     [q] bool: whether the order of a positive and an image of another class is within the error of float32.
    above:       [q, R + 1] numbers of images of other classes, counted so far: how many reach the floor, and how many
                 come before each positive.
    """
    queries: np.ndarray
    labels: np.ndarray
    n_positives: np.ndarray
    depth: np.ndarray
    scores: np.ndarray
    indices: np.ndarray
    margins: np.ndarray
    floor: np.ndarray
    unclear: np.ndarray
    above: np.ndarray

    def ranks(self):
        """[q, R] ranks of the positives, ascending and padded with inf; inf for positives below the floor, too."""
        nearer = self.n_positives[:, None] - np.arange(1, self.scores.shape[1] + 1)    # number of nearer positives
        matters = (nearer >= 0) & (self.scores >= self.floor[:, None])
        return np.sort(np.where(matters, self.above[:, 1:] + nearer + 1, np.inf), axis=1)

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
    """

    def __init__(self, search, depth):
        self.search = search
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.depth = depth
        number = np.argsort(np.argsort(-search.sizes, kind='stable'))
        self.query_labels = number[search.query_labels]
        gallery_labels = number[search.gallery_labels]
        self.indices = np.argsort(gallery_labels, kind='stable')
        self.labels = gallery_labels[self.indices]
        self.columns = np.argsort(self.indices)
        # two more coordinates make the product of (q, 1, -½‖q‖²) and (g, -½‖g‖², 1) the score
        self.half_norms = search.query_half_norms.numpy()
        self.gallery = np.ones((len(self.indices), search.gallery.shape[1] + 2), self.half_norms.dtype)
        for start in range(0, len(self.indices), TILE):                # parts avoid a second copy
            part = search.move(search.gallery[self.indices[start:start + TILE]])
            self.gallery[start:start + TILE, :-2] = part
            self.gallery[start:start + TILE, -2] = -search.half_norms(part)
        sampled = np.random.default_rng(0).permutation(len(self.gallery))[:SAMPLE]
        self.sample = self.gallery[np.sort(sampled)]
        order = np.lexsort((self.query_labels, -search.n_positives))
        order = order[:np.count_nonzero(search.n_positives)]
        parts = [order[start:start + TILE] for start in range(0, len(order), TILE)]
        self.strips = list(in_threads(self.look_up, parts))

    def points(self, queries):
        """[q, D + 2]: the points whose inner products with `gallery` are the scores."""
        points = self.search.move(self.search.queries[queries]).numpy()
        return np.concatenate([points, np.ones_like(points[:, :1]), -self.half_norms[queries, None]], axis=1)

    def look_up(self, queries):
        """The Strip of the `queries` [q]: computes the scores of their positives, and the floor."""
        points = self.points(queries)
        depth = self.depth[queries]
        indices, exists = self.search.positives(queries)
        scores, indices = farthest_first(self.scores_of(points, self.columns[indices], exists), indices)
        margins = self.search.margins(queries, torch.from_numpy(scores)).numpy()
        lowest = scores - margins
        floor = np.maximum(lowest.min(axis=1),
                           score_at_rank(product(points, self.sample), len(self.gallery), depth.max()))
        # the floor is not within the margin of a positive that reaches it
        floor = np.minimum(floor, lowest.min(axis=1, where=scores >= floor[:, None], initial=np.inf))[:, None]
        unclear = ((margins > 0) & (lowest < floor) & (scores + 2 * margins >= floor)).any(axis=1)
        return Strip(queries, self.query_labels[queries], self.search.n_positives[queries], depth, scores, indices,
                     margins, floor[:, 0], unclear, np.zeros((len(queries), scores.shape[1] + 1), np.int32))

    def scores_of(self, points, columns, exists):
        """
        [q, R] the scores of `points` [q, D + 2] with rows of `gallery`, `columns` [q, R]; inf where not `exists`. They
        are rounded as in count_strip, tile by tile: another rounding would move a positive before or behind all images
        at the same distance.
        """
        scores = np.full(columns.shape, np.inf, self.gallery.dtype)
        for left in range(0, len(self.gallery), TILE):
            stopping.check()
            row, slot = np.nonzero(exists & (columns // TILE == left // TILE))
            if len(row):
                scores[row, slot] = product(points, self.gallery[left:left + TILE])[row, columns[row, slot] - left]
        return scores

    def count_strip(self, number):
        """Counts for a strip, tile by tile; in a symmetric matrix, only the tiles that no earlier strip has counted."""
        strip = self.strips[number]
        points = self.points(strip.queries)
        first = number * TILE if self.search.symmetric else 0
        for left in range(first, len(self.gallery), TILE):
            stopping.check()
            if self.stopped.is_set():                      # a strip takes seconds with a million images
                break
            scores = product(points, self.gallery[left:left + TILE])
            labels = self.labels[left:left + TILE]
            if strip.labels.min() <= labels[-1] and labels[0] <= strip.labels.max():
                scores[strip.labels[:, None] == labels] = -np.inf              # ranks() counts the positives
            self.add(strip, scores, self.indices[left:left + TILE])
            if self.search.symmetric and number < left // TILE < len(self.strips):
                other = self.strips[left // TILE]          # the queries of that strip are the images of this tile
                self.add(other, scores[:, :len(other.queries)].T, strip.queries)

    def add(self, strip, scores, indices):
        """Adds the counts from the `scores` [q, g] of a strip's queries with the gallery images `indices` [g]."""
        counts = count(strip, scores, indices)
        with self.lock:
            strip.above += counts


def farthest_first(scores, indices):
    """The scores and indices [q, R] of positives in ascending order of the scores, equal scores by descending index."""
    order = scores.argsort(axis=1)                     # takes a fifth of the time of lexsort, but has no order for ties
    ascending = np.take_along_axis(scores, order, axis=1)
    tied = ((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] < np.inf)).any(axis=1)
    order[tied] = np.lexsort((-indices[tied], scores[tied]))
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(indices, order, axis=1)


def score_at_rank(scores, n_gallery, depth):
    """
    [q] low estimates of each query's score at rank `depth`, from its scores [q, s] with a sample of the gallery: the
    `depth` nearest images of nearly all queries reach them; −inf if the sample is too small. The number of the nearest
    images in the sample has the expectation `mean` and a standard deviation below √mean.
    """
    n = scores.shape[1]
    mean = depth * n / n_gallery if depth < n_gallery else np.inf
    place = min(depth, np.ceil(mean + DEVIATIONS * mean ** 0.5)) + 1                   # 1 more for the query itself
    if place > n:
        return np.full(len(scores), -np.inf, scores.dtype)
    return np.partition(scores, n - int(place), axis=1)[:, n - int(place)]


def count(strip, scores, indices):
    """
    The counts of Strip.above in a tile: looks up each score that reaches the floor among the positives' scores. Marks
    the queries with one that is within float32's error of the next positive above or below it.
    """
    query, column, score = pick(scores, scores >= strip.floor[:, None])
    n_slots = strip.scores.shape[1]
    own, own_index, margins = strip.scores.ravel(), strip.indices.ravel(), strip.margins.ravel()
    first = query * n_slots
    place = bisect(strip.scores, first, score)             # a candidate comes before the positives from first to place
    close = np.flatnonzero((strip.margins > 0).any(axis=1)[query])
    for beside in (place[close], place[close] - 1):        # possibly of the next query, which marks a query too many
        within = abs(own.take(beside, mode='clip') - score[close]) < margins.take(beside, mode='clip')
        strip.unclear[query[close[within]]] = True
    tied = np.flatnonzero(own.take(place, mode='clip') == score)
    while len(tied):
        tied = tied[place[tied] < first[tied] + n_slots]
        tied = tied[(own[place[tied]] == score[tied]) & (indices[column[tied]] < own_index[place[tied]])]
        place[tied] += 1
    found = np.bincount(place + query, minlength=strip.above.size).reshape(strip.above.shape)
    return found[:, ::-1].cumsum(axis=1)[:, ::-1]
