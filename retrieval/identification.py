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
from evaluation.ranking.draws import random_places
from evaluation.ranking.nearest import first_by_class
from evaluation.ranking.neighbours import Search
from records import columns

N_RESAMPLES = 1000           # resamples of the validation classes, for intervals


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
    if not len(known):
        return np.nan
    return mean(answers.unknown >= known[int(np.ceil(rate * len(known) / rank_metrics.ROUNDING)) - 1])


def fnir_at_fpir(answers, rate):
    """fnir() at the lowest threshold that accepts at most `rate` of the unknown queries."""
    return fnir(answers, threshold_at(answers.unknown, rate)) if len(answers.unknown) else np.nan


def threshold_at(unknown, rate):
    """The lowest threshold that at most a fraction `rate` < 1 of the similarities `unknown` [u], u > 0, reach."""
    return np.nextafter(np.sort(unknown)[::-1][int(rate * len(unknown) * rank_metrics.ROUNDING)], np.inf)


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
    return np.intersect1d(images.labels[images.is_query], images.labels[images.in_gallery])


def divided(images, share, seed):
    """
    Which images of an ImageSet are queries, [N] bool, and which are the gallery, [N] bool. A share of the classes has
    no gallery. Of the images of each other class that are queries and in the gallery, half (rounded up) stay in the
    gallery, chosen by `seed`, and the others stay queries. Distractors are in the gallery.
    """
    random = np.random.default_rng(seed)
    labels = images.labels
    classes = random.permutation(removable_classes(images))
    unknown = np.isin(labels, classes[:round(share * len(classes))])
    in_both = np.flatnonzero(images.is_query & images.in_gallery)
    sizes = np.bincount(labels[in_both])[labels[in_both]]
    half = np.zeros(len(labels), bool)
    half[in_both] = random_places(labels[in_both], random) < (sizes + 1) // 2
    queries = images.is_query & (unknown | ~half | ~images.in_gallery)
    return queries, images.in_gallery & ~unknown & (half | ~images.is_query)


def build_search(part, share, seed):
    """The Search of the queries of an Embedded in the gallery of divided()."""
    ranking = part.ranking(part.embeddings) if part.ranking else None
    return Search(part.embeddings, part.images.labels, *divided(part.images, share, seed), ranking)


def nearest(search):
    """
    Compares each query with the gallery images of its own class and of other classes.

    Returns three arrays [Q]: the similarity of the nearest image of the own class (−inf where there is none), that of
    the nearest image of other classes, and whether the first is the nearer one. Equal distances are ordered by index.
    """
    shape = 2, len(search.query_index)                       # the own class, and the other classes
    images = np.full(shape, -1)
    distances = np.full(shape, np.inf)
    for rows in chunks(np.arange(shape[1]), len(search.gallery)):
        for number, found in enumerate(first_by_class(search, rows, 1)):
            images[number, rows], distances[number, rows] = (values[:, 0] for values in found)
    tied = (distances[0] == distances[1]) & np.isfinite(distances[0])
    right = (distances[0] < distances[1]) | tied & (images[0] < images[1])
    similarities = 1 - distances / 2 if search.euclidean else -distances
    return *similarities, right


def top_answers(search):
    """The Answers of a Search."""
    own, others, right = nearest(search)
    return Answers(np.maximum(own, others), search.n_positives > 0, right, search.query_labels)


def calibrate(part, rate, seed):
    """
    The lowest threshold that at most `rate` of the unknown queries of the validation classes reach. Each query of a
    class with gallery images is searched twice: with these images, and without them, as an unknown query.

    part: the Embedded of the validation split.

    Returns {'gallery_size', 'threshold', 'fpir', 'fnir'}, with 95 % percentile intervals of the last three from
    resamples of the classes; fpir and fnir of the resamples are at this threshold.
    """
    search = build_search(part, 0, seed)
    has_own = search.n_positives > 0
    own, unknown, right, labels = (values[has_own] for values in (*nearest(search), search.query_labels))
    threshold = threshold_at(unknown, rate)
    false = unknown >= threshold
    missed = ~(right & (np.maximum(own, unknown) >= threshold))
    row = {'gallery_size': len(search.gallery_index), 'threshold': float(threshold), 'fpir': mean(false),
           'fnir': mean(missed)}
    found = {'threshold': [], 'fpir': [], 'fnir': []}
    order = np.argsort(-unknown, kind='stable')
    classes = np.unique(labels, return_inverse=True)[1]
    sizes, n_false, n_missed = (np.bincount(classes, values) for values in (None, false, missed))
    random = np.random.default_rng(seed)
    for _ in range(N_RESAMPLES):
        times = np.bincount(random.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
        n_accepted = times[classes[order]].cumsum()
        highest_rejected = np.searchsorted(n_accepted, int(rate * n_accepted[-1] * rank_metrics.ROUNDING), 'right')
        found['threshold'].append(np.nextafter(unknown[order[highest_rejected]], np.inf))
        found['fpir'].append(times @ n_false / (times @ sizes))
        found['fnir'].append(times @ n_missed / (times @ sizes))
    for name, values in found.items():
        row |= dict(zip(columns.interval(name), map(float, np.quantile(values, [0.025, 0.975])), strict=True))
    return row
