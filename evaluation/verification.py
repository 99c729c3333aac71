"""
Metrics of verification, which decides whether two images are of one class: a pair is accepted if its cosine similarity
reaches a threshold. They count all ordered pairs of images of a split.
"""
import functools
import sys
import threading

import numpy as np
import torch

from evaluation import rank_metrics
from evaluation.ranking import precision
from evaluation.ranking.arrays import chunks, in_threads, pick
from utilities.device import full_float32

TILE = 1024                  # images on each side of a tile: 4 MB of similarities
CHUNK = 1 << 23              # similarities that each thread holds at a time, where whole rows are needed: 32 MB
STEPS = 1 << 15              # to find a threshold, similarities are rounded to multiples of 1 / STEPS
N_BINS = 2 * STEPS + 1       # bins from −1 to 1
RATES = 0.01, 0.1            # false-positive rates of the first and the last threshold of OPIS
N_THRESHOLDS = 101           # thresholds over which OPIS averages


class Pairs:
    """
    The pairs of images of a split, from embeddings [N, D] and labels [N].

    unit:   [N, D] float32 tensor of norm 1, in the order of the classes.
    labels: [N] their classes, from 0.
    ends:   [C + 1] where each class begins in `unit`, and where the last one ends.
    n_positives, n_negatives: [C] numbers of pairs with two images of a class, and with one image of it.
    """

    def __init__(self, embeddings, labels):
        order = torch.as_tensor(np.argsort(labels, kind='stable'), device=embeddings.device)
        self.unit = precision.on_the_sphere(embeddings).float().to(embeddings.device)[order]
        sizes = np.unique(labels, return_counts=True)[1]
        self.labels = np.repeat(np.arange(len(sizes)), sizes)
        self.ends = np.concatenate([[0], sizes.cumsum()])
        self.n_positives = sizes * (sizes - 1)
        self.n_negatives = sizes * (len(labels) - sizes)
        self.lock = threading.Lock()

    def similarities(self, rows, columns):
        """[r, c] float32, between two slices of the images."""
        one, other = self.unit[rows], self.unit[columns]
        if one.device.type == 'cpu':
            return one.numpy() @ other.numpy().T
        return (one @ other.T).cpu().numpy()

    def in_tiles(self, visit):
        """
        Calls visit(rows, columns, similarities, same) in threads, for each tile on or above the diagonal; the others
        are mirror images. rows, columns: slices; same: the indices in similarities.ravel() of the pairs of one class,
        including each image with itself.
        """
        n = len(self.unit)

        def strip(first):
            rows = slice(first, min(first + TILE, n))
            for left in range(first, n, TILE):
                columns = slice(left, min(left + TILE, n))
                same = np.arange(0)
                if self.labels[left] <= self.labels[rows.stop - 1]:
                    same = np.flatnonzero(self.labels[rows][:, None] == self.labels[columns])
                visit(rows, columns, self.similarities(rows, columns), same)

        with full_float32():                               # around the threads: the setting is one of the process
            list(in_threads(strip, range(0, n, TILE), 'compare pairs'))

    @functools.cached_property
    def histograms(self):
        """[2, N_BINS] numbers of pairs of one class and of two classes, by rounded similarity."""
        counts = np.zeros((2, N_BINS), np.int64)

        def add(rows, columns, similarities, same):
            own = histogram(similarities.ravel()[same])
            negatives = histogram(similarities) - own
            weight = 2                                                 # the mirror image counts as well
            if rows == columns:
                own = own - histogram(similarities.diagonal())         # pairs of an image with itself
                weight = 1
            with self.lock:
                counts[:] += weight * np.stack([own, negatives])

        self.in_tiles(add)
        return counts

    def class_thresholds(self, rate):
        """[C] for each class, the threshold() of the pairs with one image of it."""
        size = max(1, CHUNK // len(self.unit))                         # images whose similarities are held at a time
        first = np.unique(np.searchsorted(self.ends, np.arange(0, len(self.unit), size), 'right') - 1)
        groups = list(zip(first, [*first[1:], len(self.n_negatives)], strict=True))
        found = in_threads(lambda group: self.thresholds_of(*group, rate), groups, 'compare pairs')
        return np.concatenate(list(found))

    def thresholds_of(self, first, last, rate):
        """[c] class_thresholds() of the classes from `first` up to but not including `last`."""
        found = []
        counts = 0
        for rows in chunks(np.arange(*self.ends[[first, last]]), len(self.unit), CHUNK):
            similarities = self.similarities(slice(rows[0], rows[-1] + 1), slice(None))
            for label in np.unique(self.labels[rows]):
                start, end = self.ends[label:label + 2]
                own = similarities[self.labels[rows] == label]
                counts = counts + histogram(np.delete(own, slice(start, end), axis=1))
                if end <= rows[-1] + 1:                                # the class ends in these rows
                    found.append(threshold(counts, rate * self.n_negatives[label]))
                    counts = 0
        return found


def histogram(similarities):
    """[N_BINS] numbers of similarities [...] by their distance from −1 in steps of 1 / STEPS, rounded."""
    bins = (similarities * STEPS + (STEPS + 0.5)).astype(np.int64)
    return np.bincount(bins.ravel(), minlength=N_BINS)


def threshold(counts, limit):
    """The lowest bin from which on at most `limit` similarities are counted. counts: [n]."""
    above = np.append(counts[::-1].cumsum()[::-1], 0)
    return int(np.argmax(above <= limit * rank_metrics.ROUNDING))


def distance(bins):
    """The distance of two points of norm 1 whose similarity is in the given bin."""
    return np.sqrt(2 - 2 * np.minimum(bins / STEPS - 1, 1))


def true_positive_rate(pairs, rate):
    """The fraction of accepted pairs of one class, at the lowest threshold that accepts at most `rate` of others."""
    positives, negatives = pairs.histograms
    if not positives.any() or not negatives.any():
        return np.nan
    return positives[threshold(negatives, rate * negatives.sum()):].sum() / positives.sum()


def threshold_spread(pairs, rate):
    """The standard deviation over classes of the distances at class_thresholds(); nan with one class."""
    return distance(pairs.class_thresholds(rate)).std() if len(pairs.n_negatives) > 1 else np.nan


def utilities(pairs, distances):
    """
    [C, T] utilities of the classes of two images or more at each of the ascending thresholds `distances` [T]: the
    harmonic mean of two fractions, the accepted pairs of the class and the rejected pairs with one image of it.
    """
    thresholds = (1 - np.square(distances) / 2)[::-1]
    counts = np.zeros((2, len(pairs.n_positives), len(distances) + 1), np.int64)

    def add(rows, columns, similarities, same):
        is_same = np.zeros(similarities.size, bool)
        is_same[same] = True
        if rows == columns:
            np.fill_diagonal(similarities, -np.inf)
        row, column, similarity = pick(similarities, similarities >= thresholds[0])
        kind = 1 - is_same[row * similarities.shape[1] + column]
        bins = thresholds.searchsorted(similarity, 'right')
        for images, index in ((rows, row), (columns, column))[:1 + (rows != columns)]:
            labels = pairs.labels[images]
            shape = 2, labels[-1] - labels[0] + 1, counts.shape[2]
            place = np.ravel_multi_index((kind, labels[index] - labels[0], bins), shape)
            found = np.bincount(place, minlength=np.prod(shape)).reshape(shape)
            with pairs.lock:
                counts[:, labels[0]:labels[-1] + 1] += found

    pairs.in_tiles(add)
    positives, negatives = counts[:, :, :0:-1].cumsum(axis=2)          # accepted pairs, the shortest distance first
    several = pairs.n_positives > 0
    sensitivity = positives[several] / pairs.n_positives[several, None]
    specificity = 1 - negatives[several] / pairs.n_negatives[several, None]
    total = sensitivity + specificity
    return 2 * sensitivity * specificity / np.where(total > 0, total, 1)


def opis(pairs):
    """
    Operating-point inconsistency score: the variance over classes of their utilities(), averaged over N_THRESHOLDS
    distances, equally spaced between the two at which RATES of the pairs of two classes are accepted. Zhang et al.,
    Threshold-Consistent Margin Loss for Open-World Deep Metric Learning, ICLR 2024, https://arxiv.org/abs/2307.04047.
    nan, with a note, if the first distance is 0: rounding errors would decide which equal embeddings are accepted.
    """
    if not pairs.n_positives.any() or not pairs.n_negatives.any():
        return np.nan
    negatives = pairs.histograms[1]
    ends = [distance(threshold(negatives, rate * negatives.sum())) for rate in RATES]
    if ends[0] == 0:
        print(f'Note: opis is not defined (nan): more than {RATES[0]:.0%} of the pairs of two classes have the same '
              'embedding, so that rounding errors would decide which of them are accepted.', file=sys.stderr)
        return np.nan
    return utilities(pairs, np.linspace(*ends, N_THRESHOLDS)).var(axis=0).mean()
