"""
How a network is evaluated: which splits, at which levels of the class hierarchy, and which images are the queries and
the gallery.
"""
import functools
import sys
from dataclasses import replace

import numpy as np
import torch

from evaluation import geometry, titles
from evaluation.embedding import compared, embed, write
from evaluation.metrics import Pool, compute, parse
from records import columns
from records.columns import Column
from utilities import processes
from utilities.device import full_float32
from utilities.errors import UserError, nearest
from utilities.files import require_writable
from utilities.randomness import preserved

# The Metric.needs that are computed at each level; at `class`, all of them. `within` and `across` change only the
# gallery.
NEEDS_OF_LEVELS = {'parent': ('ranks', 'clusters'), 'within': ('ranks',), 'across': ('ranks',), 'draws': ('ranks',)}


def evaluate(opt, model, data, criterion=None, epoch=None):
    """
    Embeds the splits to evaluate and computes --evaluation_metrics on each.

    criterion: may have a method ranking_embeddings(embeddings [N, D]) -> (queries [N, K], gallery [N, K]). Their inner
               product is then the score in all retrieval metrics except the ones on cosines.
    epoch:     None, or the epoch: --cluster_every skips the clustering in some epochs.

    All processes of a run embed; the first one computes the metrics, and the others wait for them.

    Returns ({'<split>_<metric>': float; for rho_spectrum@0 an array}, {split: Embedded}).
    """
    metrics = opt.evaluation_metrics
    if epoch is not None and epoch % opt.cluster_every and epoch != opt.n_epochs:
        metrics = [name for name in metrics if parse(name)[1].needs != 'clusters']
    splits = splits_to_evaluate(opt, data)
    embedded = embed_splits(opt, model, data, splits, criterion)
    return processes.run_on_rank_zero(compute_metrics, opt, embedded, splits, metrics), embedded


def show(opt, built):
    """--evaluate: prints the metrics of the Parts `built`."""
    row, _ = evaluate(opt, built.model, built.data, built.criterion)
    print(titles.table({name: value for name, value in row.items() if columns.parse(name)}))


def compute_metrics(opt, embedded, splits, metrics):
    """
    The `metrics` of `splits` as evaluate() returns them. embedded: {split: Embedded}, with the training split where
    --eval_reference needs it.
    """
    row = {}
    note_collapse(embedded, splits)
    for split in splits:
        for level in levels(opt):
            part = embedded[split]
            pool = build_pool(opt, embedded, split, level)
            embeddings, labels = part.without_distractors()
            labels = np.unique(level_names(part.images, level, labels), return_inverse=True)[1]
            names = [name for name in metrics if is_computed(name, level)]
            draws = (opt.eval_draws, opt.eval_draw_size) if level == 'draws' else None
            values = compute(names, embeddings, labels, seed=opt.seed, ranking=part.ranking, pool=pool,
                             n_bootstrap=opt.bootstrap, draws=draws)
            row |= {Column(split, name, level).name: value for name, value in values.items()}
    return row


def levels(opt):
    """The levels of --eval_level, and with --eval_draws the level `draws`."""
    draws = ['draws'] if opt.eval_draws else []
    return [*opt.eval_level, *draws]


def is_computed(metric, level):
    return level == 'class' or parse(metric)[1].needs in NEEDS_OF_LEVELS[level]


def note_collapse(embedded, splits):
    """Prints a note if all embeddings of one of the `splits` are the same. embedded: {split: Embedded}."""
    same = [f'{split} split' for split in splits if are_same(embedded[split].embeddings)]
    if same:
        print(collapse(' and the '.join(same)), file=sys.stderr)


def collapse(name):
    return (f'Note: all embeddings of the {name} are the same: the network has collapsed, and what is near means '
            'nothing. A lower --lr, or another loss or miner, may help; or the images are all equal or blank.')


def are_same(embeddings):
    """Whether [N, D] embeddings of two images or more are equal, or nearly so."""
    if len(embeddings) < 2:
        return False
    low, high = torch.aminmax(embeddings, dim=0)
    return bool((high - low).max() <= 1e-5 * torch.maximum(high, -low).max())


def validate(opt, model, data, metrics):
    """
    {metric: float} of the validation split in the middle of an epoch. It does not influence the training: the random
    generators and the network's mode are restored afterwards.
    """
    with preserved():
        images = data.evaluation['val']
        embedded = embed(opt, model, images, 'val', False, opt.eval_autocast)
        pool = Pool(compared(embedded.embeddings, opt.eval_normalize), images.labels, is_query=images.is_query,
                    in_gallery=images.in_gallery)
        values = compute(metrics, pool.embeddings, pool.labels, seed=opt.seed, pool=pool)
    model.train()
    return values


def write_embeddings(opt, model, data, file):
    """Writes the embeddings of the splits to evaluate into an .npz file. Raises UserError if it cannot be written."""
    processes.run_on_rank_zero(require_writable, file, 'embeddings')
    splits = splits_to_evaluate(opt, data)
    embedded = embed_splits(opt, model, data, splits)
    processes.run_on_rank_zero(write, {split: embedded[split] for split in splits}, file)
    print(f'Embeddings, their norms, labels, class names, paths and splits: {file}')


def embed_splits(opt, model, data, splits, criterion=None):
    """{split: Embedded} of `splits`, and of the training split if it is in the gallery or --pca is fitted on it."""
    wanted = {*splits}
    if opt.eval_reference != 'self' or opt.pca:
        wanted.add('train')
    needed = [split for split in data.evaluation if split in wanted]
    embedded = {split: embed(opt, model, data.evaluation[split], split, opt.eval_features, opt.eval_autocast)
                for split in needed}
    return as_evaluated(opt, embedded, criterion)


def as_evaluated(opt, embedded, criterion=None):
    """
    The network's {split: Embedded} -> {split: Embedded} after --pca (fitted on the training split) and
    --eval_normalize, with the ranking of the criterion if it has one.
    """
    parts = {split: replace(part) for split, part in embedded.items()}
    if opt.pca:
        reduce = geometry.principal_components(parts['train'].embeddings.cpu().numpy(), opt.pca)
        for part in parts.values():
            part.embeddings = torch.from_numpy(reduce(part.embeddings.cpu().numpy())).to(part.embeddings.device)
    for part in parts.values():
        part.embeddings = compared(part.embeddings, opt.eval_normalize)
        # the criterion ranks the network's own embeddings only
        if hasattr(criterion, 'ranking_embeddings') and not (opt.eval_features or opt.pca):
            part.ranking = functools.partial(ranking, criterion, opt.device)
    return parts


@torch.no_grad()
@full_float32()
def ranking(criterion, device, embeddings):
    """A criterion's ranking_embeddings, computed on its device; the result is on that of the embeddings."""
    return [points.to(embeddings.device) for points in criterion.ranking_embeddings(embeddings.to(device))]


def splits_to_evaluate(opt, data):
    """The --splits_to_eval, by default all splits of the data. Raises UserError for a split the data do not have."""
    wanted = opt.splits_to_eval or [split for split in data.evaluation if split != 'train' or not opt.no_train_metrics]
    for split in wanted:
        if split not in data.evaluation:
            raise UserError(f'--splits_to_eval {split}: there is no such split (--use_tv_split or --split_scheme '
                            'class_folds make a validation split)')
    if not wanted:
        raise UserError('--no_train_metrics leaves nothing to evaluate where the training split is the only one')
    return [split for split in data.evaluation if split in wanted]


def split_of_pictures(opt, data):
    """The split whose pictures are drawn: the first evaluated one of test, validation and training."""
    evaluated = splits_to_evaluate(opt, data)
    return next(split for split in ('test', 'val', 'train') if split in evaluated)


def level_names(images, level, labels=None):
    """[N] the names of the classes `labels` [N], by default of all images; at the level `parent` of super-classes."""
    names = images.superclasses if level == 'parent' else images.class_names
    return np.array(names, dtype=str)[images.labels if labels is None else labels]


def build_pool(opt, embedded, split, level):
    """The Pool of a split: its queries, and the gallery that --eval_reference and --eval_level give them."""
    own = embedded[split]
    parts = [own]
    is_query = own.images.is_query
    in_gallery = own.images.in_gallery
    if opt.eval_reference != 'self' and split != 'train':
        train = embedded['train']
        parts = [own, train]
        is_query = np.concatenate([is_query, np.zeros(len(train.images), bool)])
        in_gallery = np.concatenate([in_gallery & (opt.eval_reference == 'all'), np.ones(len(train.images), bool)])
    embeddings = torch.cat([part.embeddings for part in parts]) if len(parts) > 1 else own.embeddings
    # classes of two splits are the same if they have the same name
    names = np.concatenate([level_names(part.images, level) for part in parts])
    groups = np.concatenate([level_names(part.images, 'parent') for part in parts]) if level == 'within' else None
    cameras = np.concatenate([part.images.groups for part in parts]) if level == 'across' else None
    norms = None if own.norms is None else np.concatenate([part.norms for part in parts])
    labels = np.unique(names, return_inverse=True)[1]
    levels = stack_superclasses([part.images for part in parts])
    distractors = np.flatnonzero(own.images.is_distractor)                # they are of no class, at any level
    labels[distractors] = labels.max() + 1
    if levels is not None:
        levels[distractors] = levels.max() + 1
    return Pool(embeddings, labels, is_query=is_query, in_gallery=in_gallery, groups=groups, cameras=cameras,
                levels=levels, norms=norms)


def stack_superclasses(parts):
    """[N, K] int64: the super-classes at K levels of the images of several ImageSets; None where there are none."""
    levels = []
    for several in zip(*(images.levels for images in parts), strict=True):
        if any(None in names for names in several):
            return None
        named = [np.array(names, dtype=str)[images.labels] for names, images in zip(several, parts, strict=True)]
        levels.append(np.unique(np.concatenate(named), return_inverse=True)[1])
    return np.stack(levels, axis=1)


def metric_and_level(name):
    """A name of --storage_metrics -> (metric, level): within_map_at_r -> (map_at_r, within)."""
    _, metric, level = columns.parse(f'test_{name}') or Column('test', name)          # None: an empty name
    return metric, level


def storage_metrics(opt):
    """The --storage_metrics; without the level class, metrics that name no level get the first --eval_level."""
    if 'class' in opt.eval_level:
        return opt.storage_metrics
    names = []
    for name in opt.storage_metrics:
        if metric_and_level(name)[1] == 'class':
            name = Column('', name, opt.eval_level[0]).at_split
        names.append(name)
    return names


def check_metrics(opt):
    """Raises UserError for metrics that do not exist or cannot select a network, and for flags that conflict."""
    if 'train' in (opt.splits_to_eval or ()) and opt.no_train_metrics and 'no_train_metrics' in opt.given:
        raise UserError('--splits_to_eval train and --no_train_metrics exclude each other')
    for name in opt.evaluation_metrics:
        parse(name)
    spectra = [name for name in opt.evaluation_metrics if parse(name)[1].needs == 'spectrum' and parse(name)[2] == (0,)]
    if len(spectra) > 1:
        raise UserError(f'--evaluation_metrics {" ".join(spectra)}: spectrum.csv holds one spectrum of each split; '
                        'keep one of them')
    if opt.evaluate:
        return
    for name in opt.storage_metrics:
        metric, level = metric_and_level(name)
        if metric not in opt.evaluation_metrics:
            raise UserError(f'--storage_metrics {name}: not among the --evaluation_metrics'
                            f'{nearest(name, opt.evaluation_metrics)}')
        if not parse(metric)[1].selects:
            raise UserError(f'--storage_metrics {name}: its value does not say which network is better; choose a '
                            'retrieval or clustering metric')
        if level not in levels(opt):
            add = '; give --eval_draws' if level == 'draws' else '; add it to --eval_level'
            raise UserError(f'--storage_metrics {name}: the level {level} is not evaluated{add}')
        if not is_computed(metric, level):
            raise UserError(f'--storage_metrics {name}: {metric} is not computed at the level {level}; choose another '
                            'metric, or add class to --eval_level')


def check_data(opt, data):
    """Raises UserError if --eval_level or --eval_reference need something that the data set does not have."""
    several = data.evaluation.values()
    if {'parent', 'within'} & {*opt.eval_level} and any(None in images.superclasses for images in several):
        raise UserError(f'--eval_level {" ".join(opt.eval_level)}: --dataset {opt.dataset} has no super-classes')
    if 'across' in opt.eval_level and any(images.groups is None for images in several):
        raise UserError(f'--eval_level across: --dataset {opt.dataset} has no groups (cameras, places, days) here; '
                        'give --dataset folder and a --csv with a column group')
    if (opt.eval_reference != 'self' or opt.pca) and 'train' not in data.evaluation:
        flag = f'--pca {opt.pca}' if opt.eval_reference == 'self' else f'--eval_reference {opt.eval_reference}'
        raise UserError(f'{flag} needs the training split, and --dataset {opt.dataset} has none here: leave it out')
    if opt.eval_draws:
        check_draws(opt, data)
    if opt.eval_reference == 'self':
        return
    evaluated = [data.evaluation[split] for split in splits_to_evaluate(opt, data) if split != 'train']
    if not evaluated:
        raise UserError(f'--eval_reference {opt.eval_reference} sets the gallery of test and validation queries, '
                        'and neither split is evaluated (--splits_to_eval): leave it out')
    if opt.eval_reference != 'train':
        return
    for level in opt.eval_level:
        kind, names = ('super-class', 'superclasses') if level == 'parent' else ('class', 'class_names')
        of_training = {*getattr(data.evaluation['train'], names)}
        if not any(of_training & {*getattr(images, names)} for images in evaluated):
            raise UserError(f'--eval_reference train: no evaluated {kind} is a training {kind}, so that no query has a '
                            'positive; choose all, or make a validation split with --tv_split_by_samples')


def check_draws(opt, data):
    """Raises UserError where no image remains as a query beside the drawn galleries, or where distractors have none."""
    for split in splits_to_evaluate(opt, data):
        images = data.evaluation[split]
        if images.is_distractor.any():
            raise UserError('--eval_draws draws images of each class, and distractors have no class; leave it out')
        if opt.eval_reference != 'self' and split != 'train':      # the gallery has training images: queries remain
            continue
        sizes = np.bincount(images.labels[images.is_query & images.in_gallery], minlength=1)
        if sizes.max() <= opt.eval_draw_size and not (images.is_query & ~images.in_gallery).any():
            raise UserError(f'--eval_draw_size {opt.eval_draw_size}: no class of the {split} split has more images, so '
                            'that none remains as a query; give a smaller number')
