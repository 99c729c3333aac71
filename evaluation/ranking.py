"""
The ranks of every query's positives, exactly, in memory that grows with the number of positive pairs only.

A positive's rank is 1 + the number of gallery images that score more, or as much and stand before it. Four ways to
the same ranks; docs/evaluation.md has their times.
"""
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from tqdm import tqdm

from evaluation import neighbours

STRIP, WIDTH = 240, 8160     # queries and gallery images of a block of scores: 8 MB, and counts that fit into a byte
CHUNK = 1 << 24              # scores that are held at a time where whole rows are needed: 64 MB
COUNT_UP_TO = 40             # mean number of positives up to which counting is quicker than sorting
SEARCH_FROM, SEARCH_DEPTH = 8, 256     # from which on, and down to which rank, a search by faiss is quicker still

BACKENDS = ('auto', 'count', 'sort', 'search', 'torch')


def choose(search, depth, backend='auto'):
    """The way to the ranks that is quickest here, or the one that --ranking_backend asks for."""
    if backend != 'auto':
        return backend
    if search.queries.device.type != 'cpu':
        return 'torch'
    n_positives = search.n_positives.mean()
    if depth <= SEARCH_DEPTH and (n_positives > SEARCH_FROM or not search.symmetric) and has_faiss():
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

    depth:       ranks beyond it may be given as inf.
    backend:     one of BACKENDS.
    approximate: None, or a faiss index of the gallery to search in.
    """
    if approximate is not None:
        return by_search(search, depth, approximate)
    ways = {'count': by_counting, 'sort': by_sorting, 'torch': by_torch, 'search': lambda some: by_search(some, depth)}
    return ways[choose(search, depth, backend)](search)


def by_counting(search):
    """
    Counts the scores above each positive's own, block by block of the score matrix; no ranking is sorted or stored.

    Where each image is searched for among all others, the score matrix is symmetric: a block above the diagonal counts
    for its rows and for its columns, which halves the multiplications. Queries and gallery go in the order of the
    number of positives, so that the r-th positives are those of the first queries.
    """
    by_query = np.lexsort((search.query_labels, -search.n_positives))
    by_gallery = np.lexsort((search.gallery_labels, -search.sizes[search.gallery_labels]))      # stable: index order
    n_positives, labels = search.n_positives[by_query], search.query_labels[by_query]
    n_queries, n_gallery = np.count_nonzero(n_positives), len(by_gallery)
    starts = np.zeros(len(search.sizes), np.int64)
    found, first = np.unique(search.gallery_labels[by_gallery], return_index=True)
    starts[found] = first
    starts = starts[labels]                                # of each query's class among the columns
    stops = starts + search.sizes[labels]
    place = np.empty(n_gallery + 1, np.int64)
    place[by_gallery], place[-1] = np.arange(n_gallery), np.iinfo(np.int64).max
    own = place[search.own[by_query]]                      # column of the query itself, or beyond all
    # 32 more columns, which nobody ever meets, let blocks be of widths that bytes can be counted in
    index = np.concatenate([by_gallery, np.full(32, n_gallery)])
    queries = search.queries.numpy()[by_query[:n_queries]]
    gallery = np.zeros((n_gallery + 32, queries.shape[1]), np.float32)
    np.take(search.gallery.numpy(), by_gallery, axis=0, out=gallery[:n_gallery])
    query_norms = search.half_norms(torch.from_numpy(queries)).numpy()
    gallery_norms = search.half_norms(torch.from_numpy(gallery)).numpy()
    gallery_norms[n_gallery:] = np.inf

    def scores(rows, columns, out=None):
        block = np.matmul(queries[rows], gallery[columns].T, out=out)
        block -= gallery_norms[columns]
        block -= query_norms[rows, None]
        return block

    n_with = np.bincount(n_positives[:n_queries])[::-1].cumsum()[::-1][1:]     # [R]: queries of more than r positives

    def columns_of(slot, rows):
        """Where the slot-th positive of some queries is."""
        column = starts[rows] + slot
        return column + (column >= own[rows])

    own_scores = [np.empty(n, np.float32) for n in n_with]
    above = [np.zeros(n, np.int32) for n in n_with]

    def look_up(strip):
        rows = slice(strip, min(strip + STRIP, n_queries))
        low, high = starts[rows].min(), stops[rows].max()
        block = scores(rows, slice(low, high))
        for slot in range(n_positives[strip]):
            some = slice(strip, min(rows.stop, n_with[slot]))
            own_scores[slot][some] = block[np.arange(some.stop - strip), columns_of(slot, some) - low]

    local, lock = threading.local(), threading.Lock()

    def buffers(n_rows, width):
        if not hasattr(local, 'scores'):
            local.scores, local.hits = np.empty(STRIP * WIDTH, np.float32), np.empty(STRIP * WIDTH, bool)
        return local.scores[:n_rows * width].reshape(n_rows, width), local.hits

    def count(block, own, rival_index, positive_index, hits, axis):
        """How many of the block's scores, along `axis`, are above `own`: more, or as much and of a smaller index."""
        hits = hits[:block.size].reshape(block.shape)
        number = count_rows if axis == 1 else count_columns
        counts = number(np.greater(block, np.expand_dims(own, axis), out=hits))
        tied = np.flatnonzero(number(np.equal(block, np.expand_dims(own, axis), out=hits)))
        if len(tied):
            some, rival = np.nonzero(hits[tied] if axis == 1 else hits[:, tied].T)
            before = rival_index[rival] < positive_index[tied[some]]
            counts += np.bincount(tied[some[before]], minlength=len(own))
        return counts

    def count_strip(strip):
        rows = slice(strip, min(strip + STRIP, n_queries))
        begin = strip if search.symmetric else 0
        width = -(-(n_gallery - begin) // -(-(n_gallery - begin) // WIDTH))
        width += -width % 32
        for left in range(begin, n_gallery, width):
            right = left + min(width, n_gallery - left + -(n_gallery - left) % 32)
            block, hits = buffers(rows.stop - strip, right - left)
            scores(rows, slice(left, right), out=block)
            for row in np.flatnonzero((starts[rows] < right) & (stops[rows] > left)):     # no positive is a rival
                block[row, max(starts[strip + row] - left, 0):max(stops[strip + row] - left, 0)] = -np.inf
            for slot in range(n_positives[strip]):
                some = slice(strip, min(rows.stop, n_with[slot]))
                counts = count(block[:some.stop - strip], own_scores[slot][some], index[left:right],
                               by_gallery[columns_of(slot, some)], hits, axis=1)
                with lock:
                    above[slot][some] += counts
            if not search.symmetric:
                continue
            inner = max(rows.stop, left)                   # columns from here on are queries of later strips
            for slot in range(n_positives[inner] if inner < n_queries else 0):
                some = slice(inner, min(right, n_with[slot]))
                if some.start < some.stop:
                    counts = count(block[:, some.start - left:some.stop - left], own_scores[slot][some], index[rows],
                                   by_gallery[columns_of(slot, some)], hits, axis=0)
                    with lock:
                        above[slot][some] += counts

    strips = range(0, n_queries, STRIP)
    in_threads(look_up, strips)
    in_threads(count_strip, strips, 'rank')
    for start in range(0, n_queries, 4096):
        rows = slice(start, min(start + 4096, n_queries))
        ranks = np.full((rows.stop - start, n_positives[start]), np.inf)
        closeness = np.full(ranks.shape, -np.inf)
        for slot in range(ranks.shape[1]):
            some = slice(start, min(rows.stop, n_with[slot]))
            closeness[:some.stop - start, slot] = own_scores[slot][some]
            ranks[:some.stop - start, slot] = above[slot][some]
        order = np.argsort(-closeness, axis=1, kind='stable')
        ranks = np.take_along_axis(ranks, order, axis=1)
        yield by_query[rows], ranks + np.arange(1, ranks.shape[1] + 1)     # the positives before it come on top


def count_rows(hits):
    """True values per row of a contiguous [n, w] bool array, w a multiple of 32 up to 8160: eight bytes at a time."""
    eights = hits.view(np.uint64).reshape(len(hits), 4, -1).sum(axis=2)
    return eights.view(np.uint8).sum(axis=1, dtype=np.int32)


def count_columns(hits):
    """True values per column of a [n, w] bool array, n up to 255."""
    return np.add.reduce(hits.view(np.uint8), axis=0, dtype=np.uint8).astype(np.int32)


def in_threads(work, items, description=None):
    """work(item) for each, on as many threads as torch would use, with a single-threaded BLAS in each."""
    from threadpoolctl import threadpool_limits
    stopped = threading.Event()

    def step(item):
        if not stopped.is_set():
            work(item)

    bar = tqdm(total=len(items), desc=description, leave=False, disable=None if description else True)
    with threadpool_limits(1, 'blas'), bar, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            for _ in pool.map(step, items):
                bar.update()
        finally:
            stopped.set()                                  # after Ctrl-C the rest is skipped


def chunks(rows, n_gallery):
    """Parts of an index array of queries whose scores fit into CHUNK."""
    size = max(1, CHUNK // max(1, n_gallery))
    return [rows[start:start + size] for start in range(0, len(rows), size)]


def members(search):
    """The gallery's places of each class, ascending."""
    return np.split(np.argsort(search.gallery_labels, kind='stable'), np.cumsum(search.sizes)[:-1])


def positives_of(search, of_class, rows):
    """[q, R] places in the gallery of the queries' positives, and [q, R] bool, where there is one."""
    n_positives = search.n_positives[rows]
    exists = np.arange(n_positives.max()) < n_positives[:, None]
    places = np.zeros(exists.shape, np.int64)
    found = [of_class[label] for label in search.query_labels[rows]]
    places[exists] = np.concatenate([some[some != own] for some, own in zip(found, search.own[rows], strict=True)])
    return places, exists


def by_sorting(search, rows=None):
    """Sorts the scores of each query and looks the positives' up: for classes of many images."""
    rows = np.flatnonzero(search.n_positives) if rows is None else rows
    of_class, parts = members(search), chunks(rows, len(search.gallery))
    for part in tqdm(parts, 'rank', leave=False, disable=None):
        scores = search.scores(part).numpy()
        places, exists = positives_of(search, of_class, part)
        ranks = np.full(places.shape, np.inf)
        ascending = np.sort(scores, axis=1)
        for row in range(len(part)):
            place = places[row, exists[row]]
            mine = scores[row, place]
            not_above = ascending[row].searchsorted(mine, 'right')
            ranks[row, :len(place)] = 1 + scores.shape[1] - not_above
            tied = np.flatnonzero(not_above - ascending[row].searchsorted(mine, 'left') > 1)
            for slot in tied:
                ranks[row, slot] += np.count_nonzero(scores[row, :place[slot]] == mine[slot])
        yield part, np.sort(ranks, axis=1)


def by_torch(search):
    """Counts as by_counting does, a row of scores and one positive of each query at a time: for GPUs."""
    rows, of_class, device = np.flatnonzero(search.n_positives), members(search), search.queries.device
    columns = torch.arange(len(search.gallery), device=device)
    rows = rows[np.argsort(-search.n_positives[rows], kind='stable')]      # alike numbers of positives in a chunk
    for part in tqdm(chunks(rows, len(search.gallery)), 'rank', leave=False, disable=None):
        scores = search.scores(part)
        places, exists = positives_of(search, of_class, part)
        ranks = []
        for slot in torch.as_tensor(places, device=device).T[:, :, None]:
            own = scores.gather(1, slot)
            ranks.append(((scores > own) | ((scores == own) & (columns < slot))).sum(dim=1) + 1)
        ranks = torch.stack(ranks, dim=1).cpu().numpy()
        yield part, np.sort(np.where(exists, ranks, np.inf), axis=1)


def by_search(search, depth, index=None):
    """
    The positives among the `depth` nearest, by faiss: for a small depth. Where the search cannot tell which of some
    equally near images belong to these, the query is ranked by sorting. With an approximate index, by it alone.
    """
    exact = index is None
    index = neighbours.flat_index(search) if exact else index
    rows = np.flatnonzero(search.n_positives)
    # one more for the query itself, one to see whether the last place is shared
    k = int(min(depth, len(search.gallery)) + 2)
    unclear = []
    size = min(4096, max(1, CHUNK // (4 * k)))
    for start in tqdm(range(0, len(rows), size), 'search', leave=False, disable=None):
        part = rows[start:start + size]
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
    unclear = np.concatenate(unclear) if unclear else rows
    if len(unclear):
        yield from by_sorting(search, unclear)
