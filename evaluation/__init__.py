"""Metrics: one pass embeds, one ranking, one clustering and one decomposition serve all that need them."""
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from evaluation import clustering, figures, geometry, neighbours, ranking, retrieval
from evaluation.embedding import embed, write
from utilities.errors import UserError
from utilities.randomness import preserved


@dataclass
class Metric:
    """
    needs:    what evaluate() computes once and hands to the function: 'ranks' (of the positives, and their numbers; the
              function gives a value per query), 'clusters' (their contingency table), 'distances' or 'spectrum'.
    argument: of what follows the @: int, or the allowed words; None where nothing does.
    depth:    of metrics of ranks, the last rank that matters, from the number of positives and the argument.
    select:   whether a higher value means a better network, so that it can choose one.
    """
    needs: str
    function: Callable
    argument: type | tuple | None = None
    depth: Callable = lambda n_positives, *argument: np.inf
    select: bool = True


METRICS = {
    'e_recall': Metric('ranks', retrieval.recall_at, int, depth=lambda n_positives, k: k),
    'precision_at_1': Metric('ranks', retrieval.precision_at_1, depth=lambda n_positives: 1),
    'r_precision': Metric('ranks', retrieval.r_precision, depth=lambda n_positives: n_positives),
    'map_at_r': Metric('ranks', retrieval.map_at_r, depth=lambda n_positives: n_positives),
    'mAP': Metric('ranks', retrieval.mean_average_precision(np.inf)),
    'mAP_1000': Metric('ranks', retrieval.mean_average_precision(1000), depth=lambda n_positives: 1000),
    'mAP_lim': Metric('ranks', retrieval.mean_average_precision(1023), depth=lambda n_positives: 1023),
    'mAP_c': Metric('ranks', retrieval.map_at_r, depth=lambda n_positives: n_positives),
    'nmi': Metric('clusters', clustering.nmi),
    'ami': Metric('clusters', clustering.ami),
    'f1': Metric('clusters', clustering.f1),
    'dists': Metric('distances', dict.__getitem__, ('intra', 'inter', 'intra_over_inter'), select=False),
    'rho_spectrum': Metric('spectrum', geometry.rho_spectrum, int, select=False),
}
LEVELS = ('class', 'parent', 'within')


def parse(name):
    """'c_recall@4' -> (cosine or not, Metric, (4,)). Raises UserError for a metric that does not exist."""
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
    """Refuses metrics that do not exist, storage metrics that do not tell good from bad, and flags in their way."""
    for name in opt.evaluation_metrics:
        _, metric, argument = parse(name)
        if opt.knn_approx and metric.needs == 'ranks' and np.isinf(metric.depth(1, *argument)):
            raise UserError(f'--knn_approx finds the nearest images only, and {name} needs all: leave one of them out')
    if opt.knn_approx and opt.ranking_backend != 'auto':
        raise UserError(f'--knn_approx is a way to rank of its own, and --ranking_backend {opt.ranking_backend} '
                        'another: leave one of them out')
    for name in opt.storage_metrics:
        if name not in opt.evaluation_metrics:
            raise UserError(f'--storage_metrics {name}: not among the --evaluation_metrics')
        if not parse(name)[1].select:
            raise UserError(f'--storage_metrics {name}: a higher value is not a better network; choose a retrieval or '
                            'clustering metric')
    if 'class' not in opt.eval_level and not (opt.evaluate or opt.embed or opt.draw):
        raise UserError('--eval_level: a run needs class among its levels, since --storage_metrics are of it')
    figures.check(opt)
    if opt.evaluate_on_gpu and opt.ranking_backend not in ('auto', 'torch'):
        raise UserError(f'--ranking_backend {opt.ranking_backend} runs on the CPU: leave --evaluate_on_gpu out')
    if opt.ranking_backend == 'search' and not ranking.has_faiss():
        raise UserError('--ranking_backend search needs faiss: pip install faiss-cpu, or leave the flag out')


def evaluate(opt, model, data, criterion=None, epoch=None):
    """
    Embeds the splits that are asked for and computes --evaluation_metrics on each.

    criterion: may have a method ranking_embeddings(embeddings [N, D]) -> (queries [N, K], gallery [N, K]). Then the
               image of the larger inner product is the nearer one, in all retrieval metrics but those on cosines.
    epoch:     None, or the epoch, of which --cluster_every leaves the clustering out.

    Returns ({'<split>_<metric>': float; for rho_spectrum@0 an array}, {split: Embedded}).
    """
    metrics, row = opt.evaluation_metrics, {}
    if epoch is not None and epoch % opt.cluster_every and epoch != opt.n_epochs:
        metrics = [name for name in metrics if parse(name)[1].needs != 'clusters']
    wanted = splits_to_evaluate(opt, data)
    embedded = embed_splits(opt, model, data, wanted, criterion)
    for split in wanted:
        for level in opt.eval_level:
            # within super-classes there are other neighbours, but no other classes or embeddings
            needs = {'class': SHARED, 'parent': ('ranks', 'clusters'), 'within': ('ranks',)}[level]
            some = [name for name in metrics if parse(name)[1].needs in needs]
            images = embedded[split].images
            labels = class_of(images, level)
            values = compute(some, embedded[split].embeddings, labels, seed=opt.seed, ranking=embedded[split].ranking,
                             pool=pool_of(opt, embedded, split, level), backend=opt.ranking_backend,
                             approximate=opt.knn_approx, n_bootstrap=opt.bootstrap)
            prefix = f'{split}_' if level == 'class' else f'{split}_{level}_'
            row |= {f'{prefix}{name}': value for name, value in values.items()}
    return row, embedded


def embed_splits(opt, model, data, names, criterion=None):
    """{split: Embedded} of `names`, and of the training split where it is searched in or gives the --pca."""
    needed = [name for name in data.evaluation
              if name in names or (name == 'train' and (opt.eval_reference != 'self' or opt.pca))]
    embedded = {name: embed(opt, model, data.evaluation[name], name, opt.eval_features, opt.eval_autocast)
                for name in needed}
    return as_evaluated(opt, embedded, criterion)


def as_evaluated(opt, embedded, criterion=None):
    """
    {split: Embedded} as the network gives them -> as they are judged: after --pca, fitted on the training split, and
    --eval_normalize, and with what the criterion says about the ranking.
    """
    parts = {name: replace(part) for name, part in embedded.items()}
    if opt.pca:
        reduce = geometry.principal_components(parts['train'].embeddings.cpu().numpy(), opt.pca)
        for part in parts.values():
            part.embeddings = torch.from_numpy(reduce(part.embeddings.cpu().numpy())).to(part.embeddings.device)
    for part in parts.values():
        if opt.eval_normalize:
            part.embeddings = F.normalize(part.embeddings, dim=1)
        if not (opt.eval_features or opt.pca):                # else they are not what the criterion knows
            part.ranking = getattr(criterion, 'ranking_embeddings', None)
    return parts


def class_of(images, level):
    """The class of each image, or its super-class (level parent), numbered from 0 in the order of the names: [N]."""
    return np.unique(names_of(images, level), return_inverse=True)[1]


def names_of(images, level):
    return np.array(images.superclasses if level == 'parent' else images.class_names, dtype=str)[images.labels]


def check_data(opt, data):
    """Raises UserError where --eval_level or --eval_reference ask for what the data set does not have."""
    if set(opt.eval_level) - {'class'} and any(None in images.superclasses for images in data.evaluation.values()):
        raise UserError(f'--eval_level {" ".join(opt.eval_level)}: --dataset {opt.dataset} has no super-classes')
    if (opt.eval_reference != 'self' or opt.pca) and 'train' not in data.evaluation:
        flag = f'--pca {opt.pca}' if opt.eval_reference == 'self' else f'--eval_reference {opt.eval_reference}'
        raise UserError(f'{flag} needs the training split, and --dataset {opt.dataset} has none here: leave it out')
    if not opt.draw:
        splits_to_evaluate(opt, data)
    if opt.eval_reference == 'self':
        return
    searched = [data.evaluation[name] for name in splits_to_evaluate(opt, data) if name != 'train']
    if not searched:
        raise UserError(f'--eval_reference {opt.eval_reference} says what test and validation images are searched in, '
                        'and neither are evaluated (--splits_to_eval): leave it out')
    for level in opt.eval_level if opt.eval_reference == 'train' else ():
        kind, names = ('super-class', 'superclasses') if level == 'parent' else ('class', 'class_names')
        if not any(set(getattr(images, names)) & set(getattr(data.train, names)) for images in searched):
            raise UserError(f'--eval_reference train: no evaluated {kind} is a training {kind}, so that there is '
                            'nothing to find; choose all, or cut a validation split by --tv_split_by_samples')


def pool_of(opt, embedded, split, level):
    """The images that the queries of a split are searched for in, after --eval_reference and --eval_level."""
    own, other = embedded[split], embedded['train'] if opt.eval_reference != 'self' and split != 'train' else None
    sets = [part for part in (own, other) if part is not None]
    is_query, in_gallery = own.images.is_query, None
    if other is not None:
        is_query = np.ones(len(own.images), bool) if is_query is None else is_query
        in_gallery = np.ones_like(is_query) if own.images.is_query is None else ~is_query
        in_gallery &= opt.eval_reference == 'all'
        is_query, in_gallery = (np.concatenate([some, np.full(len(other.images), value)])
                                for some, value in ((is_query, False), (in_gallery, True)))
    names, parents = (np.concatenate([names_of(part.images, which) for part in sets])
                      for which in ('parent' if level == 'parent' else 'class', 'parent'))
    return Pool(torch.cat([part.embeddings for part in sets]) if other else own.embeddings,
                np.unique(names, return_inverse=True)[1], is_query, in_gallery, parents if level == 'within' else None)


def write_embeddings(opt, model, data, file):
    """Embeds the splits that are asked for into the .npz file. Raises UserError where it cannot be written."""
    if not Path(file).parent.is_dir():
        raise UserError(f'--embed {file}: there is no folder {Path(file).parent}')
    if Path(file).is_dir():
        raise UserError(f'--embed {file}: it is a folder; give a file, such as {Path(file) / "embeddings.npz"}')
    names = splits_to_evaluate(opt, data)
    embedded = embed_splits(opt, model, data, names)
    write({name: embedded[name] for name in names}, file)
    print(f'Embeddings, labels, class names, paths and splits: {file}')


def validate(opt, model, data, metrics):
    """
    {metric: float} of the validation split in the middle of an epoch. The training goes on as if it had not happened:
    the random generators, and the network's mode, are afterwards what they were.
    """
    with preserved():
        embedded = embed(opt, model, data.evaluation['val'], 'val')
        values = compute(metrics, embedded.embeddings, embedded.images.labels, embedded.images.is_query, opt.seed)
    model.train()
    return values


def draw(opt, model, data, criterion, folder):
    """
    Draws the --pictures of the test split, where there is none of another, into `folder`. Raises UserError where there
    is no place for them, or none is asked for.
    """
    if opt.pictures == ['none']:
        raise UserError(f'--draw {folder}: there is nothing to draw with --pictures none, which the run may have '
                        f'recorded; name some of {", ".join(figures.PICTURES)}')
    if not Path(folder).parent.is_dir():
        raise UserError(f'--draw {folder}: there is no folder {Path(folder).parent}')
    if Path(folder).is_file():
        raise UserError(f'--draw {folder}: it is a file; give a folder')
    split = next(name for name in ('test', 'val', 'train') if name in data.evaluation)
    files = figures.draw(opt, embed_splits(opt, model, data, [split], criterion)[split], folder, split)
    for file in files:
        print(file)
    missing = [name for name in opt.pictures if not any(file.stem == f'{name}_{split}' for file in files)]
    if missing:
        print(f'Not drawn: {", ".join(missing)}: the {split} split has too few images, or none with another image of '
              'its class to find.')


def split_of_pictures(opt, data):
    """The split whose embeddings a run draws at its end: test, or val where test is not evaluated, or else train."""
    order = ('test', 'val', 'train') if 'test' in splits_to_evaluate(opt, data) else ('val', 'test', 'train')
    return next(name for name in order if name in data.evaluation)


def splits_to_evaluate(opt, data):
    """The --splits_to_eval, or all there are. Raises UserError for one that is not there."""
    wanted = opt.splits_to_eval or [name for name in data.evaluation if name != 'train' or not opt.no_train_metrics]
    for name in wanted:
        if name not in data.evaluation:
            raise UserError(f'--splits_to_eval {name}: there is no such split (--use_tv_split or --split_scheme '
                            'class_folds make validation)')
    if not wanted:
        raise UserError('--no_train_metrics leaves nothing to evaluate where the training split is the only one')
    return [name for name in data.evaluation if name in wanted]


@dataclass
class Pool:
    """
    Images of which some are searched for in others; see neighbours.Search.

    groups: None, or [N]: each query is searched for among the images of its group only.
    """
    embeddings: torch.Tensor
    labels: np.ndarray
    is_query: np.ndarray | None = None
    in_gallery: np.ndarray | None = None
    groups: np.ndarray | None = None

    def parts(self):
        """Yields (indices of the images, neighbours.Search's first four arguments) per group."""
        index = np.arange(len(self.labels))
        for group in [None] if self.groups is None else np.unique(self.groups):
            some = index if group is None else np.flatnonzero(self.groups == group)
            arrays = (None if array is None else array[some] for array in (self.is_query, self.in_gallery))
            yield some, (neighbours.rows_of(self.embeddings, some), self.labels[some], *arrays)


@dataclass
class Job:
    """What the shared parts are computed from; compute() describes its arguments."""
    embeddings: torch.Tensor
    labels: np.ndarray
    pool: Pool
    seed: int = 0
    ranking: Callable | None = None
    backend: str = 'auto'
    approximate: bool = False
    n_bootstrap: int = 0

    def on_cosines(self):
        unit = F.normalize(self.embeddings, dim=1)
        pool = unit if self.pool.embeddings is self.embeddings else F.normalize(self.pool.embeddings, dim=1)
        return replace(self, embeddings=unit, pool=replace(self.pool, embeddings=pool), ranking=None)


def compute(metrics, embeddings, labels, is_query=None, seed=0, pool=None, **options):
    """
    Args:
        metrics:     names, as in --evaluation_metrics.
        embeddings:  [N, D] floating-point tensor, on the device to compute on.
        labels:      [N] int64 array, from 0.
        is_query:    None, or [N] bool: queries, which are searched for among the others.
        seed:        of clustering, bootstrap and approximate search.
        pool:        None, or a Pool that is searched in instead of these images.
        ranking:     None, or embeddings [N, D] -> (queries [N, K], gallery [N, K]) whose inner product ranks.
        backend:     how to rank, one of ranking.BACKENDS.
        approximate: whether to search approximately (--knn_approx).
        n_bootstrap: resamples of the classes for an interval of each retrieval metric; 0: no intervals.

    Returns: {metric: float, or array for rho_spectrum@0}, and with n_bootstrap {metric}_low and _high. Queries without
    a positive are left out of the retrieval metrics; a metric that nothing is left for is nan. Raises UserError for
    embeddings that are not finite, or too large for float32 distances.
    """
    embeddings = finite(embeddings.float())
    if pool is None:
        pool = Pool(embeddings, labels, is_query)
    else:
        others = pool.embeddings
        pool = replace(pool, embeddings=embeddings if others is embeddings else finite(others.float()))
    job, values = Job(embeddings, labels, pool, seed, **options), {}
    parsed = {name: parse(name) for name in metrics}
    with full_precision():
        for cosine in (False, True):
            wanted = {name: rest for name, (in_cosine, *rest) in parsed.items() if in_cosine == cosine}
            space = job.on_cosines() if cosine and wanted else job
            for needs in {metric.needs: None for metric, _ in wanted.values()}:
                values |= SHARED[needs]({name: rest for name, rest in wanted.items() if rest[0].needs == needs}, space)
    return {name: values[name] for metric in metrics for name in (metric, f'{metric}_low', f'{metric}_high')
            if name in values}


def finite(embeddings):
    low, high = torch.aminmax(embeddings)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise UserError('The embeddings hold values that are not finite (NaN or infinite): there is nothing to rank.')
    if max(-low, high) * embeddings.shape[1] ** 0.5 > 1e18:
        raise UserError(f'The embeddings hold values up to {max(-low, high):.1e}, whose squares float32 cannot hold; '
                        'scale them down, or evaluate with --eval_normalize.')
    return embeddings


@contextlib.contextmanager
def full_precision():
    """Float32 products of float32 digits: neither --tf32 nor autocast reaches the metrics."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.autocast('cuda', enabled=False), torch.autocast('cpu', enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def from_ranks(metrics, job):
    """The metrics' means over the queries that have a positive, and with n_bootstrap their intervals."""
    per_image = {name: np.full(len(job.pool.labels), np.nan) for name in metrics}
    for images, arguments in job.pool.parts():
        transformed = job.ranking(arguments[0]) if job.ranking else None
        search = neighbours.Search(*arguments, transformed)
        if not search.n_positives.any():
            continue
        depth = functools.reduce(np.maximum, [metric.depth(search.n_positives, *argument)
                                              for metric, argument in metrics.values()])
        index = neighbours.approximate_index(search, job.seed) if job.approximate else None
        for rows, ranks in ranking.positive_ranks(search, depth, job.backend, index):
            for name, (metric, argument) in metrics.items():
                per_image[name][images[search.query_index[rows]]] = metric.function(
                    ranks, search.n_positives[rows], *argument)
    values = {}
    for name, found in per_image.items():
        judged = ~np.isnan(found)
        values[name] = float(found[judged].mean()) if judged.any() else np.nan
        if job.n_bootstrap:
            values[f'{name}_low'], values[f'{name}_high'] = retrieval.interval(
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


SHARED = {'ranks': from_ranks, 'clusters': from_clusters, 'distances': from_distances, 'spectrum': from_spectrum}
