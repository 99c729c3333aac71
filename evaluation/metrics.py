"""Metrics: embeddings in, numbers out. Ranking, clustering and singular values are computed once for all."""
import contextlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial, reduce

import numpy as np
import torch

from evaluation import clustering, geometry, hierarchy, rank_metrics, ranking, verification
from evaluation.ranking import neighbours, precision
from evaluation.ranking.arrays import take_rows
from records import columns
from utilities.device import full_float32
from utilities.errors import UserError, nearest


@dataclass
class Metric:
    """
    needs:    the input of the function, computed once for all metrics that need it: 'ranks' (ranks and numbers of the
              positives; the function returns a value per query), 'levels' (ranks and levels of the images that share a
              label with the query; a value per query as well), 'clusters' (a clustering.Contingency), 'distances',
              'spectrum' or 'pairs' (verification.Pairs).
    argument: the type of the argument after the @: int, float (a fraction), or the allowed words; None: no argument.
    depth:    for metrics of ranks: (number of positives, argument) -> the last rank that matters.
    selects:  whether its values can select the best network: the highest one, or the lowest if not higher_is_better.
    higher_is_better: whether a higher value means a better network.
    is_fraction: whether it is a fraction, which tables and figures print in percent.
    summary:  None: the metric is the mean of the values per query; or (norms [q], values [q]) -> the metric.
    """
    needs: str
    function: Callable
    argument: type | tuple | None = None
    depth: Callable = lambda n_positives, *argument: np.inf
    selects: bool = True
    higher_is_better: bool = True
    is_fraction: bool = True
    summary: Callable | None = None


METRICS = {
    'e_recall': Metric('ranks', rank_metrics.recall_at, int, depth=lambda n_positives, k: k),
    'precision_at_1': Metric('ranks', rank_metrics.precision_at_1, depth=lambda n_positives: 1),
    'r_precision': Metric('ranks', rank_metrics.r_precision, depth=lambda n_positives: n_positives),
    'map_at_r': Metric('ranks', rank_metrics.map_at_r, depth=lambda n_positives: n_positives),
    'mAP': Metric('ranks', partial(rank_metrics.average_precision, cut=np.inf)),
    'mAP_trapezoid': Metric('ranks', rank_metrics.trapezoidal_average_precision),
    'mAP_1000': Metric('ranks', partial(rank_metrics.average_precision, cut=1000), depth=lambda n_positives: 1000),
    'mAP_lim': Metric('ranks', partial(rank_metrics.average_precision, cut=1023), depth=lambda n_positives: 1023),
    'mAP_c': Metric('ranks', rank_metrics.map_at_r, depth=lambda n_positives: n_positives),
    'minp': Metric('ranks', rank_metrics.inverse_negative_penalty),
    'h_ap': Metric('levels', hierarchy.h_ap),
    'asi': Metric('levels', hierarchy.asi),
    'ndcg': Metric('levels', hierarchy.ndcg),
    'r_auroc': Metric('ranks', rank_metrics.precision_at_1, depth=lambda n_positives: 1, summary=rank_metrics.auroc,
                      selects=False, is_fraction=False),
    'nmi': Metric('clusters', clustering.nmi),
    'ami': Metric('clusters', clustering.ami),
    'f1': Metric('clusters', clustering.f1),
    'dists': Metric('distances', dict.__getitem__, ('intra', 'inter', 'intra_over_inter'), selects=False,
                    is_fraction=False),
    'rho_spectrum': Metric('spectrum', geometry.rho_spectrum, int, selects=False, is_fraction=False),
    'tpr': Metric('pairs', verification.true_positive_rate, float),
    'opis': Metric('pairs', verification.opis, selects=False, is_fraction=False),
    'threshold_spread': Metric('pairs', verification.threshold_spread, float, selects=False, is_fraction=False),
}


NAMES_ELSEWHERE = {                                                                       # in pytorch-metric-learning
    'mean_average_precision_at_r': 'map_at_r', 'mean_average_precision': 'mAP', 'NMI': 'nmi', 'AMI': 'ami'}


def parse(name):
    """'c_recall@4' -> (True: on cosines, Metric, (4,)). Raises UserError for a metric that does not exist."""
    base, at, argument = name.partition('@')
    cosine = base.startswith('c_')
    base = base.removeprefix('c_')
    metric = METRICS.get('e_recall' if cosine and base == 'recall' else base)
    if metric is None or (base == 'e_recall' and cosine):
        names = [f'c_{known.removeprefix("e_")}' for known in METRICS] if cosine else METRICS
        if base in NAMES_ELSEWHERE:
            raise UserError(f'--evaluation_metrics {name}: its name here is '
                            f'{"c_" * cosine}{NAMES_ELSEWHERE[base]}{at}{argument}')
        raise UserError(f'--evaluation_metrics {name}: unknown; choose from {", ".join(METRICS)}, or c_ before them'
                        + nearest(name.partition('@')[0], names).replace('?', f'{at}{argument}?'))
    if metric.argument in (int, float):
        try:
            number = metric.argument(argument)
            is_no_rank = base.endswith('recall') and number < 1
            is_no_fraction = metric.argument is float and not 0 < number < 1
            is_odd_text = metric.argument is int and str(number) != argument               # 01 or 1_0
            if is_no_rank or is_no_fraction or is_odd_text:
                raise ValueError
            return cosine, metric, (number,)
        except ValueError:
            expected = 'whole number after an @: {}@1' if metric.argument is int else 'fraction after an @: {}@0.01'
            raise UserError(f'--evaluation_metrics {name}: expected a {expected.format(base)}') from None
    if metric.argument is None and not at:
        return cosine, metric, ()
    if metric.argument is not None and argument in metric.argument:
        return cosine, metric, (argument,)
    expected = f'one of {", ".join(metric.argument)} after an @' if metric.argument else 'no @'
    raise UserError(f'--evaluation_metrics {name}: expected {expected}')


@dataclass
class Pool:
    """
    The images that are searched; embeddings, labels, is_query and in_gallery are as in neighbours.Search.

    groups: None, or [N]: a query's gallery has only the images of its group.
    cameras: None, or [N]: metrics of ranks leave out the gallery images of a query's class and camera.
    levels: None, or [N, K] int64: the super-class of each image at each of K levels.
    norms:  None, or [N]: the norm of each image's embedding before it was normalised; None: the norms of `embeddings`.
    """
    embeddings: torch.Tensor
    labels: np.ndarray
    _: KW_ONLY
    is_query: np.ndarray | None = None
    in_gallery: np.ndarray | None = None
    groups: np.ndarray | None = None
    cameras: np.ndarray | None = None
    levels: np.ndarray | None = None
    norms: np.ndarray | None = None


@dataclass
class Job:
    """The input of the metrics: the arguments of compute()."""
    embeddings: torch.Tensor
    labels: np.ndarray
    pool: Pool
    seed: int = 0
    ranking: Callable | None = None
    backend: str = 'auto'
    n_bootstrap: int = 0
    draws: tuple | None = None
    search: Callable = neighbours.Search

    def searches(self):
        """Yields (indices of the images, the Search among them) for each group of the pool."""
        pool = self.pool
        groups = np.zeros(len(pool.labels)) if pool.groups is None else pool.groups
        for group in np.unique(groups):
            images = np.flatnonzero(groups == group)
            embeddings = take_rows(pool.embeddings, images)
            arrays = {name: getattr(pool, name) for name in ('labels', 'is_query', 'in_gallery', 'cameras')}
            yield images, self.search(
                embeddings, **{name: None if array is None else array[images] for name, array in arrays.items()},
                ranking=self.ranking(embeddings) if self.ranking else None)

    def on_cosines(self):
        unit = precision.on_the_sphere(self.embeddings)
        same = self.pool.embeddings is self.embeddings
        pool = unit if same else precision.on_the_sphere(self.pool.embeddings)
        return replace(self, embeddings=unit, pool=replace(self.pool, embeddings=pool), ranking=None)


def compute(metrics, embeddings, labels, is_query=None, seed=0, pool=None, **options):
    """
    Args:
        metrics:     names, as in --evaluation_metrics.
        embeddings:  [N, D] floating-point tensor, on the device to compute on.
        labels:      [N] int64 array, from 0.
        is_query:    None: each image is a query, and all others are its gallery; or [N] bool: True for the queries,
                     False for the gallery.
        seed:        seed of clustering and bootstrap.
        pool:        None, or the Pool in which the retrieval metrics search in place of these images.
        ranking:     None, or embeddings [N, D] -> (queries [N, K], gallery [N, K]), whose inner product is the score.
        backend:     how to rank: auto, or one of ranking.ranks.WAYS.
        n_bootstrap: number of resamples of the classes for an interval of each retrieval metric; 0: no intervals.
        draws:       None, or (n, size): the metrics of ranks are means over n random galleries of `size` images of each
                     class, with the other images as queries; their standard deviations have columns.deviation names.
        search:      the Search that ranks for retrieval metrics: neighbours.Search, or a re-ranking with its arguments.

    Returns: {metric: float, or array for rho_spectrum@0}, and with n_bootstrap the ends of the intervals, named by
    columns.interval. Queries without a positive are left out of the retrieval metrics; a metric without any query is
    nan. Raises UserError for embeddings that are not finite, or too large for float32 distances.
    """
    pool = pool or Pool(embeddings, labels, is_query=is_query)
    is_own = pool.embeddings is embeddings
    embeddings = finite(embeddings.float())
    pool = replace(pool, embeddings=embeddings if is_own else finite(pool.embeddings.float()))
    if pool.norms is None:
        pool = replace(pool, norms=pool.embeddings.norm(dim=1).cpu().numpy())
    job = Job(embeddings, labels, pool, seed, **options)
    values = {}
    parsed = {name: parse(name) for name in metrics}
    with full_precision():
        for cosine in (False, True):
            wanted = {name: rest for name, (in_cosine, *rest) in parsed.items() if in_cosine == cosine}
            space = job.on_cosines() if cosine and wanted else job
            for needs in {metric.needs: None for metric, _ in wanted.values()}:
                values |= SHARED[needs]({name: rest for name, rest in wanted.items() if rest[0].needs == needs}, space)
    return {name: values[name] for metric in metrics for name in (metric, *columns.beside(metric)) if name in values}


def finite(embeddings):
    low, high = torch.aminmax(embeddings)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise UserError('The embeddings contain values that are not finite (NaN or infinite), which cannot be ranked.')
    if max(-low, high) * embeddings.shape[1] ** 0.5 > 1e18:
        raise UserError(f'The embeddings contain values up to {max(-low, high):.1e}, whose squares float32 cannot '
                        'hold; scale them down, or evaluate with --eval_normalize.')
    return embeddings


@contextlib.contextmanager
def full_precision():
    """In the block, float32 products are exact to float32: neither --tf32 nor autocast changes the metrics."""
    gpu = torch.accelerator.current_accelerator() or torch.device('cpu')
    with full_float32(), torch.autocast(gpu.type, enabled=False), torch.autocast('cpu', enabled=False):
        yield


def from_ranks(metrics, job):
    """Metrics and a Job -> {name: mean over the queries with a positive}, and with n_bootstrap their intervals."""
    if job.draws:
        return from_draws(metrics, job)
    per_image = {name: np.full(len(job.pool.labels), np.nan) for name in metrics}
    for images, search in job.searches():
        if not search.n_positives.any():
            continue
        depths = [metric.depth(search.n_positives, *argument) for metric, argument in metrics.values()]
        for queries, ranks in ranking.positive_ranks(search, reduce(np.maximum, depths), job.backend):
            for name, (metric, argument) in metrics.items():
                values = metric.function(ranks, search.n_positives[queries], *argument)
                per_image[name][images[search.query_index[queries]]] = per_query(name, values, len(queries))
    return summarised(metrics, per_image, job)


def from_draws(metrics, job):
    """Metrics and a Job -> {name: mean over random galleries} and their standard deviations."""
    (_, search), = job.searches()
    n_draws, size = job.draws
    per_image = [{name: np.full(len(job.pool.labels), np.nan) for name in metrics} for _ in range(n_draws)]
    for number, rows, ranks, n_positives in ranking.drawn_ranks(search, n_draws, size, job.seed):
        for name, (metric, argument) in metrics.items():
            values = metric.function(ranks, n_positives, *argument)
            per_image[number][name][search.query_index[rows]] = per_query(name, values, len(rows))
    drawn = [summarised(metrics, found, replace(job, n_bootstrap=0)) for found in per_image]
    values = {name: float(np.mean([found[name] for found in drawn])) for name in metrics}
    if n_draws > 1:
        values |= {columns.deviation(name): float(np.std([found[name] for found in drawn], ddof=1)) for name in metrics}
    return values


def from_levels(metrics, job):
    """Metrics of levels and a Job -> {name: mean over the queries}. Without super-classes, classes are the level."""
    pool = replace(job.pool, cameras=None)
    per_image = {name: np.full(len(pool.labels), np.nan) for name in metrics}
    every = pool.labels[:, None] if pool.levels is None else np.column_stack([pool.labels, pool.levels])
    for images, search in replace(job, pool=pool, search=neighbours.Search).searches():
        ranked = hierarchy.ranked_levels(search, every[images], lambda *ranked: [
            metric.function(*ranked, every.shape[1]) for metric, _ in metrics.values()])
        for queries, *found in ranked:
            for name, values in zip(metrics, found, strict=True):
                per_image[name][images[search.query_index[queries]]] = per_query(name, values, len(queries))
    return summarised(metrics, per_image, job)


def per_query(name, values, n_queries):
    """The values of a metric as an array [n_queries]. Raises UserError where its function returned something else."""
    values = np.asarray(values)
    if values.shape != (n_queries,):
        raise UserError(f'evaluation/metrics.py: the function of {name} in METRICS returned an array '
                        f'{list(values.shape)} for {n_queries} queries; expected a value per query')
    return values


def summarised(metrics, per_image, job):
    """The means of values per image, [N] each, over the images that are not nan; with n_bootstrap their intervals."""
    values = {}
    for name, found in per_image.items():
        judged = ~np.isnan(found)
        summary = metrics[name][0].summary
        if summary:
            values[name] = float(summary(job.pool.norms[judged], found[judged]))
            continue
        values[name] = float(found[judged].mean()) if judged.any() else np.nan
        if job.n_bootstrap:
            low, high = columns.interval(name)
            values[low], values[high] = rank_metrics.interval(
                found[judged], job.pool.labels[judged], job.n_bootstrap, job.seed)
    return values


def from_clusters(metrics, job):
    clusters = clustering.kmeans(job.embeddings, len(np.unique(job.labels)), job.seed)
    table = clustering.Contingency(job.labels, clusters)
    return {name: float(metric.function(table)) for name, (metric, _) in metrics.items()}


def from_distances(metrics, job):
    distances = geometry.class_distances(job.embeddings.cpu().numpy(), job.labels)
    return {name: float(metric.function(distances, *argument)) for name, (metric, argument) in metrics.items()}


def from_spectrum(metrics, job):
    values = geometry.singular_values(job.embeddings.cpu().numpy())
    return {name: metric.function(values, *argument) for name, (metric, argument) in metrics.items()}


def from_pairs(metrics, job):
    pairs = verification.Pairs(job.embeddings, job.labels)
    return {name: float(metric.function(pairs, *argument)) for name, (metric, argument) in metrics.items()}


SHARED = {'ranks': from_ranks, 'levels': from_levels, 'clusters': from_clusters, 'distances': from_distances,
          'spectrum': from_spectrum, 'pairs': from_pairs}
