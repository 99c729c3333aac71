"""
Ranks in small galleries that are drawn at random: of each class `size` images, with all other images as queries. Liu et
al., Deep Relative Distance Learning, CVPR 2016, section 5 (VehicleID).

All scores are computed once, in float64; a draw looks up those of its images.
"""
import numpy as np
import torch
from tqdm import tqdm

from evaluation.ranking.arrays import chunks, ranks_in_rows

CHUNK = 1 << 22              # float64 scores that are held at a time: 32 MB


def random_places(labels, random):
    """[N] int64: the place of each image among those of its class, in a random order. labels: [N]."""
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind='stable')]                # by class, each in a random order
    sizes = np.bincount(labels)
    places = np.empty(len(labels), int)
    places[order] = np.arange(len(labels)) - (sizes.cumsum() - sizes)[labels[order]]
    return places


def draw(labels, size, random):
    """Sorted indices of `size` random images of each class, or all where it has fewer. labels: [G]."""
    return np.flatnonzero(random_places(labels, random) < size)


def drawn_ranks(search, n_draws, size, seed):
    """
    Yields, for groups of queries and for each draw: its number, rows [q], indices among the queries, the ranks of
    their positives [q, R], ascending and padded with inf, and the numbers of their positives [q].

    search: a neighbours.Search; a draw takes images of its gallery, and its queries are those that are not drawn and
            have a positive. Equal scores are ordered by index.
    """
    random = np.random.default_rng(seed)
    galleries = [draw(search.gallery_labels, size, random) for _ in range(n_draws)]
    rows = np.flatnonzero(search.n_positives)
    for part in tqdm(chunks(rows, len(search.gallery), CHUNK), 'rank', leave=False, disable=None):
        scores = search.precise_scores(part) if search.euclidean else search.scores(part)
        for number, gallery in enumerate(galleries):
            is_query = ~np.isin(search.own[part], gallery)
            kept, of_gallery = (torch.as_tensor(index, device=scores.device)
                                for index in (np.flatnonzero(is_query), gallery))
            found = ranks(scores[kept][:, of_gallery], search.query_labels[part[is_query]],
                          search.gallery_labels[gallery])
            has_positive = found[1] > 0
            if has_positive.any():
                yield number, part[is_query][has_positive], found[0][has_positive], found[1][has_positive]


def ranks(scores, query_labels, gallery_labels):
    """scores [q, g] -> the ranks of the positives [q, R] float64, as above, and their numbers [q]."""
    order = np.argsort(gallery_labels, kind='stable')
    first = gallery_labels[order].searchsorted(query_labels)
    n_positives = gallery_labels[order].searchsorted(query_labels, 'right') - first
    slots = np.arange(n_positives.max(initial=0))
    exists = slots < n_positives[:, None]
    places = order[np.where(exists, first[:, None] + slots, 0)]
    return ranks_in_rows(scores, places, exists), n_positives
