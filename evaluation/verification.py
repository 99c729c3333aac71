"""
Metrics of a threshold that decides whether two images are of one class: a pair is accepted where its cosine similarity
reaches the threshold. They describe all pairs of images of a split, each counted once from either end.
"""
import functools

import numpy as np
import torch

from evaluation import precision
from evaluation.neighbours import in_threads

CHUNK = 1 << 20              # similarities at a time and per thread: 4 MB, and 8 MB for their bins
STEPS = 1 << 15              # where a threshold is sought, similarities are rounded to multiples of 1 / STEPS
N_BINS = 2 * STEPS + 1       # from −1 to 1
RATES = 0.01, 0.1            # false-positive rates of the first and the last threshold of OPIS
N_THRESHOLDS = 101           # of OPIS


class Pairs:
    """
    The pairs of images of a split, from embeddings [N, D] and labels [N].

    unit:   [N, D] float32 tensor of norm 1, in the order of the classes.
    ends:   [C + 1] where each class begins in it, and the last one ends.
    n_positives, n_negatives: [C] the pairs of two images of a class, and those with one image of it.
    """

    def __init__(self, embeddings, labels):
        order = torch.as_tensor(np.argsort(labels, kind='stable'), device=embeddings.device)
        self.unit = precision.on_the_sphere(embeddings).float().to(embeddings.device)[order]
        sizes = np.unique(labels, return_counts=True)[1]
        self.ends = np.concatenate([[0], sizes.cumsum()])
        self.n_positives, self.n_negatives = sizes * (sizes - 1), sizes * (len(labels) - sizes)

    def of_classes(self, bins_of, n_bins, reduce):
        """
        Yields, for each class, reduce(positives, negatives): [n_bins] numbers of its pairs.

        bins_of: float32 similarities, any shape -> their bins, integers below n_bins, of the same shape.
        """
        size, groups = max(1, CHUNK // len(self.unit)), []         # rows of a block; classes that share one
        for label, end in enumerate(self.ends[1:]):
            if not groups or end - self.ends[groups[-1][0]] > size:
                groups.append([])
            groups[-1].append(label)

        def of_group(labels):
            first, last = self.ends[labels[0]], self.ends[labels[-1] + 1]
            blocks = ((rows, bins_of(self.similarities(rows)))
                      for rows in (range(start, min(start + size, last)) for start in range(first, last, size)))
            blocks = blocks if len(labels) == 1 else list(blocks)  # one block where there are several classes
            return [reduce(*sum(self.count(label, *block, n_bins) for block in blocks)) for label in labels]

        for found in in_threads(of_group, groups, 'compare pairs'):
            yield from found

    def count(self, label, rows, bins, n_bins):
        """[2, n_bins]: the pairs of a class, and those with one image of it, from the block `rows`; bins: [rows, N]."""
        start, end = self.ends[label:label + 2]
        mine = np.arange(max(start, rows.start), min(end, rows.stop))
        bins = bins[mine - rows.start]
        every, own, selves = (np.bincount(part.ravel(), minlength=n_bins)
                              for part in (bins, bins[:, start:end], bins[np.arange(len(mine)), mine]))
        return np.stack([own - selves, every - own])

    def similarities(self, rows):
        """[r, N] float32 of a range of rows with all images."""
        part = self.unit[rows.start:rows.stop]
        if part.device.type == 'cpu':
            return part.numpy() @ self.unit.numpy().T
        return (part @ self.unit.T).cpu().numpy()

    @functools.cached_property
    def histograms(self):
        """[2, N_BINS] numbers of pairs of one class, and of two, by rounded similarity."""
        return sum(self.of_classes(rounded, N_BINS, lambda *counts: np.stack(counts)))


def rounded(similarities):
    """[...] multiples of 1 / STEPS above −1."""
    return (similarities * STEPS + (STEPS + 0.5)).astype(np.int64)


def threshold(negatives, rate):
    """The lowest bin so that the fraction of the `negatives` [N_BINS] in it and above is at most `rate`."""
    above = np.append(negatives[::-1].cumsum()[::-1], 0)
    return int(np.argmax(above <= rate * above[0] * (1 + 1e-12)))


def distance(bins):
    """Of two points of norm 1 whose similarity is that of a bin."""
    return np.sqrt(2 - 2 * np.minimum(bins / STEPS - 1, 1))


def true_positive_rate(pairs, rate):
    """The fraction of accepted pairs of one class, with the lowest threshold that accepts `rate` of the others."""
    positives, negatives = pairs.histograms
    if not positives.any() or not negatives.any():
        return np.nan
    return positives[threshold(negatives, rate):].sum() / positives.sum()


def class_thresholds(pairs, rate):
    """[C] for each class, the distance at which `rate` of the pairs with one image of it are accepted."""
    return distance(np.array(list(pairs.of_classes(
        rounded, N_BINS, lambda positives, negatives: threshold(negatives, rate)))))


def threshold_spread(pairs, rate):
    """The standard deviation over classes of class_thresholds; nan with one class."""
    return class_thresholds(pairs, rate).std() if len(pairs.n_negatives) > 1 else np.nan


def utilities(pairs, distances):
    """
    [C, T] for each class of two images or more, and each of the ascending `distances` [T] as the threshold, the
    harmonic mean of two fractions: of its pairs that are accepted, and of the pairs with one image of it that are not.
    """
    lowest = (1 - np.square(distances) / 2)[::-1]                  # similarities, ascending

    def accepted_by(similarities):
        bins = np.zeros(similarities.shape, np.int64)
        some = similarities >= lowest[0]
        bins[some] = lowest.searchsorted(similarities[some], 'right')
        return bins

    counts = pairs.of_classes(accepted_by, len(distances) + 1,
                              lambda *counts: np.stack(counts)[:, :0:-1].cumsum(axis=1))
    positives, negatives = np.stack(list(counts), axis=1)          # accepted, at the shortest distance first
    several = pairs.n_positives > 0
    sensitivity = positives[several] / pairs.n_positives[several, None]
    specificity = 1 - negatives[several] / pairs.n_negatives[several, None]
    total = sensitivity + specificity
    return 2 * sensitivity * specificity / np.where(total > 0, total, 1)


def opis(pairs):
    """
    Operating-point inconsistency score: the variance over classes of their utilities(), averaged over N_THRESHOLDS
    distances, equally spaced between those at which RATES of the pairs of two classes are accepted. Zhang et al.,
    Threshold-Consistent Margin Loss for Open-World Deep Metric Learning, ICLR 2024, https://arxiv.org/abs/2307.04047.
    """
    found = operating_range(pairs)
    return np.nan if found is None else utilities(pairs, found).var(axis=0).mean()


def operating_range(pairs):
    """[N_THRESHOLDS] the distances of OPIS; None where no two images are of one class, or all are."""
    if not pairs.n_positives.any() or not pairs.n_negatives.any():
        return None
    return np.linspace(*(distance(threshold(pairs.histograms[1], rate)) for rate in RATES), N_THRESHOLDS)
