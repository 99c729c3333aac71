"""
Estimates whether ranking by counting or by sorting is faster on the CPU. The estimates depend on the embeddings only,
not on measured times, so that a repeated run ranks in the same way.

Counting looks up every score above the score of the query's farthest positive and within the last rank that a metric
uses. These scores are few if the classes are well separated or if only the first ranks matter; they are nearly all
scores if the classes are large and overlap. Their fraction is estimated from a sample of the scores.

The constants, in nanoseconds, were fitted to 180 measured times of counting and of sorting: 6,000 and 12,000 images
with 7 to 300 positives, recall@1 of 0.3 to 0.99, 128 and 512 dimensions, one thread of an AMD EPYC (Zen 5). Only their
ratios matter.
"""
import numpy as np

from evaluation.ranking import counting, sorting

FEW = 4000                   # size of the gallery below which sorting is faster
QUERIES = 24                 # number of queries in the sample of the scores
MULTIPLY = 0.02              # per score and dimension
COMPARE = 0.55               # per score, in counting
LOOK_UP, HALVE = 4.5, 2.5    # per score that is looked up, and per step of its binary search
PARTITION, SORT = 2.1, 3.7   # per score, in sorting: if only the highest scores are sorted; if all are
COUNT_POSITIVE, SORT_POSITIVE = 100.0, 50.0                # per positive, in counting; in sorting
COUNT_QUERY = 4900.0         # per query, in counting


def choose(search, depth):
    """'count' or 'sort'. depth: the last rank that matters, a number or one for each query of the Search."""
    if len(search.gallery) < FEW:
        return 'sort'
    by_counting, by_sorting = estimates(search, depth)
    return 'count' if by_counting <= by_sorting else 'sort'


def estimates(search, depth):
    """The estimated nanoseconds per query by counting and by sorting."""
    n, n_positives = len(search.gallery), search.n_positives.mean()
    multiply = MULTIPLY * search.queries.shape[1]
    look_up = fraction_above(search, depth) * (LOOK_UP + HALVE * np.log2(n_positives + 1))
    computed = (n + counting.TILE) / (2 * n) if search.symmetric else 1            # half of the tiles, and a diagonal
    by_counting = multiply * computed + COMPARE + look_up
    by_sorting = multiply + (PARTITION if sorting.is_partial(np.max(depth) + 1, n) else SORT)
    by_counting, by_sorting = (by_counting * n + COUNT_POSITIVE * n_positives + COUNT_QUERY,
                               by_sorting * n + SORT_POSITIVE * n_positives)
    return by_counting + search.shares_embeddings.mean() * by_sorting, by_sorting      # counting leaves some to sorting


def fraction_above(search, depth):
    """The fraction of the scores that reach the floor of counting.Strip, in a sample of queries and gallery images."""
    rows = np.flatnonzero(search.n_positives)
    rows = rows[np.linspace(0, len(rows) - 1, min(QUERIES, len(rows))).astype(int)]
    places, exists = search.positives(rows)
    sample = counting.sample_of(len(search.gallery))
    images = np.union1d(places[exists], sample)
    scores = search.scores(rows, images).numpy()
    own = np.take_along_axis(scores, np.where(exists, np.searchsorted(images, places), 0), axis=1)
    farthest = np.where(exists, own, np.inf).min(axis=1)
    scores = scores[:, np.searchsorted(images, sample)]
    if np.all(depth <= search.n_positives):                # as in Counting.look_up, with the sample for other classes
        ascending = np.sort(np.hstack([np.where(exists, own, -np.inf), scores]), axis=1)
        depth = np.broadcast_to(depth, len(search.n_positives))[rows]
        nearest = np.take_along_axis(ascending, -depth[:, None], axis=1)[:, 0]
    else:
        nearest = counting.estimate(scores, len(search.gallery), np.max(depth))
    floor = np.maximum(farthest, nearest)
    return np.mean(scores >= floor[:, None])
