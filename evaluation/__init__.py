"""Metrics: one pass embeds, one search ranks, one clustering and one decomposition serve all that need them."""
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from evaluation import clustering, geometry, neighbours, retrieval
from evaluation.embedding import embed, write
from utilities.errors import UserError
from utilities.randomness import preserved


@dataclass
class Metric:
    """
    needs:    what evaluate() computes once and hands to the function: 'ranks' (of the positives, and their numbers; the
              function gives a value per query), 'clusters' (labels and clusters), 'distances' or 'spectrum'.
    argument: of what follows the @: int, or the allowed words; None where nothing does.
    select:   whether a higher value means a better network, so that it can choose one.
    """
    needs: str
    function: Callable
    argument: type | tuple | None = None
    select: bool = True


METRICS = {
    'e_recall': Metric('ranks', retrieval.recall_at, int),
    'precision_at_1': Metric('ranks', retrieval.precision_at_1),
    'r_precision': Metric('ranks', retrieval.r_precision),
    'map_at_r': Metric('ranks', retrieval.map_at_r),
    'mAP': Metric('ranks', retrieval.mean_average_precision(np.inf)),
    'mAP_1000': Metric('ranks', retrieval.mean_average_precision(1000)),
    'mAP_lim': Metric('ranks', retrieval.mean_average_precision(1023)),
    'mAP_c': Metric('ranks', retrieval.map_at_r),
    'nmi': Metric('clusters', clustering.nmi),
    'ami': Metric('clusters', clustering.ami),
    'f1': Metric('clusters', clustering.f1),
    'dists': Metric('distances', dict.__getitem__, ('intra', 'inter', 'intra_over_inter'), select=False),
    'rho_spectrum': Metric('spectrum', geometry.rho_spectrum, int, select=False),
}


def parse(name):
    """'c_recall@4' -> (cosine or not, Metric, 4). Raises UserError for a metric that does not exist."""
    base, at, argument = name.partition('@')
    cosine = base.startswith('c_')
    base = base.removeprefix('c_') if cosine else base
    metric = METRICS.get('e_recall' if base == 'recall' and cosine else base)
    if metric is None or (base == 'e_recall' and cosine):
        raise UserError(f'--evaluation_metrics {name}: unknown; choose from {", ".join(METRICS)}, or c_ before them')
    if metric.argument is int:
        try:
            return cosine, metric, (number_after_at(base, argument),)
        except ValueError:
            raise UserError(f'--evaluation_metrics {name}: expected a whole number after an @: {base}@1') from None
    if metric.argument is None and not at:
        return cosine, metric, ()
    if metric.argument is not None and argument in metric.argument:
        return cosine, metric, (argument,)
    expected = f'one of {", ".join(metric.argument)} after an @' if metric.argument else 'no @'
    raise UserError(f'--evaluation_metrics {name}: expected {expected}')


def number_after_at(base, argument):
    number = int(argument)
    if base.endswith('recall') and number < 1:
        raise ValueError
    return number


def check_metrics(opt):
    """Refuses metrics that do not exist, and storage metrics that are not computed or do not tell good from bad."""
    for name in opt.evaluation_metrics:
        parse(name)
    for name in opt.storage_metrics:
        if name not in opt.evaluation_metrics:
            raise UserError(f'--storage_metrics {name}: not among the --evaluation_metrics')
        if not parse(name)[1].select:
            raise UserError(f'--storage_metrics {name}: a higher value is not a better network; choose a retrieval or '
                            'clustering metric')


def evaluate(opt, model, data):
    """
    Embeds the splits that are asked for and computes --evaluation_metrics on each.

    Returns ({'<split>_<metric>': float; for rho_spectrum@0 an array}, {split: Embedded}).
    """
    row, embedded = {}, {}
    for name in splits_to_evaluate(opt, data):
        embedded[name] = embed(opt, model, data.evaluation[name], name)
        images = embedded[name].images
        values = compute(opt.evaluation_metrics, embedded[name].embeddings, images.labels, images.is_query, opt.seed)
        row |= {f'{name}_{metric}': value for metric, value in values.items()}
    return row, embedded


def write_embeddings(opt, model, data, file):
    """Embeds the splits that are asked for into the .npz file. Raises UserError where it cannot be written."""
    if not Path(file).parent.is_dir():
        raise UserError(f'--embed {file}: there is no folder {Path(file).parent}')
    write({name: embed(opt, model, data.evaluation[name], name) for name in splits_to_evaluate(opt, data)}, file)
    print(f'Embeddings, labels, class names, paths and splits: {file}')


def check_feedback(miner, data):
    """Raises UserError for a miner that learns from validation metrics where these are not defined."""
    if getattr(miner, 'update_every', 0):
        if 'val' not in data.evaluation:
            raise UserError('--miner_parametric_adapt learns from validation images of the training classes: add '
                            '--use_tv_split')
        sizes = np.bincount(data.evaluation['val'].labels)
        if len(sizes) < 2 or sizes.max() < 2:
            raise UserError(f'--miner_parametric_adapt: the validation split has {len(sizes)} classes of at most '
                            f'{sizes.max()} images; it needs two or more of both: set a smaller --tv_split_perc')


def feedback(opt, model, data, miner, step, n_steps):
    """
    After a training step, counted from 1 to n_steps over all epochs: every miner.update_every steps, the metrics of the
    validation split for a miner that learns from them. The training goes on as if there had been no evaluation.
    """
    if not getattr(miner, 'update_every', 0) or step % miner.update_every:
        return
    with preserved():
        embedded = embed(opt, model, data.evaluation['val'], 'val')
        images = embedded.images
        metrics = compute(miner.validation_metrics, embedded.embeddings, images.labels, images.is_query, opt.seed)
    model.train()
    miner.update(metrics | {'progress': step / n_steps})


def splits_to_evaluate(opt, data):
    """The --splits_to_eval, or all there are. Raises UserError for one that is not there."""
    wanted = opt.splits_to_eval or [name for name in data.evaluation if name != 'train' or not opt.no_train_metrics]
    for name in wanted:
        if name not in data.evaluation:
            raise UserError(f'--splits_to_eval {name}: there is no such split (--use_tv_split makes validation)')
    return [name for name in data.evaluation if name in wanted]


def compute(metrics, embeddings, labels, is_query=None, seed=0):
    """
    Args:
        metrics:    names, as in --evaluation_metrics.
        embeddings: [N, D] float32 tensor, on the device to compute on.
        labels:     [N] int64 array, from 0.
        is_query:   None, or [N] bool: queries, which are searched for among the others.
        seed:       of the clustering.

    Returns: {metric: float, or array for rho_spectrum@0}. Queries without a positive are left out of the retrieval
    metrics; a metric that nothing is left for is nan.
    """
    values = {}
    parsed = {name: parse(name) for name in metrics}
    for cosine in (False, True):
        wanted = {name: rest for name, (in_cosine, *rest) in parsed.items() if in_cosine == cosine}
        points = F.normalize(embeddings, dim=1) if cosine else embeddings
        for needs in {metric.needs: None for metric, _ in wanted.values()}:
            functions = {name: lambda *shared, metric=metric, argument=argument: metric.function(*shared, *argument)
                         for name, (metric, argument) in wanted.items() if metric.needs == needs}
            values |= SHARED[needs](functions, points, labels, is_query, seed)
    return {name: values[name] for name in metrics}


def from_ranks(functions, embeddings, labels, is_query, seed):
    """The functions' means over the queries that have a positive."""
    chunks = {name: [] for name in functions}
    for ranks, n_positives in neighbours.Search(embeddings, labels, is_query).positive_ranks():
        some = n_positives > 0
        for name, function in functions.items():
            chunks[name].append(function(ranks[some], n_positives[some]))
    per_query = {name: np.concatenate(parts) for name, parts in chunks.items()}
    return {name: float(found.mean()) if len(found) else np.nan for name, found in per_query.items()}


def from_clusters(functions, embeddings, labels, is_query, seed):
    clusters = clustering.kmeans(embeddings, len(np.unique(labels)), seed)
    return {name: float(function(labels, clusters)) for name, function in functions.items()}


def from_distances(functions, embeddings, labels, is_query, seed):
    distances = geometry.class_distances(embeddings.cpu().double().numpy(), labels)
    return {name: float(function(distances)) for name, function in functions.items()}


def from_spectrum(functions, embeddings, labels, is_query, seed):
    values = geometry.singular_values(embeddings.cpu().double().numpy())
    return {name: function(values) for name, function in functions.items()}


SHARED = {'ranks': from_ranks, 'clusters': from_clusters, 'distances': from_distances, 'spectrum': from_spectrum}
