"""
Queries against a gallery that lacks the classes of some of them: what their nearest images say, the metrics of it, and
the threshold below which a query is called unknown. docs/protocols.md has the definitions and their sources.

The similarity is 1 − d² / 2 for a Euclidean distance d, which is the cosine for embeddings of norm 1; or the score, if
the criterion ranks by its own. A query is accepted if its similarity is at least the threshold.
"""
import functools
from dataclasses import dataclass

import numpy as np

from evaluation import rank_metrics
from evaluation.ranking.arrays import chunks
from evaluation.ranking.nearest import first, split_by_class
from evaluation.ranking.neighbours import Search
from records import columns

MORE = 1 + 1e-12             # factor for rate * number of queries, which rounding may put just below a whole number
N_RESAMPLES = 1000           # resamples of the validation classes, for intervals
SMALLEST = 16                # images of the smallest gallery that is calibrated
LEAST = 10                   # accepted unknown queries from which the threshold of a larger gallery is extrapolated


@dataclass
class Answers:
    """
    What the nearest gallery images of n queries say.

    similarity: [n] float64, of the nearest image.
    is_known:   [n] bool: whether the gallery has an image of the query's class.
    is_right:   [n] bool: whether the nearest image is of the query's class.
    labels:     [n] int64, the queries' classes.
    """
    similarity: np.ndarray
    is_known: np.ndarray
    is_right: np.ndarray
    labels: np.ndarray

    @property
    def known(self):
        return self.similarity[self.is_known]

    @property
    def unknown(self):
        return self.similarity[~self.is_known]

    def accepted(self, threshold):
        """[n] bool: the queries that reach the threshold."""
        return self.similarity >= threshold


def auroc(answers):
    """The probability that a known query is more similar than an unknown one to its nearest image; ties count half."""
    return rank_metrics.auroc(answers.similarity, answers.is_known)


def oscr(answers):
    """
    The area under the correct classification rate over the false-positive rate (Dhamija et al., NeurIPS 2018): as
    auroc(), but a known query whose nearest image is wrong is never accepted.
    """
    similarity = np.where(answers.is_known & ~answers.is_right, -np.inf, answers.similarity)
    return rank_metrics.auroc(similarity, answers.is_known)


def fpr_at_tpr(answers, rate):
    """The fraction of unknown queries accepted at the highest threshold that accepts `rate` of the known ones."""
    known = np.sort(answers.known)[::-1]
    return mean(answers.unknown >= known[int(np.ceil(rate * len(known) / MORE)) - 1]) if len(known) else np.nan


def fnir_at_fpir(answers, rate):
    """fnir() at the lowest threshold that accepts at most `rate` of the unknown queries."""
    return fnir(answers, threshold_at(answers.unknown, rate)) if len(answers.unknown) else np.nan


def threshold_at(unknown, rate):
    """The lowest threshold that at most a fraction `rate` < 1 of the similarities `unknown` [u], u > 0, reach."""
    return np.nextafter(np.sort(unknown)[::-1][int(rate * len(unknown) * MORE)], np.inf)


def fpir(answers, threshold):
    """False-positive identification rate: the fraction of unknown queries that are accepted."""
    return mean(answers.accepted(threshold)[~answers.is_known])


def fnir(answers, threshold):
    """False-negative identification rate at rank 1: the fraction of known queries that are rejected or wrong."""
    return 1 - mean((answers.accepted(threshold) & answers.is_right)[answers.is_known])


def baks(answers, threshold):
    """Balanced accuracy of known samples: the fraction that is accepted and right, averaged over classes."""
    return mean_over_classes(answers.accepted(threshold) & answers.is_right, answers.labels, answers.is_known)


def baus(answers, threshold):
    """Balanced accuracy of unknown samples: the fraction that is rejected, averaged over classes."""
    return mean_over_classes(~answers.accepted(threshold), answers.labels, ~answers.is_known)


def geometric_mean(answers, threshold):
    return np.sqrt(baks(answers, threshold) * baus(answers, threshold))


def mean(values):
    return float(values.mean()) if len(values) else np.nan


def mean_over_classes(values, labels, chosen):
    _, classes, sizes = np.unique(labels[chosen], return_inverse=True, return_counts=True)
    return mean(np.bincount(classes, values[chosen], len(sizes)) / sizes)


METRICS = {'os_auroc': auroc, 'os_fpr@0.95': functools.partial(fpr_at_tpr, rate=0.95),
           'os_fnir@0.01': functools.partial(fnir_at_fpir, rate=0.01),
           'os_fnir@0.1': functools.partial(fnir_at_fpir, rate=0.1), 'os_oscr': oscr}
AT_THRESHOLD = {'os_fpir': fpir, 'os_fnir': fnir, 'os_baks': baks, 'os_baus': baus, 'os_gm': geometric_mean}


def removable_classes(images):
    """The sorted labels of an ImageSet that can stay out of the gallery: those with queries and with gallery images."""
    if images.is_query is None:
        return np.unique(images.labels)
    in_gallery = ~images.is_query if images.in_gallery is None else images.in_gallery
    return np.intersect1d(images.labels[images.is_query], images.labels[in_gallery])


def divided(images, share, seed):
    """
    Which images of an ImageSet are queries, [N] bool, and which are the gallery, [N] bool. A share of the classes has
    no gallery. Of each other class, half of the images (rounded up) are its gallery, chosen by `seed`; a fixed gallery
    and its queries stay as they are. Distractors are in the gallery.
    """
    random = np.random.default_rng(seed)
    labels = images.labels
    everyone = np.ones(len(images.labels), bool)
    classes = random.permutation(removable_classes(images))
    unknown = np.isin(labels, classes[:round(share * len(classes))])
    if images.is_query is not None and images.in_gallery is None:
        return images.is_query, ~images.is_query & ~unknown
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind='stable')]                # by class, each in a random order
    sizes = np.bincount(labels)
    place = np.empty(len(labels), int)
    place[order] = np.arange(len(labels)) - (sizes.cumsum() - sizes)[labels[order]]
    half = place < (sizes[labels] + 1) // 2
    may_be_query = everyone if images.is_query is None else images.is_query
    return may_be_query & (unknown | ~half), ~unknown & (half | ~may_be_query)


def build_search(part, share, seed):
    """The Search of the queries of an Embedded in the gallery of divided()."""
    ranking = part.ranking(part.embeddings) if part.ranking else None
    return Search(part.embeddings, part.images.labels, *divided(part.images, share, seed), ranking)


def nearest(search, block=None, n_blocks=1):
    """
    Compares each query with the gallery images of its own class and of other classes.

    block: None, or [G] int: the number of the smallest gallery, of `n_blocks`, that an image of another class is in.

    Returns the similarity of the nearest image of the own class [Q] (−inf where there is none) and of the other classes
    in each gallery [Q, n_blocks], float64, and whether the nearest of all is of the own class [Q, n_blocks]. Equal
    distances are ordered by index.
    """
    shape = n_blocks + 1, len(search.query_index)            # the own class; the other classes in each gallery
    images = np.full(shape, -1)
    distances = np.full(shape, np.inf)
    groups = [None] if block is None else [np.flatnonzero(block == number) for number in range(n_blocks)]
    for rows in chunks(np.arange(shape[1]), len(search.gallery)):
        of_own, own, scores = split_by_class(search, rows)
        sought = [(of_own, own), *((scores if group is None else scores[:, group], group) for group in groups)]
        for number, (part, group) in enumerate(sought):
            found = first(search, rows, part, 1, group)
            images[number, rows], distances[number, rows] = (values[:, 0] for values in found)
    for number in range(2, n_blocks + 1):                  # each gallery has the images of the smaller ones
        keeps = comes_before(distances[number - 1], images[number - 1], distances[number], images[number])
        for values in (images, distances):
            values[number] = np.where(keeps, values[number - 1], values[number])
    right = comes_before(distances[0], images[0], distances[1:], images[1:])
    similarities = 1 - distances / 2 if search.euclidean else -distances
    return similarities[0], similarities[1:].T, right.T


def comes_before(distance, image, others, other_images):
    """Whether an image comes before another one, elementwise; where there is none, the distance is inf."""
    return (distance < others) | (distance == others) & np.isfinite(distance) & (image < other_images)


def top_answers(search):
    """The Answers of a Search."""
    own, others, right = nearest(search)
    return Answers(np.maximum(own, others[:, 0]), search.n_positives > 0, right[:, 0], search.query_labels)


class Calibration:
    """
    The queries of the validation classes, each searched twice: with the images of its class in the gallery, and without
    them, as an unknown query. Smaller galleries have the images of fewer other classes.

    part: the Embedded of the validation split. n_use: number of images in the gallery to calibrate for; a measured
    gallery is as near to it as whole classes allow. The whole gallery, half of it, a quarter ... are measured, too.

    sizes:          [S] numbers of images in the measured galleries.
    known, unknown: [Q, S] float64: the similarities of the nearest image, with and without the own class.
    right:          [Q, S] bool: whether the nearest image is of the own class, if that is in the gallery.
    labels:         [Q] the classes of the queries; classes: the same, numbered from 0.
    """

    def __init__(self, part, n_use, seed):
        search = build_search(part, 0, seed)
        n_images = np.bincount(search.gallery_labels)
        classes = np.random.default_rng(seed).permutation(np.flatnonzero(n_images))
        ends = n_images[classes].cumsum()
        smaller = [ends[-1] >> power for power in range(1, 10) if ends[-1] >> power >= SMALLEST]
        wanted = [min(n_use, ends[-1]), ends[-1], *smaller]
        n_classes = np.unique([2 + np.argmin(np.abs(np.log(ends[1:] / size))) for size in wanted])
        self.sizes = ends[n_classes - 1]
        rank = np.empty(len(n_images), int)
        rank[classes] = np.arange(len(classes))
        block = np.searchsorted(n_classes, rank[search.gallery_labels], 'right')
        own, self.unknown, self.right = nearest(search, block, len(n_classes))
        self.known = np.maximum(own[:, None], self.unknown)
        self.labels = search.query_labels
        self.classes = np.unique(self.labels, return_inverse=True)[1]
        self.seed = seed

    def row(self, n_images, rate, n_resamples=0):
        """
        The threshold at which at most `rate` of the unknown queries are accepted in a gallery of about `n_images`, with
        its expected errors and, with n_resamples, 95 % percentile intervals from resamples of the classes.

        A gallery that is f times as large as the largest measured one is extrapolated: it falsely accepts a query with
        the probability 1 − (1 − p)^f, if f such galleries do so independently.
        """
        size = int(np.argmin(np.abs(np.log(self.sizes / n_images))))
        factor = max(1.0, n_images / int(self.sizes[-1]))
        unknown = self.unknown[:, size]
        rate = 1 - (1 - rate) ** (1 / factor)
        threshold = threshold_at(unknown, rate)
        false = unknown >= threshold
        missed = ~(self.right[:, size] & (self.known[:, size] >= threshold))
        row = {'gallery_size': int(n_images if factor > 1 else self.sizes[size]), 'is_extrapolated': factor > 1,
               'threshold': float(threshold), 'fpir': 1 - (1 - mean(false)) ** factor, 'fnir': mean(missed)}
        if n_resamples:
            found = {'threshold': [], 'fpir': [], 'fnir': []}
            order = np.argsort(-unknown, kind='stable')
            random = np.random.default_rng(self.seed)
            sizes, *sums = (np.bincount(self.classes, part) for part in (None, false, missed))
            for _ in range(n_resamples):
                times = np.bincount(random.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
                n_accepted = times[self.classes[order]].cumsum()
                first = np.searchsorted(n_accepted, int(rate * n_accepted[-1] * MORE), 'right')
                found['threshold'].append(np.nextafter(unknown[order[first]], np.inf))
                for name, part in zip(('fpir', 'fnir'), sums, strict=True):
                    found[name].append(times @ part / (times @ sizes))
            found['fpir'] = 1 - (1 - np.array(found['fpir'])) ** factor
            for name, values in found.items():
                row |= dict(zip(columns.interval(name), map(float, np.quantile(values, [0.025, 0.975])), strict=True))
        return row

    def rows(self, n_use, rate):
        """The rows of the measured sizes and of `n_use`, and of twice, four times ... the largest, by size."""
        sizes = {*self.sizes.tolist()}
        larger = 2 * int(self.sizes[-1])
        while (1 - (1 - rate) ** (self.sizes[-1] / larger)) * len(self.unknown) >= LEAST:
            sizes = sizes | {larger}
            larger = 2 * larger
        sizes |= {n_use} if n_use > self.sizes[-1] else set()
        return [self.row(size, rate, N_RESAMPLES) for size in sorted(sizes)]


def row_at(rows, n_images):
    """The row, of Calibration.rows(), whose gallery size is nearest to `n_images` by ratio."""
    return min(rows, key=lambda row: abs(np.log(row['gallery_size'] / max(n_images, 1))))
