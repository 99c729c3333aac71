"""Which images train, validate and test: whole classes, except with --tv_split_by_samples."""
import hashlib

import numpy as np

from utilities.errors import UserError


def halves(table):
    """The first half of the sorted classes trains, the second half tests (rounded down, as Roth et al. do)."""
    names = sorted(set(table.classes))
    train = set(names[:len(names) // 2])
    splits = {'train': [], 'test': []}
    for i, name in enumerate(table.classes):
        splits['train' if name in train else 'test'].append(i)
    return splits


def official(table):
    """The data set's own parts; queries and gallery test together."""
    where = {'query': 'test', 'gallery': 'test'}
    splits = {}
    for i, part in enumerate(table.parts):
        splits.setdefault(where.get(part, part), []).append(i)
    return splits


def cut_validation(opt, table, train):
    """Cuts a validation split off the training images: its last classes, or evenly spaced samples of each class."""
    of_class = {}
    for i in train:
        of_class.setdefault(table.classes[i], []).append(i)
    kept = set()
    if opt.tv_split_by_samples:
        for images in of_class.values():
            n_kept = max(1, int(len(images) * opt.tv_split_perc))
            kept.update(images[j] for j in np.linspace(0, len(images) - 1, n_kept).round().astype(int))
    else:
        names = sorted(of_class)
        kept.update(i for name in names[:int(len(names) * opt.tv_split_perc)] for i in of_class[name])
    return [i for i in train if i in kept], [i for i in train if i not in kept]


def split(opt, table):
    """
    table -> {'train': [image index], 'val': [...] where there is one, 'test': [...]}.

    Raises UserError where a split would be empty.
    """
    splits = halves(table) if table.parts is None else official(table)
    if opt.use_tv_split:
        if 'val' in splits:
            raise UserError('--use_tv_split: this data set brings a validation split of its own; leave the flag out')
        splits['train'], splits['val'] = cut_validation(opt, table, splits.get('train', []))
    for name in {'train', 'test', *splits}:
        if not splits.get(name):
            raise UserError(f'--dataset {opt.dataset}: the {name} split is empty ({len(set(table.classes))} classes in '
                            'all' + (f', --tv_split_perc {opt.tv_split_perc})' if opt.use_tv_split else ')'))
    return {name: splits[name] for name in ('train', 'val', 'test') if name in splits}


def describe(sets):
    """
    {split: ImageSet} -> what goes into the run folder: for each split its numbers, its classes with their numbers of
    images and a hash of these, and one hash over all splits. Equal hashes: the same classes with as many images each.
    """
    splits = {}
    for name, images in sets.items():
        counts = np.bincount(images.labels).tolist()
        classes = dict(zip(images.class_names, counts, strict=True))
        splits[name] = {'hash': digest(repr(sorted(classes.items()))), 'n_images': len(images),
                        'n_classes': len(classes), 'n_lone_queries': lone_queries(images), 'classes': classes}
    return {'hash': digest(repr([(name, part['hash']) for name, part in splits.items()])), 'splits': splits}


def lone_queries(images):
    """Queries without another image of their class to find; retrieval metrics leave them out."""
    is_query = np.ones(len(images), bool) if images.is_query is None else images.is_query
    gallery = images.labels if images.is_query is None else images.labels[~is_query]
    n_found = np.bincount(gallery, minlength=images.n_classes)[images.labels[is_query]] - (images.is_query is None)
    return int((n_found == 0).sum())


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
