"""
The faster way of ranking on the CPU, counting or sorting, estimated from counted quantities: no clock, so that a run
that is repeated ranks in the same way.

The estimates are nanoseconds per score. What matters is how many scores counting has to look up among those of the
positives, because they are above the farthest one: few where nearly all neighbours are right or only the first ranks
matter, most of them where classes are large and mixed. Their fraction is taken from a sample of the scores. The
constants were fitted to measurements of `python -m benchmarks.evaluation sweep`; only their ratios matter.
"""
import numpy as np

from evaluation import counting, sorting

QUERIES = 64                 # whose scores are sampled
MULTIPLY = 0.017             # per dimension
COMPARE, LOOK_UP, LOOK_UP_STEP, COUNT_POSITIVE = 1.5, 10., 2., 200.
PARTITION, SORT, SORT_POSITIVE = 3., 5., 100.


def choose(search, depth):
    """'count' or 'sort' for a Search and the last rank that matters, a number or one for each query."""
    by_count, by_sort = estimates(search, depth)
    return 'count' if by_count <= by_sort else 'sort'


def estimates(search, depth):
    """Nanoseconds per score of counting and of sorting."""
    depth = np.broadcast_to(depth, search.own.shape).max()
    multiply = MULTIPLY * search.queries.shape[1]
    positives = search.n_positives.mean()
    look_up = LOOK_UP + LOOK_UP_STEP * np.log2(positives + 1)
    by_count = multiply / (2 if search.symmetric else 1) + COMPARE + look_up * fraction_above(search, depth)
    by_sort = multiply + (PARTITION if sorting.is_partial(depth, len(search.gallery)) else SORT)
    return (by_count + COUNT_POSITIVE * positives / len(search.gallery),
            by_sort + SORT_POSITIVE * positives / len(search.gallery))


def fraction_above(search, depth):
    """The fraction of scores that reach the floor of counting.Strip, from a sample of queries and gallery images."""
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
