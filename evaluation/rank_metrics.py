"""
Metrics of retrieval, each a value per query, from the ranks of the query's positives.

ranks [Q, R]: ascending, padded with inf. n_positives [Q]: at least 1. Definitions: Musgrave et al., A Metric Learning
Reality Check, ECCV 2020, section 3.3, and Roth et al., ICML 2020, appendix.
"""
import numpy as np

ROUNDING = 1 + 1e-12         # factor for rate * number, which rounding may put just below a whole number


def recall_at(ranks, n_positives, k):
    """1 where any of the k nearest images is a positive."""
    return (ranks[:, 0] <= k).astype(float)


def precision_at_1(ranks, n_positives):
    return recall_at(ranks, n_positives, 1)


def r_precision(ranks, n_positives):
    """The fraction of positives among the R nearest images, where R is the number of positives."""
    return (ranks <= n_positives[:, None]).sum(axis=1) / n_positives


def average_precision(ranks, n_positives, cut):
    """Sum of the precisions at the positives among the `cut` nearest images, over min(R, cut). cut: int or [Q]."""
    precisions = np.arange(1, ranks.shape[1] + 1) / ranks
    within = ranks <= np.broadcast_to(cut, n_positives.shape)[:, None]
    return (precisions * within).sum(axis=1) / np.minimum(n_positives, cut)


def map_at_r(ranks, n_positives):
    """MAP@R: average precision cut at R, the number of positives."""
    return average_precision(ranks, n_positives, n_positives)


def trapezoidal_average_precision(ranks, n_positives):
    """
    The area under the precision-recall curve by the trapezoidal rule: the mean over the positives of (precision at the
    positive + precision at the rank before) / 2, where the precision before rank 1 is 1. As in the code of Philbin et
    al., Object Retrieval with Large Vocabularies and Fast Spatial Matching, CVPR 2007, and of Zheng et al., ICCV 2015.
    """
    found = np.arange(ranks.shape[1])
    before = np.where(ranks > 1, found / np.maximum(ranks - 1, 1), 1)
    exists = found < n_positives[:, None]
    return (((found + 1) / ranks + before) * exists).sum(axis=1) / (2 * n_positives)


def inverse_negative_penalty(ranks, n_positives):
    """
    The number of positives over the rank of the last one. Ye et al., Deep Learning for Person Re-identification: A
    Survey and Outlook, TPAMI 2021, https://arxiv.org/abs/2001.04193, Eq. 9.
    """
    return n_positives / ranks[np.arange(len(ranks)), n_positives - 1]


def auroc(confidence, correct):
    """
    The area under the ROC curve: the probability that a correct answer has a higher confidence than a wrong one; equal
    confidences count half. confidence: [n]; correct: [n], 0 or 1. nan if all answers are correct, or all are wrong.
    """
    _, place, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = (counts.cumsum() - (counts - 1) / 2)[place]
    n_correct = np.count_nonzero(correct)
    n_pairs = n_correct * (len(correct) - n_correct)
    return (middle[correct > 0].sum() - n_correct * (n_correct + 1) / 2) / n_pairs if n_pairs else np.nan


def interval(values, labels, n_resamples, seed):
    """
    95 % percentile interval of the mean over queries, from resamples of the classes with replacement, since queries of
    one class are not independent. Field et al., Bootstrapping Clustered Data, JRSS B 2007.

    values: [Q]; labels: [Q] int64. Returns (low, high); nan without queries.
    """
    if not len(values):
        return np.nan, np.nan
    labels = np.unique(labels, return_inverse=True)[1]
    sums, sizes = np.bincount(labels, values), np.bincount(labels)
    random, means = np.random.default_rng(seed), np.empty(n_resamples)
    for i in range(n_resamples):
        sample = random.integers(0, len(sums), len(sums))
        means[i] = sums[sample].sum() / sizes[sample].sum()
    return tuple(map(float, np.quantile(means, [0.025, 0.975])))
