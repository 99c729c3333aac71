"""
Evaluate_Network.py RUN rerank: how much re-ranking after the search improves the ranking.

kreciprocal: k-reciprocal encoding. Zhong, Zheng, Cao and Li, CVPR 2017, https://arxiv.org/abs/1701.08398. It is
             transductive: the distance of a query and a gallery image depends on the other queries.
alphaqe:     alpha query expansion. Radenović, Tolias and Chum, TPAMI 2018, https://arxiv.org/abs/1711.02512.
"""
import itertools
from functools import partial

import numpy as np
import torch

import parts
from evaluation.metrics import compute, parse
from evaluation.protocol import build_pool, embed_splits, note_collapse, splits_to_evaluate
from evaluation.ranking.arrays import chunks
from evaluation.ranking.neighbours import Search
from evaluation.ranking.precision import on_the_sphere
from flags.command_line import FRACTION, NOT_NEGATIVE, POSITIVE_INT
from records.columns import Column
from utilities import processes, stopping
from utilities.errors import UserError, choose
from utilities.text_tables import aligned

MOST = 30_000                # images re-ranked together at most; five matrices of N x N numbers then take 18 GB


def k_reciprocal(distances, k1=20, k2=6, weight=0.3):
    """
    The distances [N, N] of Zhong et al., Eq. 12, (1 − weight) d_J + weight d, from the squared Euclidean distances
    [N, N] of queries and gallery images together. d is divided by the largest of its row; d_J is the Jaccard distance.
    """
    largest = distances.max(axis=1, keepdims=True)
    distances = distances / np.where(largest > 0, largest, 1)
    np.fill_diagonal(distances, -1)                          # each image is its own nearest, also before its copies
    nearest = np.stack([np.argsort(row, kind='stable')[:max(k1 + 1, k2)] for row in stopping.checked(distances)])
    np.fill_diagonal(distances, 0)
    near = reciprocal(nearest[:, :k1 + 1])
    half = reciprocal(nearest[:, :round(k1 / 2) + 1])
    encodings = np.zeros_like(distances)
    for row, own in enumerate(stopping.checked(near)):
        enough = [q for q in own if 3 * len(np.intersect1d(own, half[q])) >= 2 * len(half[q])]
        members = np.unique(np.concatenate([own, *(half[q] for q in enough)]))
        weights = np.exp(-distances[row, members])
        encodings[row, members] = weights / weights.sum()
    encodings = np.stack([encodings[some].mean(axis=0) for some in nearest[:, :k2]])
    by_member = np.ascontiguousarray(encodings.T)
    for row, encoding in enumerate(stopping.checked(encodings)):
        some = np.flatnonzero(encoding)
        minima = np.minimum(by_member[some], encoding[some, None]).sum(axis=0)         # the maxima sum to 2 minus this
        distances[row] = weight * distances[row] + (1 - weight) * (1 - minima / (2 - minima))
    return distances


def reciprocal(nearest):
    """[N, k] the nearest images of each -> for each image, those of its nearest that have it among their nearest."""
    return [some[(nearest[some] == image).any(axis=1)] for image, some in enumerate(nearest)]


class KReciprocal(Search):
    """A Search by the distances of k_reciprocal(), whose `parameters` it takes. Cameras do not change neighbours."""

    def __init__(self, embeddings, labels, is_query=None, in_gallery=None, ranking=None, cameras=None, **parameters):
        super().__init__(embeddings, labels, is_query, in_gallery, cameras=cameras)
        used = np.union1d(self.query_index, self.gallery_index)
        if len(used) > MOST:
            raise UserError(f'kreciprocal: {len(used):,} images; their matrices would not fit, those of {MOST:,} do')
        points = embeddings[used].double()
        squared = torch.cdist(points, points, compute_mode='donot_use_mm_for_euclid_dist').float().square()
        queries, gallery = (np.searchsorted(used, index) for index in (self.query_index, self.gallery_index))
        self.final_distances = k_reciprocal(squared.numpy(), **parameters)[np.ix_(queries, gallery)]

    def scores(self, rows):
        return self.mask_excluded(torch.from_numpy(-self.final_distances[rows]), rows)

    def margins(self, rows, scores):
        """0: float32 decides."""
        return torch.zeros_like(scores)


def alpha_expanded(embeddings, labels, n=50, alpha=3.0, **more):
    """
    A Search by cosine similarity. Each query is replaced by the sum of itself and its n nearest gallery images, with
    the weights max(similarity, 0)^alpha, and scaled to norm 1. These images may be of the query's camera.
    """
    search = Search(on_the_sphere(embeddings), labels, **more)
    queries = search.queries
    expanded = queries.clone()
    for rows in chunks(np.arange(len(queries)), len(search.gallery) + n * queries.shape[1]):
        similarity = queries[rows] @ search.gallery.T
        itself = np.flatnonzero(search.own[rows] >= 0)
        similarity[itself, search.own[rows][itself]] = -torch.inf
        similarity, images = similarity.topk(min(n, len(search.gallery)), dim=1)
        weights = similarity.clamp(min=0) ** alpha * similarity.isfinite()
        expanded[rows] += torch.einsum('qn,qnd->qd', weights, search.gallery[images])
    search.queries = on_the_sphere(expanded)               # before the search computes anything of its queries
    search.symmetric = False
    return search


def searches(opt):
    """{method: function from the arguments of a Search to the Search}"""
    return {'plain': Search,
            'kreciprocal': partial(KReciprocal, k1=opt.kreciprocal_k1, k2=opt.kreciprocal_k2,
                                   weight=opt.kreciprocal_lambda),
            'alphaqe': partial(alpha_expanded, n=opt.alphaqe_n, alpha=opt.alphaqe_alpha)}


def flags(parser):
    add = parser.add_argument
    add('methods', nargs='*', metavar='METHOD', help='kreciprocal or alphaqe; by default both')
    add('--kreciprocal_k1', type=POSITIVE_INT, default=20, help='neighbours, fewer than a class has images')
    add('--kreciprocal_k2', type=POSITIVE_INT, default=6, help='encodings that are averaged')
    add('--kreciprocal_lambda', type=FRACTION, default=0.3, help='weight of the original distance')
    add('--alphaqe_n', type=POSITIVE_INT, default=50, help='neighbours, fewer than a class has images')
    add('--alphaqe_alpha', type=NOT_NEGATIVE, default=3.0, help='exponent of the similarity that weights a neighbour')


def compare(opt):
    """Prints the metrics of ranks of each split, without re-ranking and after each method."""
    names = [name for name in opt.evaluation_metrics if parse(name)[1].needs == 'ranks']
    if not names:
        raise UserError('rerank changes metrics of ranks only; add one to --evaluation_metrics, such as map_at_r')
    methods = {method: choose(searches(opt), method, 'rerank')
               for method in ('plain', *(opt.methods or ('kreciprocal', 'alphaqe')))}
    built = parts.restore(opt, opt.evaluate)
    splits = splits_to_evaluate(opt, built.data)
    embedded = embed_splits(opt, built.model, built.data, splits, built.criterion)
    if any(embedded[split].ranking for split in splits):
        raise UserError(f'rerank: --loss {opt.loss} ranks by a distance of its own; re-ranking takes Euclidean ones')
    print(processes.run_on_rank_zero(report, opt, embedded, splits, names, methods))


def report(opt, embedded, splits, names, methods):
    """The text of compare(): a line per split and metric, a column per method."""
    note_collapse(embedded, splits)
    lines = {}
    for split, level in itertools.product(splits, opt.eval_level):
        pool = build_pool(opt, embedded, split, level)
        pool.embeddings = pool.embeddings.cpu()
        for method, search in methods.items():
            values = compute(names, pool.embeddings, pool.labels, seed=opt.seed, pool=pool, search=search,
                             n_bootstrap=opt.bootstrap,
                             backend='sort' if method == 'kreciprocal' else 'auto')
            for name, value in values.items():
                lines.setdefault(Column(split, name, level).name, []).append(f'{value:.4f}')
    return aligned([['', *methods], *([name, *texts] for name, texts in lines.items())])
