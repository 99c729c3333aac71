"""
The ranks of positives by counting the scores above theirs, block by block of the score matrix: nothing is sorted, and
no ranking is stored.

Where each image is searched for among all others, the score matrix is symmetric: a block above the diagonal counts for
its rows and for its columns, which halves the multiplications. Queries and gallery go in the order of the number of
positives, so that all queries with more than s positives are the first ones.
"""
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from tqdm import tqdm

from utilities import stopping

STRIP, WIDTH = 480, 8160     # queries and gallery images of a block of scores: 16 MB; count_rows needs 8160 at most
CHUNK = 1 << 14              # images that are copied at a time
SAMPLE = 1024                # gallery images that bound how near the `depth` nearest are
FEW = 1 / 2                  # of a block's groups of eight scores: the most that are looked at score by score
PIECE = 1 << 18              # scores that are looked at so at a time


def by_counting(search, depth):
    """ranking.positive_ranks by counting, on the CPU."""
    counting = Counting(search, depth)
    in_threads(counting.look_up, counting.strips)
    in_threads(counting.count_strip, counting.strips, 'rank')
    return counting.ranks()


class Counting:
    """
    by_query, by_gallery: the order of queries and of gallery columns; all other arrays of queries are in that order.
    starts, stops:        [Q] the columns of the query's class. itself: [Q] the query's own column, or beyond all.
    n_with:               [R] the number of queries with more than s positives.
    own, positive, above: lists of R arrays of [n_with[s]]: the score of the s-th positive, the farthest first, its
                          index in the gallery, and how many others of the gallery have been counted above it.
    floor:                [Q] what is less is above no positive that matters. half_norms: [Q] of the queries.
    gallery:              [G + 32, D + 2] in the order of columns; index: [G + 32] of each column, the image.
    """

    def __init__(self, search, depth):
        self.search, self.symmetric = search, search.symmetric
        by_query = np.lexsort((search.query_labels, -search.n_positives))
        self.by_query = by_query = by_query[:np.count_nonzero(search.n_positives)]
        by_gallery = np.lexsort((search.gallery_labels, -search.sizes[search.gallery_labels]))   # stable: index order
        self.by_gallery, self.n_gallery = by_gallery, len(by_gallery)
        self.strips = range(0, len(by_query), STRIP)
        self.n_positives, labels = search.n_positives[by_query], search.query_labels[by_query]
        self.depth = np.broadcast_to(depth, len(search.n_positives))[by_query]
        found, first = np.unique(search.gallery_labels[by_gallery], return_index=True)
        starts = np.zeros(len(search.sizes), np.int64)
        starts[found] = first
        self.starts, self.stops = starts[labels], starts[labels] + search.sizes[labels]
        place = np.empty(self.n_gallery + 1, np.int64)
        place[by_gallery], place[-1] = np.arange(self.n_gallery), np.iinfo(np.int64).max
        self.itself = place[search.own[by_query]]
        # Two more coordinates, (−½‖g‖², 1) against (1, −½‖q‖²), make the product the score; 32 more columns, which
        # score −inf, let blocks be of widths that bytes can be counted in.
        self.index = np.concatenate([by_gallery, np.full(32, self.n_gallery)])
        self.half_norms = search.half_norms(search.queries).numpy()[by_query]
        points = search.gallery.numpy()
        self.gallery = np.zeros((self.n_gallery + 32, points.shape[1] + 2), points.dtype)
        self.gallery[self.n_gallery:, -2], self.gallery[:, -1] = -np.inf, 1
        for start in range(0, self.n_gallery, CHUNK):      # no second copy of them all
            some = slice(start, min(start + CHUNK, self.n_gallery))
            part = points[by_gallery[some]]
            self.gallery[some, :-2], self.gallery[some, -2] = part, -search.half_norms(torch.from_numpy(part)).numpy()

        self.n_with = np.bincount(self.n_positives)[::-1].cumsum()[::-1][1:]
        self.own = [np.empty(n, points.dtype) for n in self.n_with]
        self.positive = [np.empty(n, np.int32) for n in self.n_with]
        self.above = [np.zeros(n, np.int32) for n in self.n_with]
        self.floor = np.empty(len(by_query), points.dtype)
        self.local, self.lock = threading.local(), threading.Lock()

    def rows(self, strip):
        return slice(strip, min(strip + STRIP, len(self.by_query)))

    def queries(self, rows):
        """[q, D + 2]: what the gallery is multiplied with."""
        points = self.search.queries.numpy()[self.by_query[rows]]
        queries = np.ones((len(points), self.gallery.shape[1]), points.dtype)
        queries[:, :-2], queries[:, -1] = points, -self.half_norms[rows]
        return queries

    def look_up(self, strip):
        """The scores of the positives of a strip of queries, and what is too little to matter."""
        rows = self.rows(strip)
        queries = self.queries(rows)
        slots = np.arange(self.n_positives[strip])
        exists = slots < self.n_positives[rows, None]
        columns = self.starts[rows, None] + slots
        columns = np.where(exists, columns + (columns >= self.itself[rows, None]), self.starts[rows, None])
        low, high = self.starts[rows].min(), self.stops[rows].max()
        if high - low <= WIDTH:
            own = np.take_along_axis(queries @ self.gallery[low:high].T, columns - low, axis=1)
        else:                                              # the classes of a few queries can span the whole gallery
            own = np.stack([np.einsum('qd,qd->q', queries, self.gallery[column]) for column in columns.T], axis=1)
        own[~exists] = np.inf
        positive = self.by_gallery[columns]
        farthest_first = np.lexsort((-positive, own))
        own, positive = (np.take_along_axis(some, farthest_first, axis=1) for some in (own, positive))
        for slot in slots:
            some = slice(strip, min(rows.stop, self.n_with[slot]))
            self.own[slot][some] = own[:some.stop - strip, slot]
            self.positive[slot][some] = positive[:some.stop - strip, slot]
        self.floor[rows] = own[:, 0]
        sample = self.gallery[:self.n_gallery:max(1, self.n_gallery // SAMPLE)]
        if self.depth[rows].max() < len(sample):
            # as many of the sample are as near or nearer, besides the query itself, which may be among them; what
            # another product of the same images may round differently is taken off
            place = len(sample) - 1 - int(self.depth[rows].max())
            bound = np.partition(queries @ sample.T, place, axis=1)[:, place]
            bound -= 1e-6 * (abs(bound) + abs(queries[:, -1]))
            self.floor[rows] = np.maximum(self.floor[rows], bound)

    def count_strip(self, strip):
        """Multiplies a strip of queries with the gallery, or with what earlier strips have left of it, and counts."""
        rows, local = self.rows(strip), self.local
        queries = self.queries(rows)
        if not hasattr(local, 'scores'):
            local.scores = np.empty(STRIP * WIDTH, self.gallery.dtype)
            local.hits = np.empty(STRIP * WIDTH + 8, bool)
        begin = strip if self.symmetric else 0
        n_blocks = -(-(self.n_gallery - begin) // WIDTH)
        width = -(-(self.n_gallery - begin) // n_blocks)
        width += -width % 32
        for left in range(begin, self.n_gallery, width):
            right = left + min(width, self.n_gallery - left + -(self.n_gallery - left) % 32)
            block = local.scores[:(rows.stop - strip) * (right - left)].reshape(rows.stop - strip, right - left)
            np.matmul(queries, self.gallery[left:right].T, out=block)
            low, high = max(self.starts[rows].min(), left), min(self.stops[rows].max(), right)
            if low < high:                                 # no image of the query's class is a rival
                columns = np.arange(low, high)
                same = (columns >= self.starts[rows, None]) & (columns < self.stops[rows, None])
                np.copyto(block[:, low - left:high - left], -np.inf, where=same)
            self.count(block, strip, self.index[left:right], axis=1)
            inner, outer = max(rows.stop, left), min(right, len(self.by_query))
            if self.symmetric and inner < outer:           # columns that are queries of later strips
                self.count(block[:, inner - left:outer - left], inner, self.index[rows], axis=0)

    def count(self, block, first, rivals, axis):
        """
        Adds to `above` the scores of a block, along `axis`, that are above those of each query's positives: more, or
        as much and of a smaller index. first: the first query. rivals: the indices of the images along `axis`.
        """
        stop = first + block.shape[1 - axis]
        buffer = self.local.hits[:block.size + -block.size % 8]
        buffer[block.size:] = False
        hits = buffer[:block.size].reshape(block.shape)
        np.greater_equal(block, np.expand_dims(self.floor[first:stop], axis), out=hits)
        eights = np.flatnonzero(buffer.view(np.uint64) != 0)
        if len(eights) > FEW * buffer.size / 8:
            return self.count_all(block, first, rivals, hits, axis)
        places = np.flatnonzero(buffer.reshape(-1, 8)[eights])
        for start in range(0, len(places), PIECE):
            some = places[start:start + PIECE]
            self.count_some(block, first, rivals, eights[some // 8] * 8 + some % 8, axis)

    def count_some(self, block, first, rivals, places, axis):
        """The same of the scores at some places of the block alone."""
        row, column = np.divmod(places, block.shape[1])
        score = block[row, column]
        query, rival = (row + first, rivals[column]) if axis == 1 else (column + first, rivals[row])
        for slot in range(self.n_positives[first]):
            some = query < self.n_with[slot]
            query, rival, score = query[some], rival[some], score[some]
            own = self.own[slot][query]
            is_above = score > own
            tied = np.flatnonzero(score == own)
            is_above[tied] = rival[tied] < self.positive[slot][query[tied]]
            query, rival, score = query[is_above], rival[is_above], score[is_above]     # the others reach no nearer one
            counts = np.bincount(query - first)
            with self.lock:
                self.above[slot][first:first + len(counts)] += counts

    def count_all(self, block, first, rivals, hits, axis):
        """The same by comparing every score with every positive's."""
        number = count_rows if axis == 1 else count_columns
        for slot in range(self.n_positives[first]):
            some = slice(first, min(first + block.shape[1 - axis], self.n_with[slot]))
            n = some.stop - first
            part = block[:n] if axis == 1 else block[:, :n]
            own = np.expand_dims(self.own[slot][some], axis)
            hits = hits.reshape(-1)[:part.size].reshape(part.shape)
            counts = number(np.greater(part, own, out=hits))
            tied = np.flatnonzero(number(np.equal(part, own, out=hits)))
            if len(tied):
                which, rival = np.nonzero(hits[tied] if axis == 1 else hits[:, tied].T)
                before = rivals[rival] < self.positive[slot][first + tied[which]]
                counts += np.bincount(tied[which[before]], minlength=n)
            with self.lock:
                self.above[slot][some] += counts

    def ranks(self):
        for start in range(0, len(self.by_query), 4096):
            rows = slice(start, min(start + 4096, len(self.by_query)))
            ranks = np.full((rows.stop - start, self.n_positives[start]), np.inf)
            for slot in range(ranks.shape[1]):
                some = slice(start, min(rows.stop, self.n_with[slot]))
                nearer = self.n_positives[some] - slot - 1                     # positives, which come on top
                matters = self.own[slot][some] >= self.floor[some]
                ranks[np.arange(len(nearer)), nearer] = np.where(matters, self.above[slot][some] + nearer + 1, np.inf)
            yield self.by_query[rows], ranks


def count_rows(hits):
    """True values per row of a contiguous [n, w] bool array, w a multiple of 32 up to 8160: eight bytes at a time."""
    eights = hits.view(np.uint64).reshape(len(hits), 4, -1).sum(axis=2)
    return eights.view(np.uint8).sum(axis=1, dtype=np.int32)


def count_columns(hits):
    """True values per column of a [n, w] bool array: up to 255 at a time fit into a byte."""
    return sum(np.add.reduce(hits[start:start + 255].view(np.uint8), axis=0, dtype=np.uint8).astype(np.int32)
               for start in range(0, len(hits), 255))


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
            for _ in stopping.checked(pool.map(step, items)):
                bar.update()
        finally:
            stopped.set()                                  # after Ctrl-C the rest is skipped
