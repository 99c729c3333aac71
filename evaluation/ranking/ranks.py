"""
The ranks of every query's positives: exact, in memory that grows with the number of positive pairs only.

The rank of a positive is 1 + the number of gallery images that come before it: images with a higher score, or with the
same score and a smaller index. Three ways give the same ranks: by_counting or by_sorting on the CPU (faster_way chooses
one of them), and by_torch on a GPU. They leave the queries that float32 cannot rank to by_differences; only distances
that differ in the last digits of float32 may be ordered by rounding.
"""
import numpy as np
import torch
from tqdm import tqdm

from evaluation.ranking.arrays import chunks, ranks_in_rows
from evaluation.ranking.counting import by_counting
from evaluation.ranking.deciding import by_differences
from evaluation.ranking.sorting import by_sorting

CHUNK = 1 << 24              # scores in memory at a time, where whole rows are needed: 64 MB
FEW = 4000                   # gallery images below which sorting is faster
MOST_SHORT = 100             # positives per query above which sorting is faster, if no rank beyond their number
                             # matters, as for MAP@R
MOST_DEEP = 10               # the same if other ranks matter


def positive_ranks(search, depth=np.inf, backend='auto'):
    """
    Yields, for groups of the queries that have a positive: rows [q], indices among the queries, and the ranks of their
    positives, [q, R] float64, ascending and padded with inf. The nearest image has rank 1.

    depth:       a number, or one for each query: ranks beyond it may be inf.
    backend:     auto, or one of WAYS.
    """
    depth = np.broadcast_to(depth, len(search.own))
    if backend == 'auto':
        backend = faster_way(search, depth) if search.queries.device.type == 'cpu' else 'torch'
    unclear = [np.empty(0, int)]
    for rows, ranks, clear in WAYS[backend](search, depth):
        unclear.append(rows[~clear])
        yield rows[clear], ranks[clear]
    yield from by_differences(search, np.concatenate(unclear), depth)


def faster_way(search, depth):
    """
    'count' or 'sort', whichever is usually faster on the CPU. Counting looks up nearly all scores where classes are
    large and all ranks matter. The limits were measured at recall@1 of 0.3 to 0.99.
    """
    most = MOST_SHORT if np.all(depth <= search.n_positives) else MOST_DEEP
    return 'count' if len(search.gallery) >= FEW and search.n_positives.mean() <= most else 'sort'


def by_torch(search, depth):
    """
    Yields rows [q] of queries, the ranks of their positives [q, R], and which queries are clear [q]: counts in whole
    rows of scores, for one positive of each query at a time, as suits GPUs.
    """
    rows = np.flatnonzero(search.n_positives)
    device = search.queries.device
    rows = rows[np.argsort(-search.n_positives[rows], kind='stable')]                  # similar numbers in a chunk
    for part in tqdm(chunks(rows, len(search.gallery), CHUNK), 'rank', leave=False, disable=None):
        scores = search.scores(part)
        places, exists = search.positives(part)
        exist = torch.as_tensor(exists, device=device)
        mine = scores.gather(1, torch.as_tensor(places, device=device)).where(exist, -torch.inf)
        margins = search.margins(part, mine)
        clear = torch.ones(len(part), dtype=torch.bool, device=device)
        for number in ((margins > 0) & exist).any(dim=0).nonzero()[:, 0].tolist():
            own = mine[:, [number]]
            close = margins[:, [number]]
            rivals = ((scores - own).abs() <= close).sum(dim=1) > ((mine - own).abs() <= close).sum(dim=1)
            clear &= ~(rivals & (close[:, 0] > 0) & exist[:, number])
        yield part, ranks_in_rows(scores, places, exists), clear.cpu().numpy()


# functions of (search, depth [number of queries]) that yield, for groups of queries: rows [q], ranks [q, R], and [q]
# bool: whether float32 can order their scores
WAYS = {'count': by_counting, 'sort': by_sorting, 'torch': by_torch}
