"""
The ranks of every query's positives: exact, in memory that grows with the number of positive pairs only.

The rank of a positive is 1 + the number of gallery images that come before it: those with a higher score, and those
with the same score and a smaller index. Four ways give the same ranks; docs/evaluation.md has their times. Each leaves
the queries that float32 cannot rank to by_differences.
"""
import numpy as np
import torch
from tqdm import tqdm

from evaluation import neighbours
from evaluation.counting import by_counting
from evaluation.deciding import by_differences

CHUNK = 1 << 24              # scores in memory at a time, where whole rows are needed: 64 MB
SORTED = 1 << 21             # scores in memory at a time and per thread, where they are sorted
COUNT_UP_TO = 64             # mean number of positives up to which counting is faster than sorting
SEARCH_FROM, SEARCH_DEPTH = 8, 256     # mean number of positives from which, and last rank up to which, faiss is faster

BACKENDS = ('auto', 'count', 'sort', 'search', 'torch')


def choose(search, depth, backend='auto'):
    """The fastest backend for a Search, or the one that --ranking_backend asks for."""
    if backend != 'auto':
        return backend
    if search.queries.device.type != 'cpu':
        return 'torch'
    n_positives = search.n_positives.mean()
    worthwhile = np.max(depth) <= SEARCH_DEPTH and (n_positives > SEARCH_FROM or not search.symmetric)
    in_float32 = search.euclidean or search.queries.dtype == torch.float32         # faiss has no other type
    if worthwhile and in_float32 and has_faiss():
        return 'search'
    return 'count' if n_positives <= COUNT_UP_TO else 'sort'


def has_faiss():
    try:
        import faiss
    except ImportError:
        return False
    return bool(faiss)


def positive_ranks(search, depth=np.inf, backend='auto', approximate=None):
    """
    Yields, in groups that together are the queries with a positive: rows [q], indices among the queries, and the
    ranks of their positives, [q, R] float64, ascending and padded with inf. The nearest image has rank 1.

    depth:       a number, or one for each query: ranks beyond it may be given as inf.
    backend:     one of BACKENDS.
    approximate: None, or a faiss index of the gallery to search in.
    """
    if approximate is not None:
        return by_search(search, depth, approximate)
    ways = {'count': by_counting, 'sort': by_sorting, 'torch': by_torch, 'search': by_search}
    return ways[choose(search, depth, backend)](search, depth)


def chunks(rows, n_gallery, n_scores=None):
    """Parts of an index array of queries that have up to `n_scores` scores, or CHUNK."""
    size = max(1, (n_scores or CHUNK) // max(1, n_gallery))
    return [rows[start:start + size] for start in range(0, len(rows), size)]


def by_sorting(search, depth, rows=None):
    """Sorts the scores of each query, or the highest of them, and looks up those of its positives: for large classes."""
    rows = np.flatnonzero(search.n_positives) if rows is None else rows
    depth, parts, unclear = np.broadcast_to(depth, len(search.n_positives)), chunks(rows, len(search.gallery), SORTED), []
    found = neighbours.in_threads(lambda part: sorted_ranks(search, part, depth[part].max()), parts, 'rank')
    for part, (ranks, clear) in zip(parts, found, strict=True):
        unclear.append(part[~clear])
        yield part[clear], ranks[clear]
    yield from by_differences(search, together(unclear), depth)


def sorted_ranks(search, part, depth):
    """Of some queries: [q, R] ranks as positive_ranks yields them, and [q] bool: whether float32 can order the scores."""
    places, exists = search.positives(part)
    scores = search.scores(part)
    margins = search.margins(part, scores.gather(1, torch.from_numpy(places))).numpy()
    scores = scores.numpy()
    mine, ascending = np.take_along_axis(scores, places, axis=1), highest(scores, depth + 1)
    complete, k = ascending.shape == scores.shape, ascending.shape[1]
    least = np.full(len(part), -np.inf, scores.dtype) if complete else ascending[:, 0]
    row, slot = np.nonzero(exists & (mine >= least[:, None]))
    score = mine[row, slot]
    below = neighbours.bisect(ascending, row, score)
    ranks, clear = np.full(places.shape, np.inf), np.ones(len(part), bool)
    ranks[row, slot] = k - below
    tied = (ascending[row, np.minimum(below + 1, k - 1)] == score) & (below + 1 < k) | (score == least[row])
    for number in np.flatnonzero(tied):
        others, place = scores[row[number]], places[row[number], slot[number]]
        ranks[row[number], slot[number]] = (1 + np.count_nonzero(others > score[number])
                                            + np.count_nonzero(others[:place] == score[number]))
    close = exists & (margins > 0) & (mine + margins >= least[:, None])
    cut = close & (mine - margins <= least[:, None])       # images below the highest may be within the margin
    clear &= ~cut.any(axis=1)
    for number in np.flatnonzero(close.any(axis=1) & clear):
        own, margin = mine[number, exists[number]], margins[number, exists[number]]
        rivals = within(ascending[number], own, margin) > within(np.sort(own), own, margin)
        clear[number] = not rivals[close[number, exists[number]]].any()
    return np.sort(ranks, axis=1), clear


def highest(scores, k):
    """[q, K] the k highest scores of each row of [q, G], or all of them, ascending."""
    n = scores.shape[1]
    if k < n / 4:
        scores = np.partition(scores, n - int(k), axis=1)[:, n - int(k):]
    return np.sort(scores, axis=1)


def within(ascending, values, margins):
    """How many of the `ascending` numbers are within the margin of each value."""
    return ascending.searchsorted(values + margins, 'right') - ascending.searchsorted(values - margins)


def together(parts):
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def by_torch(search, depth):
    """Counts as by_counting does, for one positive of each query at a time in whole rows of scores: for GPUs."""
    rows, device = np.flatnonzero(search.n_positives), search.queries.device
    columns = torch.arange(len(search.gallery), device=device)
    rows, unclear = rows[np.argsort(-search.n_positives[rows], kind='stable')], []     # alike numbers in a chunk
    for part in tqdm(chunks(rows, len(search.gallery)), 'rank', leave=False, disable=None):
        scores = search.scores(part)
        places, exists = search.positives(part)
        ranks, slots, exist = [], torch.as_tensor(places, device=device), torch.as_tensor(exists, device=device)
        mine = scores.gather(1, slots).where(exist, -torch.inf)
        margins = search.margins(part, mine)
        coarse = ((margins > 0) & exist).any(dim=0).tolist()
        clear = torch.ones(len(part), dtype=torch.bool, device=device)
        for number, slot in enumerate(slots.T[:, :, None]):
            own = scores.gather(1, slot)
            ranks.append(((scores > own) | ((scores == own) & (columns < slot))).sum(dim=1) + 1)
            if coarse[number]:
                close = margins[:, [number]]
                rivals = ((scores - own).abs() <= close).sum(dim=1) > ((mine - own).abs() <= close).sum(dim=1)
                clear &= ~(rivals & (close[:, 0] > 0) & exist[:, number])
        ranks, clear = torch.stack(ranks, dim=1).cpu().numpy(), clear.cpu().numpy()
        unclear.append(part[~clear])
        yield part[clear], np.sort(np.where(exists, ranks, np.inf), axis=1)[clear]
    yield from by_differences(search, together(unclear), depth)


def by_search(search, depth, index=None):
    """
    Finds the positives among the `depth` nearest images with faiss: for a small depth. Where faiss may have returned
    only some of the images with an equal score, or float32 cannot order two scores, the query is ranked by sorting,
    unless the index is approximate.
    """
    exact, depth = index is None, np.max(depth)
    index = neighbours.flat_index(search) if exact else index
    rows = np.flatnonzero(search.n_positives)
    # one more for the query itself, one to see whether the last place is shared
    k = int(min(depth, len(search.gallery)) + 2)
    unclear = []
    size = min(4096, max(1, CHUNK // (4 * k)))
    for start in tqdm(range(0, len(rows), size), 'search', leave=False, disable=None):
        part = rows[start:start + size]
        distances, found = index.search(search.move(search.queries[part]).cpu().numpy(), min(k, len(search.gallery)))
        tied = np.flatnonzero((np.diff(distances, axis=1) == 0).any(axis=1))
        for row in tied:
            found[row] = found[row][np.lexsort((found[row], distances[row] if search.euclidean else -distances[row]))]
        others = (found != search.own[part, None]) & (found >= 0)
        ranks = others.cumsum(axis=1)
        positive = others & (search.gallery_labels[found] == search.query_labels[part, None])
        hits = positive & (ranks <= depth)
        ranks = np.sort(np.where(hits, ranks, np.inf), axis=1)[:, :search.n_positives[part].max()]
        clear = np.ones(len(part), bool)
        if exact:
            margins = 2 * search.margins(part, torch.from_numpy(distances) / -2).cpu().numpy()
            if k <= len(search.gallery):
                clear = (abs(distances - distances[:, -1:]) <= margins[:, -1:]).sum(axis=1) < 2
            close = (np.diff(distances, axis=1) <= margins[:, :-1]) & (margins[:, :-1] > 0)
            clear &= ~(close & np.diff(positive | ~others, axis=1)).any(axis=1)
        unclear.append(part[~clear])
        yield part[clear], ranks[clear]
    yield from by_sorting(search, depth, together(unclear))
