"""
Retrieval metrics over levels of super-classes, each a value per query. The level of an image is the number of labels
(class, super-class, ...) that it shares with the query.

ranks [q, M] int64: the ranks of the images of level 1 or more, ascending. levels [q, M] uint8: the levels of these
images. A query with fewer than M such images is padded with level 0 and any rank from 1 on. n_levels: L, the number of
labels of an image.

Definitions: Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022,
https://arxiv.org/abs/2207.04873.
"""
import numpy as np
import torch

from evaluation.ranking.arrays import chunks, in_threads, pick
from evaluation.ranking.nearest import distances

CHUNK = 1 << 23              # scores that each thread computes at a time: 32 MB
PART = 1 << 18               # scores that each thread sorts at a time: 2 MB with their order


def ranked_levels(search, labels, reduce):
    """
    Yields, for groups of the queries that share a label with an image: rows [q], indices among the queries, and the
    result of reduce(ranks, levels), which runs in threads. The ranks are as exact as in ranking.positive_ranks.

    search: a neighbours.Search. labels: [N, L] int64, the labels of its N images.
    """
    labels = labels.astype(np.int32)                       # int32 is faster to compare
    gallery = np.ascontiguousarray(labels[search.gallery_index].T)

    def shared(rows):
        """[q, G] uint8 levels of the gallery for the queries `rows`."""
        levels = sum((own[:, None] == others).view(np.uint8)
                     for own, others in zip(labels[search.query_index[rows]].T, gallery, strict=True))
        selves = np.flatnonzero(search.own[rows] >= 0)
        levels[selves, search.own[rows[selves]]] = 0
        return levels

    def ranked(rows):
        scores = search.scores(rows)
        found = []
        for part in chunks(np.arange(len(rows)), len(search.gallery), PART):
            levels = shared(rows[part])
            some = levels.any(axis=1)
            part, levels = part[some], levels[some]
            if len(part):
                own = scores[part[0]:part[-1] + 1] if some.all() else scores[part]           # a slice is no copy
                levels = in_order(search, rows[part], own, levels)
                found.append((rows[part], *reduce(*positives(levels))))
        return found

    parts = chunks(np.arange(len(search.own)), len(search.gallery), CHUNK)
    search.prepare()
    for found in in_threads(ranked, parts, 'rank levels'):
        yield from found


def in_order(search, rows, scores, levels):
    """
    Sorts the `levels` [q, G] of the gallery for the queries `rows` from the nearest image to the farthest, by the
    `scores` [q, G].
    """
    order, ordered = descending(scores, levels)
    blur = search.blur(rows).cpu().numpy()
    # scores that float32 may not be able to order, as in Search.margins
    least = np.where(blur > 0, -blur / search.tolerance - 2 * blur, np.inf)
    nearest = scores[torch.arange(len(rows)), torch.from_numpy(order(1)[:, 0])].cpu().numpy()
    near = np.flatnonzero(nearest > least)
    if not len(near):
        return ordered
    scores = scores[near].cpu().numpy()
    least = least[near, None]
    blur = blur[near, None]
    n_close = (scores > least).sum(axis=1)
    n = n_close.max()
    images = order(n)[near]
    values = np.take_along_axis(scores, images, axis=1)
    doubtful = (values[:, :-1] - values[:, 1:] <= blur) & (ordered[near, :n - 1] != ordered[near, 1:n])
    doubtful &= np.arange(1, n) < n_close[:, None]
    for number in np.flatnonzero(doubtful.any(axis=1)):
        row = near[number]
        some = images[number, :n_close[number]]
        some = some[np.lexsort((some, distances(search, np.full(len(some), rows[row]), some)))]
        ordered[row, :len(some)] = levels[row, some]
    return ordered


def descending(scores, levels):
    """
    Sorts the rows of `scores` [q, G] in descending order, equal scores by index.

    Returns a function of n that gives the indices of the n highest, [q, n], and the levels [q, G] uint8 in that order.
    On the CPU float32 scores are sorted in integers that also hold index and level, three times as fast as by torch.
    """
    n_queries, n_gallery = scores.shape
    if scores.device.type != 'cpu' or scores.dtype != torch.float32 or n_gallery >= 1 << 24:
        order = scores.sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
        return lambda n: order[:, :n], np.take_along_axis(levels, order, axis=1)
    bits = (scores.numpy() + 0.0).view(np.int32)                   # + 0 turns −0 into 0: their bits differ
    lower = bits >> 31
    np.invert(lower, out=lower)
    lower &= 0x7fffffff
    bits ^= lower                                                  # unsigned, the highest score is the smallest number
    np.left_shift(np.arange(n_gallery, dtype=np.int32), 8, out=lower)
    lower |= levels
    keys = np.empty(scores.shape, np.uint64)
    halves = keys.view(np.int32).reshape(n_queries, n_gallery, 2)  # the lower half first
    halves[:, :, 0], halves[:, :, 1] = lower, bits
    keys.sort(axis=1)
    ordered = keys.view(np.uint8).reshape(n_queries, n_gallery, 8)[:, :, 0].copy()
    return lambda n: (keys[:, :n] >> np.uint64(8)).astype(np.int64) & 0xffffff, ordered


def positives(levels):
    """levels [q, G] in the order of the ranks -> ranks [q, M] and levels [q, M] of the images of level 1 or more."""
    row, column, level = pick(levels, levels != 0)
    ends = row.searchsorted(np.arange(len(levels) + 1))
    shape = len(levels), np.diff(ends).max()
    ranks = np.ones(shape, np.int64)
    kept = np.zeros(shape, np.uint8)
    for number, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        ranks[number, :end - start] = column[start:end] + 1
        kept[number, :end - start] = level[start:end]
    return ranks, kept


def level_sizes(levels, n_levels):
    """[q, L]: the number of images at each level, from 1 on."""
    return np.stack([np.count_nonzero(levels == level, axis=1) for level in range(1, n_levels + 1)], axis=1)


def h_ap(ranks, levels, n_levels):
    """
    Hierarchical average precision, Σ_r hrank(r) / r divided by Σ_r rel(r), where r runs over the ranks of the images of
    level 1 or more. An image of level l has rel = l / L divided by the number of images of its level, and hrank(r) =
    Σ_{i ≤ r} min(rel(r), rel(i)). With one level it is the average precision.
    """
    n_images = level_sizes(levels, n_levels)
    relevance = np.arange(1, n_levels + 1) / n_levels / np.maximum(n_images, 1)
    total = 0
    inverse = 1 / ranks
    for nearer in range(n_levels):                         # levels of the images i (nearer) and of the image of rank r
        precision = (levels == nearer + 1).cumsum(axis=1, dtype=np.int32) * inverse
        for level in range(n_levels):
            total += (np.minimum(relevance[:, nearer], relevance[:, level])
                      * np.where(levels == level + 1, precision, 0).sum(axis=1))
    return total / (relevance * n_images).sum(axis=1)


def asi(ranks, levels, n_levels):
    """
    Average set intersection: the fraction of the k nearest images that are also among the k nearest of the ideal
    ranking, averaged over k = 1 ... n, the number of images of level 1 or more. Images of one level count as equal.
    """
    n_images = level_sizes(levels, n_levels)
    k = np.arange(1, levels.shape[1] + 1, dtype=np.int32)
    n = n_images.sum(axis=1)
    common = np.zeros(levels.shape, np.int32)
    row, column, rank = pick(ranks, (ranks <= len(k)) & (levels > 0))
    at_rank = np.zeros(levels.shape, np.uint8)
    at_rank[row, rank - 1] = levels[row, column]
    better = np.zeros((len(n), 1), np.int32)
    for level in range(n_levels, 0, -1):
        own = n_images[:, [level - 1]].astype(np.int32)
        common += np.minimum((at_rank == level).cumsum(axis=1, dtype=np.int32), (k - better).clip(0, own))
        better += own
    return np.where(k <= n[:, None], common / k, 0).sum(axis=1) / n


def ndcg(ranks, levels, n_levels):
    """Σ (2^level − 1) / log₂(1 + rank), divided by its ideal value. Järvelin and Kekäläinen, ACM TOIS 2002."""
    gains = 2.0 ** np.arange(n_levels + 1) - 1
    ends = level_sizes(levels, n_levels)[:, ::-1].cumsum(axis=1)      # where each level ends in the ideal ranking
    sums = np.append(0, np.cumsum(1 / np.log2(1 + np.arange(1, ends.max() + 1))))
    ideal = np.diff(sums[ends], axis=1, prepend=0) @ gains[:0:-1]
    discounts = 1 / np.log2(1 + ranks)
    return (gains.take(levels) * discounts).sum(axis=1) / ideal
