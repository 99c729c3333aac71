"""
The ranks of every query's positives: exact, in memory that grows with the number of positive pairs only.

The rank of a positive is 1 + the number of gallery images that come before it: those with a higher score, and those
with the same score and a smaller index. Four ways give the same ranks; docs/evaluation.md has their times.
"""
import numpy as np
import torch
from tqdm import tqdm

from evaluation import neighbours
from evaluation.counting import by_counting

CHUNK = 1 << 24              # scores in memory at a time, where whole rows are needed: 64 MB
COUNT_UP_TO = 64             # mean number of positives up to which counting is faster than sorting
SEARCH_FROM, SEARCH_DEPTH = 8, 256     # mean number of positives from which, and last rank up to which, faiss is faster

BACKENDS = ('auto', 'count', 'sort', 'search', 'torch')


def choose(search, depth, backend='auto'):
    """The fastest of BACKENDS for a Search, or the one that --ranking_backend asks for."""
    if backend != 'auto':
        return backend
    if search.queries.device.type != 'cpu':
        return 'torch'
    n_positives = search.n_positives.mean()
    worthwhile = np.max(depth) <= SEARCH_DEPTH and (n_positives > SEARCH_FROM or not search.symmetric)
    if worthwhile and search.queries.dtype == torch.float32 and has_faiss():       # faiss computes in float32 only
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
    Yields, group by group of the queries with a positive: the indices [q] of the group's queries, and the ranks of
    their positives, [q, R] float64, ascending and padded with inf. The nearest image has rank 1.

    depth:       a number, or one for each query: ranks beyond it may be given as inf.
    backend:     one of BACKENDS.
    approximate: None, or a faiss index of the gallery to search in.
    """
    if approximate is not None:
        return by_search(search, depth, approximate)
    ways = {'count': by_counting, 'sort': by_sorting, 'torch': by_torch, 'search': by_search}
    return ways[choose(search, depth, backend)](search, depth)


def chunks(queries, n_gallery):
    """Parts of an index array of queries whose scores fit into CHUNK."""
    size = max(1, CHUNK // max(1, n_gallery))
    return [queries[start:start + size] for start in range(0, len(queries), size)]


def members(search):
    """For each class, the indices of its images in the gallery, ascending."""
    return np.split(np.argsort(search.gallery_labels, kind='stable'), np.cumsum(search.sizes)[:-1])


def positives_of(search, of_class, queries):
    """[q, R] indices of the queries' positives in the gallery, and [q, R] bool: whether a query has so many."""
    n_positives = search.n_positives[queries]
    exists = np.arange(n_positives.max()) < n_positives[:, None]
    positives = np.zeros(exists.shape, np.int64)
    found = [of_class[label] for label in search.query_labels[queries]]
    positives[exists] = np.concatenate(
        [some[some != own] for some, own in zip(found, search.own[queries], strict=True)])
    return positives, exists


def by_sorting(search, depth, queries=None):
    """Sorts the scores of each query and looks its positives up in them: for classes of many images."""
    queries = np.flatnonzero(search.n_positives) if queries is None else queries
    of_class, parts = members(search), chunks(queries, len(search.gallery))
    for part in tqdm(parts, 'rank', leave=False, disable=None):
        scores = search.scores(part).numpy()
        positives, exists = positives_of(search, of_class, part)
        ranks = np.full(positives.shape, np.inf)
        ascending = np.sort(scores, axis=1)
        for row in range(len(part)):
            indices = positives[row, exists[row]]
            own = scores[row, indices]
            not_above = ascending[row].searchsorted(own, 'right')
            ranks[row, :len(indices)] = 1 + scores.shape[1] - not_above
            tied = np.flatnonzero(not_above - ascending[row].searchsorted(own, 'left') > 1)
            for slot in tied:
                ranks[row, slot] += np.count_nonzero(scores[row, :indices[slot]] == own[slot])
        yield part, np.sort(ranks, axis=1)


def by_torch(search, depth):
    """Counts as by_counting does, for one positive of each query at a time in whole rows of scores: for GPUs."""
    queries, of_class, device = np.flatnonzero(search.n_positives), members(search), search.queries.device
    indices = torch.arange(len(search.gallery), device=device)
    queries = queries[np.argsort(-search.n_positives[queries], kind='stable')]      # a chunk's have about as many
    for part in tqdm(chunks(queries, len(search.gallery)), 'rank', leave=False, disable=None):
        scores = search.scores(part)
        positives, exists = positives_of(search, of_class, part)
        ranks = []
        for positive in torch.as_tensor(positives, device=device).T[:, :, None]:
            own = scores.gather(1, positive)
            ranks.append(((scores > own) | ((scores == own) & (indices < positive))).sum(dim=1) + 1)
        ranks = torch.stack(ranks, dim=1).cpu().numpy()
        yield part, np.sort(np.where(exists, ranks, np.inf), axis=1)


def by_search(search, depth, index=None):
    """
    Finds the positives among the `depth` nearest images with faiss: for a small depth. Where faiss may have returned
    only some of the images with an equal score, the query is ranked by sorting, unless the index is approximate.
    """
    exact, depth = index is None, np.max(depth)
    index = neighbours.flat_index(search) if exact else index
    queries = np.flatnonzero(search.n_positives)
    # one more for the query itself, and one to see whether the last of the others is tied
    k = int(min(depth, len(search.gallery)) + 2)
    unclear = []
    size = min(4096, max(1, CHUNK // (4 * k)))
    for start in tqdm(range(0, len(queries), size), 'search', leave=False, disable=None):
        part = queries[start:start + size]
        distances, found = index.search(search.queries[part].cpu().numpy(), min(k, len(search.gallery)))
        tied = np.flatnonzero((np.diff(distances, axis=1) == 0).any(axis=1))
        for row in tied:
            found[row] = found[row][np.lexsort((found[row], distances[row] if search.euclidean else -distances[row]))]
        others = (found != search.own[part, None]) & (found >= 0)
        ranks = others.cumsum(axis=1)
        hits = others & (search.gallery_labels[found] == search.query_labels[part, None]) & (ranks <= depth)
        ranks = np.sort(np.where(hits, ranks, np.inf), axis=1)[:, :search.n_positives[part].max()]
        clear = np.ones(len(part), bool)
        if exact and k <= len(search.gallery):
            edge = distances[:, -1:]
            clear = (distances == edge).sum(axis=1) < 2
        unclear.append(part[~clear])
        yield part[clear], ranks[clear]
    unclear = np.concatenate(unclear) if unclear else queries
    if len(unclear):
        yield from by_sorting(search, depth, unclear)
