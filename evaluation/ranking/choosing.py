"""
Estimates whether ranking by counting or by sorting is faster on the CPU. The estimates depend on the embeddings only,
not on measured times, so that a repeated run ranks in the same way.

Counting looks up every score above the score of the query's farthest positive and within the last rank that a metric
uses. These scores are few if the classes are well separated or if only the first ranks matter; they are nearly all
scores if the classes are large and overlap. Their fraction is estimated from a sample of the scores.

The constants, in nanoseconds, were fitted to 40 measured times of counting and 40 of sorting: 6,000 and 12,000 images
with 7 to 300 positives, recall@1 of 0.3 to 0.99, 128 and 512 dimensions, one thread of an Intel Xeon with AVX-512. Only
their ratios matter. Counting also takes a constant time per query, which they leave out; because of it, sorting is
faster below 4,000 images.
"""
import numpy as np

from evaluation.ranking import counting, sorting

FEW = 4000                   # size of the gallery below which sorting is faster
QUERIES = 64                 # number of queries in the sample of the scores
MULTIPLY = 0.015             # per score and dimension
COMPARE = 3.2                # per score, in counting
LOOK_UP, HALVE = 8.0, 6.3    # per score that is looked up, and per step of its binary search
PARTITION, SORT = 3.9, 6.1   # per score, in sorting: if only the highest scores are sorted; if all are
COUNT_POSITIVE, SORT_POSITIVE = 120.0, 90.0                # per positive, in counting; in sorting


def choose(search, depth):
    """'count' or 'sort'. depth: the last rank that matters, a number or one for each query of the Search."""
    if len(search.gallery) < FEW:
        return 'sort'
    by_counting, by_sorting = estimates(search, depth)
    return 'count' if by_counting <= by_sorting else 'sort'


def estimates(search, depth):
    """The estimated nanoseconds per query by counting and by sorting."""
    n, depth, n_positives = len(search.gallery), np.max(depth), search.n_positives.mean()
    multiply = MULTIPLY * search.queries.shape[1]
    look_up = fraction_above(search, depth) * (LOOK_UP + HALVE * np.log2(n_positives + 1))
    by_counting = (multiply / 2 if search.symmetric else multiply) + COMPARE + look_up
    by_sorting = multiply + (PARTITION if sorting.is_partial(depth + 1, n) else SORT)
    by_counting, by_sorting = (by_counting * n + COUNT_POSITIVE * n_positives,
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
    floor = np.maximum(farthest, counting.estimate(scores, len(search.gallery), depth))
    return np.mean(scores >= floor[:, None])
