"""
Evaluate_Network.py RUN rerank: re-ranking after the search, an ablation that shows how much better the ranking becomes,
and at what cost.

kreciprocal: k-reciprocal encoding. Zhong, Zheng, Cao and Li, CVPR 2017, https://arxiv.org/abs/1701.08398. It is
             transductive: the distance of a query and a gallery image depends on the other queries.
alphaqe:     alpha query expansion. Radenović, Tolias and Chum, TPAMI 2018, https://arxiv.org/abs/1711.02512.
"""
import time
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import parts
from evaluation.metrics import compute, parse
from evaluation.protocol import build_pool, embed_splits, splits_to_evaluate
from evaluation.ranking.arrays import chunks, in_threads, pick, take_rows
from evaluation.ranking.nearest import first
from evaluation.ranking.neighbours import Search
from evaluation.ranking.precision import on_the_sphere
from flags.command_line import FRACTION, NOT_NEGATIVE, POSITIVE_INT, auto_or
from records.columns import Column
from utilities import processes
from utilities.errors import UserError, choose
from utilities.text_tables import aligned

CHUNK = 1 << 21              # scores that each thread holds at a time: 8 MB, and twice as much for their overlaps
ROWS = 1 << 12               # images whose encodings are computed together
PAIRS = 1 << 16              # pairs whose distances are computed together: 32 MB with 128 dimensions
PLAIN = 'plain'              # the ranking without re-ranking, and its cost, in the table
K1 = 20                      # k1 and k2 of Zhong et al.
K2 = 6
N = 50                       # n of Radenović et al.


class KReciprocal(Search):
    """
    A Search whose scores are 1 − λ minus the distances (1 − λ) d_J + λ d of Zhong et al., Eq. 12. d is the squared
    Euclidean distance divided by the query's largest; d_J is the Jaccard distance of the k-reciprocal encodings, to
    which all queries and all gallery images contribute. d_J is 1 for images that share no entry of their encodings; d
    alone orders these.

    ranking: must be None. k1: number of neighbours; k2: number of encodings that are averaged; weight: λ. strict: as in
    encoded(). cameras leave images out of the ranking only, not out of the neighbours.
    """

    def __init__(self, embeddings, labels, is_query=None, in_gallery=None, ranking=None, cameras=None, k1=K1, k2=K2,
                 weight=0.3, strict=False):
        super().__init__(embeddings, labels, is_query, in_gallery, cameras=cameras)
        used = np.union1d(self.query_index, self.gallery_index)
        everyone = Search(take_rows(embeddings, used), labels[used])
        neighbours, farthest = nearest_gallery(everyone, max(k1, k2))
        neighbours = np.column_stack([np.arange(len(used)), neighbours])             # each image is its own nearest
        largest = np.where(farthest > 0, farthest, 1)
        encodings = averaged(encoded(everyone, neighbours, largest, k1, strict), neighbours[:, :k2])
        queries = np.searchsorted(used, self.query_index)
        self.move = everyone.move
        self.weight = weight
        self.largest = largest[queries].astype(np.float32)
        self.query_encodings = encodings[queries]
        self.gallery_encodings = encodings[np.searchsorted(used, self.gallery_index)].tocsc()

    def scores(self, rows):
        """[q, G] as in Search.scores."""
        distances = super().scores(rows).numpy()           # −½ of the squared distances; −inf for the query itself
        with np.errstate(invalid='ignore'):                # 0 · ∞, if λ = 0, for the query itself
            distances *= -2 * np.float32(self.weight) / self.largest[rows, None]
        overlap = overlaps(self.query_encodings[rows], self.gallery_encodings)
        row, column, overlap = pick(overlap, overlap > 0)
        # encodings sum to 1, so that the maxima of two sum to 2 minus the sum of the minima
        distances[row, column] -= (1 - self.weight) * overlap / (2 - overlap)
        return self.mask_excluded(torch.from_numpy(-distances), rows)

    def margins(self, rows, scores):
        """0: float32 decides."""
        return torch.zeros_like(scores)


class AlphaExpanded(Search):
    """
    A Search by cosine similarity in which each query is the sum of itself and its n nearest gallery images, each with
    the weight max(similarity, 0)^alpha, on the unit sphere, in float64. The gallery does not change. ranking: must be
    None. cameras leave images out of the ranking only, not out of the neighbours.
    """

    def __init__(self, embeddings, labels, is_query=None, in_gallery=None, ranking=None, cameras=None, n=N, alpha=3.0):
        unit = on_the_sphere(embeddings)
        neighbours, _ = nearest_gallery(Search(unit, labels, is_query, in_gallery), n)
        super().__init__(unit, labels, is_query, in_gallery, cameras=cameras)
        expanded = self.queries.clone()
        for rows in chunks(np.arange(len(neighbours)), neighbours.shape[1] * unit.shape[1], CHUNK):
            own, others = self.queries[rows], self.gallery[neighbours[rows]]            # [q, D], [q, n, D]
            weights = torch.einsum('qd,qnd->qn', own, others).clamp(min=0) ** alpha
            expanded[rows] += torch.einsum('qn,qnd->qd', weights, others)
        self.queries = on_the_sphere(expanded)
        self.symmetric = False


METHODS = {'kreciprocal': KReciprocal, 'alphaqe': AlphaExpanded}


def nearest_gallery(search, k):
    """
    [number of queries, k] the k nearest gallery images of each query, as indices in the gallery, or all of them if
    there are fewer; and [number of queries] the largest squared distance to a gallery image, in search.move's unit.
    """
    k = min(k, len(search.gallery) - int((search.own >= 0).any()))

    def part_neighbours(rows):
        scores = search.scores(rows)
        found, _ = first(search, rows, scores, k)
        scores = scores.numpy()
        scores[search.left_out(rows)] = 0                  # never the lowest: no score is above 0
        return found, -2 * scores.min(axis=1)

    parts = chunks(np.arange(len(search.queries)), len(search.gallery), CHUNK)
    found = in_threads(part_neighbours, parts, 'neighbours')
    neighbours, farthest = zip(*found, strict=True)
    return np.concatenate(neighbours), np.concatenate(farthest)


def encoded(search, neighbours, largest, k1, strict=False):
    """
    The k-reciprocal encodings, a sparse [N, N] matrix: exp(−d) for the images of the expanded set R*(p, k1) of each
    image p, divided by their sum. neighbours: [N, K] each image and its nearest ones; largest: [N] what divides the
    squared distances. strict: the set grows by sets of which it shares more than 2/3, as in the authors' code; else by
    those of which it shares at least 2/3, as in Eq. 4.
    """
    from scipy import sparse
    near = reciprocal(neighbours[:, :k1 + 1])
    half = reciprocal(neighbours[:, :round(k1 / 2) + 1])
    sizes = np.diff(half.indptr)
    points = search.moved_gallery.numpy()
    parts = []
    for start in range(0, len(neighbours), ROWS):
        own = near[start:start + ROWS]                                                  # R(p, k1)
        shared = (own @ half).multiply(own).tocoo()                # for q in R(p, k1): |R(p, k1) ∩ R(q, k1 / 2)|
        thirds = 3 * shared.data
        needed = 2 * sizes[shared.col]
        enough = thirds > needed if strict else thirds >= needed
        added = sparse.csr_array((np.ones(enough.sum(), np.int32), (shared.row[enough], shared.col[enough])), own.shape)
        members = (own + added @ half).tocsr()                                          # R*(p, k1)
        row, column = np.repeat(np.arange(own.shape[0]), np.diff(members.indptr)), members.indices
        squared = np.empty(len(row), np.float64)
        for begin in range(0, len(row), PAIRS):
            pairs = slice(begin, begin + PAIRS)
            squared[pairs] = np.square(points[start + row[pairs]] - points[column[pairs]]).sum(axis=1)
        values = np.exp(-squared / largest[start + row])
        values /= np.bincount(row, values)[row]
        parts.append(sparse.csr_array((values, members.indices, members.indptr), members.shape))
    return sparse.vstack(parts, format='csr')


def reciprocal(neighbours):
    """The sparse [N, N] matrix of the pairs of images that are among the K nearest of each other. neighbours: [N, K]"""
    near = as_matrix(neighbours, np.int32(1))
    return near.multiply(near.T).tocsr()


def averaged(encodings, neighbours):
    """Local query expansion: each row becomes the mean of the rows of its `neighbours` [N, k2]."""
    from scipy import sparse
    mean = as_matrix(neighbours, 1 / neighbours.shape[1])
    return sparse.vstack([mean[start:start + ROWS] @ encodings for start in range(0, len(neighbours), ROWS)],
                         format='csr')


def as_matrix(neighbours, value):
    """The sparse [N, N] matrix with `value` at each image's `neighbours` [N, K]."""
    from scipy import sparse
    n, k = neighbours.shape
    return sparse.csr_array((np.full(n * k, value), neighbours.ravel(), np.arange(0, n * k + 1, k)), (n, n))


def overlaps(queries, gallery):
    """
    [q, G] the sum of the minima of two encodings, from sparse matrices: queries [q, N] by row, gallery [G, N] by
    column.
    """
    result = np.empty((queries.shape[0], gallery.shape[0]))
    for row in range(len(result)):
        part = slice(*queries.indptr[row:row + 2])
        own = gallery[:, queries.indices[part]]
        minima = np.minimum(own.data, np.repeat(queries.data[part], np.diff(own.indptr)))
        result[row] = np.bincount(own.indices, minima, len(result[row]))
    return result


def flags(parser):
    add = parser.add_argument
    add('methods', nargs='*', metavar='METHOD', help=f'{" or ".join(METHODS)}; by default both')
    add('--kreciprocal_k1', type=auto_or(POSITIVE_INT), default='auto',
        help='number of neighbours; auto: images per training class minus 1, at most 20')
    add('--kreciprocal_k2', type=auto_or(POSITIVE_INT), default='auto',
        help='number of encodings that are averaged; auto: 0.3 k1, so 6 of 20')
    add('--kreciprocal_lambda', type=FRACTION, default=0.3,
        help='weight of the original distance; 1 minus it weights the Jaccard distance')
    add('--kreciprocal_strict', action='store_true',
        help="expand by sets that share more than 2/3, as the authors' code does; the paper has at least 2/3")
    add('--alphaqe_n', type=auto_or(POSITIVE_INT), default='auto',
        help='number of neighbours that expand a query; auto: images per training class minus 1, at most 50')
    add('--alphaqe_alpha', type=NOT_NEGATIVE, default=3.0,
        help='exponent of the similarity with which a neighbour is weighted')


def work(opt):
    """Prints the metrics of ranks of each split, without re-ranking and after each method."""
    opt.methods = opt.methods or [*METHODS]
    names = [name for name in opt.evaluation_metrics if parse(name)[1].needs == 'ranks']
    for method in opt.methods:
        choose(METHODS, method, 'rerank')
    if not names:
        raise UserError('rerank changes metrics of ranks only, and --evaluation_metrics has none; add one, such as '
                        'map_at_r')
    if parts.ranks(opt) and not (opt.eval_features or opt.pca):
        raise UserError(f'rerank: --loss {opt.loss} ranks by a distance of its own, and re-ranking is defined by '
                        'Euclidean distances and cosines only')
    built = parts.restore(opt, opt.evaluate)
    splits = splits_to_evaluate(opt, built.data)
    methods = settings(opt, built.data.evaluation.get('train'))
    embedded = embed_splits(opt, built.model, built.data, splits)
    print(processes.run_on_rank_zero(report, opt, embedded, splits, methods, names))


def report(opt, embedded, splits, methods, names):
    """
    The text of work(): a line per split and metric, a column per method.

    embedded: {split: Embedded}; methods: as settings() returns them.
    """
    lines = {}
    for split in splits:
        for level in opt.eval_level:
            pool = build_pool(opt, embedded, split, level)
            for method, parameters in ({PLAIN: {}} | methods).items():
                for name, value in compute_with(opt, method, parameters, names, pool).items():
                    lines.setdefault(Column(split, name, level).name, []).append(f'{value:.4f}')
    used = [f'{method} ({", ".join(f"{name} {value}" for name, value in parameters.items())})'
            for method, parameters in methods.items()]
    cells = [['', PLAIN, *methods], *([name, *texts] for name, texts in lines.items())]
    return f're-ranking by {" and ".join(used)}\n{aligned(cells, left=range(len(cells[0])))}'


def settings(opt, train):
    """
    {method: its parameters} of the methods asked for, where auto is replaced: k1 and n are the mean number of images of
    a training class minus 1, at most the paper's numbers; k2 is in proportion to k1. train: the ImageSet of the
    training split, or None: the papers' numbers.
    """
    positives = max(1, round(len(train) / train.n_classes) - 1) if train else max(K1, N)
    k1 = min(positives, K1) if opt.kreciprocal_k1 == 'auto' else opt.kreciprocal_k1
    k2 = max(1, round(k1 * K2 / K1)) if opt.kreciprocal_k2 == 'auto' else opt.kreciprocal_k2
    n = min(positives, N) if opt.alphaqe_n == 'auto' else opt.alphaqe_n
    known = {'kreciprocal': {'k1': k1, 'k2': k2, 'weight': opt.kreciprocal_lambda,
                             **({'strict': True} if opt.kreciprocal_strict else {})},
             'alphaqe': {'n': n, 'alpha': opt.alphaqe_alpha}}
    return {method: known[method] for method in METHODS if method in opt.methods}


def compute_with(opt, method, parameters, names, pool):
    """
    {metric: value} of the metrics of ranks `names`, after a re-ranking with its `parameters`; its seconds, and the
    megabytes (10^6 bytes) that numpy's arrays take at a time. pool: a metrics.Pool.
    """
    search = Search if method == PLAIN else partial(METHODS[method], **parameters)
    points = pool.embeddings.cpu()
    backend = 'sort' if method == 'kreciprocal' else 'auto'
    tracemalloc.start()
    start = time.perf_counter()
    try:
        values = compute(names, points, pool.labels, seed=opt.seed, pool=replace(pool, embeddings=points),
                         search=search, backend=backend, n_bootstrap=opt.bootstrap)
        return values | {'seconds': time.perf_counter() - start,
                         'megabytes': tracemalloc.get_traced_memory()[1] / 1e6}
    finally:
        tracemalloc.stop()
