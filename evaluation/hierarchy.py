"""
Retrieval metrics over levels of super-classes, each a value per query. The level of an image is the number of labels
(class, super-class, ...) that it shares with the query.

ranks [q, M]: of the images of level 1 or more, ascending, padded with inf. levels [q, M]: of these images, padded with
0. n_levels: L, the number of labels of an image. Definitions: Ramzi et al., Hierarchical Average Precision Training for
Pertinent Image Retrieval, ECCV 2022, https://arxiv.org/abs/2207.04873.
"""
import numpy as np
import torch

from evaluation.counting import true_places
from evaluation.neighbours import chunks, in_threads

CHUNK = 1 << 20              # scores that are sorted at a time and per thread: 8 MB, and as much for their order


def ranked_levels(search, labels):
    """
    Yields, in groups that together are the queries that share a label with an image: rows [q], indices among the
    queries, and their ranks and levels, exact as those of ranking.positive_ranks. Only CHUNK scores are held at a time.

    search: a neighbours.Search. labels: [N, L] int64, of the N images that it was made of.
    """
    labels = labels.astype(np.int32)                       # faster to compare
    gallery = np.ascontiguousarray(labels[search.gallery_index].T)
    blur = search.blur(np.arange(len(search.own))).cpu().numpy()

    def ranked(rows):
        shared = sum((own[:, None] == others).view(np.uint8)
                     for own, others in zip(labels[search.query_index[rows]].T, gallery, strict=True))
        selves = np.flatnonzero(search.own[rows] >= 0)
        shared[selves, search.own[rows[selves]]] = 0
        some = shared.any(axis=1)
        rows = rows[some]
        return (rows, *positives(in_order(search, rows, shared[some], blur[rows]))) if len(rows) else None

    parts = chunks(np.arange(len(search.own)), len(search.gallery), CHUNK)
    search.scores(np.arange(0))                            # what it caches, or each thread would compute it
    yield from filter(None, in_threads(ranked, parts, 'rank levels'))


def in_order(search, rows, levels, blur):
    """The `levels` [q, G] of the gallery for the queries `rows`, from the nearest image to the farthest. blur: [q]."""
    scores = search.scores(rows)
    order, ordered = descending(scores, levels)
    # those that float32 may not be able to order, as in Search.margins
    least = np.where(blur > 0, -blur / search.tolerance - 2 * blur, np.inf)
    scores = scores.cpu().numpy()
    n_close = (scores > least[:, None]).sum(axis=1)
    n = max(1, n_close.max())
    values = np.take_along_axis(scores, order(n), axis=1)
    doubtful = (values[:, :-1] - values[:, 1:] <= blur[:, None]) & (ordered[:, :n - 1] != ordered[:, 1:n])
    doubtful &= np.arange(1, n) < n_close[:, None]
    for number in np.flatnonzero(doubtful.any(axis=1)):
        images = order(n)[number, :n_close[number]]
        images = images[np.lexsort((images, search.squared_distances(rows[number], images)))]
        ordered[number, :len(images)] = levels[number, images]
    return ordered


def descending(scores, levels):
    """
    Sorts the rows of `scores` [q, G] in descending order, equal ones by index.

    Returns a function of n that gives the indices of the n highest, [q, n], and the levels [q, G] uint8 in that order.
    On the CPU float32 scores are sorted in integers that also hold index and level, three times as fast as by torch.
    """
    n_queries, n_gallery = scores.shape
    if scores.device.type != 'cpu' or scores.dtype != torch.float32 or n_gallery >= 1 << 24:
        order = scores.sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
        return lambda n: order[:, :n], np.take_along_axis(levels, order, axis=1)
    bits = (scores.numpy() + 0.0).view(np.int32)                   # + 0, since the bits of −0 are not those of 0
    keys = np.empty(scores.shape, np.uint64)
    halves = keys.view(np.int32).reshape(n_queries, n_gallery, 2)  # the lower one first
    halves[:, :, 1] = bits ^ (~(bits >> 31) & 0x7fffffff)
    halves[:, :, 0] = (np.arange(n_gallery, dtype=np.int32) << 8) | levels
    keys.sort(axis=1)
    ordered = keys.view(np.uint8).reshape(n_queries, n_gallery, 8)[:, :, 0].copy()
    return lambda n: (keys[:, :n] >> np.uint64(8)).astype(np.int64) & 0xffffff, ordered


def positives(levels):
    """levels [q, G] in the order of the ranks -> ranks [q, M], levels [q, M] of those that are not 0."""
    rows, columns = np.divmod(true_places(levels != 0), levels.shape[1])
    sizes = np.bincount(rows, minlength=len(levels))
    slots = np.arange(len(rows)) - np.repeat(sizes.cumsum() - sizes, sizes)
    ranks = np.full((len(levels), sizes.max()), np.inf)
    kept = np.zeros(ranks.shape, np.uint8)
    ranks[rows, slots], kept[rows, slots] = columns + 1, levels[rows, columns]
    return ranks, kept


def sizes_of(levels, n_levels):
    """[q, L]: the number of images at each level, from 1 on."""
    return np.stack([(levels == level).sum(axis=1) for level in range(1, n_levels + 1)], axis=1)


def h_ap(ranks, levels, n_levels):
    """
    Hierarchical average precision, Σ_r hrank(r) / r over Σ_r rel(r), r the ranks of the images of level 1 or more.
    rel of an image of level l is l / L over the number of images of that level, and hrank(r) = Σ_{i ≤ r} min(rel(r),
    rel(i)). With one level it is the average precision.
    """
    values = np.arange(1, n_levels + 1) / n_levels / np.maximum(sizes_of(levels, n_levels), 1)
    relevance = np.take_along_axis(values, np.maximum(levels, 1) - 1, axis=1) * (levels > 0)
    hierarchical_rank = sum(np.minimum(relevance, values[:, [level - 1]]) * (levels == level).cumsum(axis=1)
                            for level in range(1, n_levels + 1))
    return (hierarchical_rank / ranks).sum(axis=1) / relevance.sum(axis=1)


def asi(ranks, levels, n_levels):
    """
    Average set intersection: the mean over k = 1 ... n, the number of images of level 1 or more, of the fraction of the
    k nearest images that the ideal ranking has too, where images of one level count as equal.
    """
    n_images, n = sizes_of(levels, n_levels), (levels > 0).sum(axis=1)
    k = np.arange(1, levels.shape[1] + 1)
    common = np.zeros(levels.shape)
    for level in range(1, n_levels + 1):
        found = np.zeros(levels.shape)
        rows, slots = np.nonzero((levels == level) & (ranks <= len(k)))
        found[rows, ranks[rows, slots].astype(int) - 1] = 1
        better, own = n_images[:, level:].sum(axis=1)[:, None], n_images[:, [level - 1]]
        common += np.minimum(found.cumsum(axis=1), (k - better).clip(0, own))
    return (common / k * (k <= n[:, None])).sum(axis=1) / n


def ndcg(ranks, levels, n_levels):
    """Σ (2^level − 1) / log₂(1 + rank), over that of the ideal ranking. Järvelin and Kekäläinen, ACM TOIS 2002."""
    ideal = np.sort(levels, axis=1)[:, ::-1]
    discount = np.log2(1 + np.arange(1, levels.shape[1] + 1))
    return ((2.0 ** levels - 1) / np.log2(1 + ranks)).sum(axis=1) / ((2.0 ** ideal - 1) / discount).sum(axis=1)
