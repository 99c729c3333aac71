"""
The ranks of the positives by sorting. The scores of each query are sorted, or only the highest if no metric uses the
others; the scores of its positives are found among them by binary search.
"""
import numpy as np
import torch

from evaluation.ranking.arrays import bisect, chunks, in_threads

CHUNK = 1 << 21              # scores that each thread holds at a time: 8 MB


def by_sorting(search, depth, rows=None):
    """One of ranks.WAYS: by sorting, on the CPU. rows: None, or the only queries to rank."""
    rows = np.flatnonzero(search.n_positives) if rows is None else rows
    if len(rows):
        search.prepare()
    yield from in_threads(lambda part: sorted_ranks(search, part, depth[part].max()),
                          chunks(rows, len(search.gallery), CHUNK), 'rank')


def sorted_ranks(search, part, depth):
    """The queries `part` [q], their ranks [q, R], and [q] bool: whether float32 can order their scores."""
    places, exists = search.positives(part)
    scores = search.scores(part)
    margins = search.margins(part, scores.gather(1, torch.from_numpy(places))).numpy()
    scores = scores.numpy()
    mine = np.take_along_axis(scores, places, axis=1)
    n = scores.shape[1]
    complete = depth + 1 >= n / 4                          # sorting all of them is then faster
    kept = scores if complete else np.partition(scores, n - int(depth + 1), axis=1)[:, n - int(depth + 1):]
    ascending = np.sort(kept, axis=1)
    k = ascending.shape[1]
    least = np.full(len(part), -np.inf, scores.dtype) if complete else ascending[:, 0]
    row, slot = np.nonzero(exists & (mine >= least[:, None]))
    score = mine[row, slot]
    below = bisect(ascending, row * k, score) - row * k
    ranks = np.full(places.shape, np.inf)
    ranks[row, slot] = k - below
    next_is_equal = (ascending[row, np.minimum(below + 1, k - 1)] == score) & (below + 1 < k)
    tied = next_is_equal | (score == least[row])           # bisect counts equal scores as if this one came first
    for number in np.flatnonzero(tied):
        others, place = scores[row[number]], places[row[number], slot[number]]
        ranks[row[number], slot[number]] = (1 + np.count_nonzero(others > score[number])
                                            + np.count_nonzero(others[:place] == score[number]))
    close = exists & (margins > 0) & (mine + margins >= least[:, None])
    cut = close & (mine - margins <= least[:, None])       # scores that are not kept may be within the margin
    clear = ~cut.any(axis=1)
    for number in np.flatnonzero(close.any(axis=1) & clear):
        own, margin = mine[number, exists[number]], margins[number, exists[number]]
        # how many scores are within the margin of each positive, and how many of its own class
        near, near_own = (some.searchsorted(own + margin, 'right') - some.searchsorted(own - margin)
                          for some in (ascending[number], np.sort(own)))
        clear[number] = not (near > near_own)[close[number, exists[number]]].any()
    return part, np.sort(ranks, axis=1), clear
