"""Which images train, validate and test: whole classes, except with --tv_split_by_samples and closed_set."""
import hashlib
import math

import numpy as np

from utilities.errors import UserError


def half(opt, table):
    """The classes of the test range test, all others train: by default the first half, rounded down."""
    train, test = cut_test(opt, sorted(set(table.classes)))
    return of_classes(table, train=train, test=test)


def class_folds(opt, table):
    """The classes that do not test are cut into --n_folds contiguous parts: part --fold validates, the others train."""
    development, test = cut_test(opt, sorted(set(table.classes)))
    if opt.n_folds > len(development):
        raise UserError(f'--n_folds {opt.n_folds}: only {len(development)} of the {len(set(table.classes))} classes do '
                        'not test; give fewer folds')
    folds = [fold.tolist() for fold in np.array_split(np.array(development, dtype=str), opt.n_folds)]
    validation = folds.pop(opt.fold)
    return of_classes(table, train=sum(folds, []), val=validation, test=test)


def mlrc(opt, table):
    """
    The class lists of Musgrave et al., A Metric Learning Reality Check, ECCV 2020: the second half tests, n / (2 folds)
    classes of the first validate. Fold 0 validates on the last part, the starts are rounded down, and so a class or two
    may validate in no fold. With an odd number of classes, the one in the middle tests.
    """
    names = sorted(set(table.classes))
    development, test = names[:len(names) // 2], names[len(names) // 2:]
    n_validation = len(names) // (2 * opt.n_folds)
    start = opt.fold * len(development) // opt.n_folds
    turned = development[start:] + development[:start]
    n_train = len(development) - n_validation
    return of_classes(table, train=turned[:n_train], val=turned[n_train:], test=test)


def closed_set(opt, table):
    """
    Every class trains, validates and tests: of its images, those of the test range test, the others are dealt to the
    folds, on from class to class so that small classes do not all validate in the same one.
    """
    of_class = images_of_classes(table)
    splits, n_dealt = {'train': [], 'val': [], 'test': []}, 0
    for name in sorted(of_class):
        development, test = cut_test(opt, of_class[name])
        splits['test'] += test
        for i in development:
            splits['val' if n_dealt % opt.n_folds == opt.fold else 'train'].append(i)
            n_dealt += 1
    return splits


def predefined(opt, table):
    """The data set's own parts; queries and gallery test together."""
    if table.parts is None:
        raise UserError(f'--split_scheme predefined: {opt.dataset} has no parts of its own; choose another scheme')
    where = {'query': 'test', 'gallery': 'test'}
    splits = {}
    for i, part in enumerate(table.parts):
        splits.setdefault(where.get(part, part), []).append(i)
    return splits


SCHEMES = {'half': half, 'class_folds': class_folds, 'mlrc': mlrc, 'closed_set': closed_set, 'predefined': predefined}
FOLDED = ('class_folds', 'mlrc', 'closed_set')                     # have a validation split, fold by fold
RANGED = ('half', 'class_folds', 'closed_set')                     # test on the range of --test_start and --test_size


def scheme(opt, table):
    """--split_scheme; by default the data set's own parts where it has them."""
    return opt.split_scheme or ('half' if table.parts is None else 'predefined')


def cut_test(opt, items):
    """-> (others, test): the share --test_size from --test_start on tests, beginning anew at the end of the list."""
    def place(share):
        return math.floor(len(items) * share + 1e-9)              # 10 * (0.7 + 0.1) is less than 8

    test = {i % len(items) for i in range(place(opt.test_start), place(opt.test_start + opt.test_size))}
    return [item for i, item in enumerate(items) if i not in test], [item for i, item in enumerate(items) if i in test]


def images_of_classes(table):
    """class -> its images' indices."""
    of_class = {}
    for i, name in enumerate(table.classes):
        of_class.setdefault(name, []).append(i)
    return of_class


def of_classes(table, **splits):
    """split=[class] ... -> {split: [image index]}."""
    where = {name: split for split, names in splits.items() for name in names}
    images = {split: [] for split in splits}
    for i, name in enumerate(table.classes):
        images[where[name]].append(i)
    return images


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

    Raises UserError where a split would be empty. With --test_size 0 there is no test split; where nothing is trained
    (--evaluate, --embed, --draw), there are only the splits that have images.
    """
    chosen = scheme(opt, table)
    splits = SCHEMES[chosen](opt, table)
    if opt.use_tv_split:
        if 'val' in splits:
            raise UserError('--use_tv_split: this data set brings a validation split of its own; leave the flag out')
        splits['train'], splits['val'] = cut_validation(opt, table, splits.get('train', []))
    needed = {'train', 'test', *splits}
    if chosen in RANGED and opt.test_size == 0:
        needed.remove('test')
    if (opt.evaluate or opt.embed or opt.draw) and any(splits.values()):
        needed.clear()
    for name in needed:
        if not splits.get(name):
            used = [flag for flag, is_used in (('split_scheme', opt.split_scheme), ('tv_split_perc', opt.use_tv_split),
                                               ('fold', chosen in FOLDED), ('n_folds', chosen in FOLDED),
                                               ('test_size', opt.split_scheme in RANGED)) if is_used]
            raise UserError(f'--dataset {opt.dataset}: the {name} split is empty ({len(set(table.classes))} classes in '
                            'all' + ''.join(f', --{flag} {getattr(opt, flag)}' for flag in used) + ')')
    return {name: splits[name] for name in ('train', 'val', 'test') if splits.get(name)}


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
