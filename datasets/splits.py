"""Training, validation and test splits: whole classes, except with --tv_split_by_samples and closed_set."""
import hashlib
import math
import os

import numpy as np

from datasets import split_file
from utilities.errors import UserError


def half(opt, table):
    """The classes in the test range are test classes, the others (by default half, rounded down) training classes."""
    train, test = cut_test(opt, sorted(set(table.classes)))
    return indices_by_split(table, train=train, test=test)


def class_folds(opt, table):
    """
    The classes outside the test range form --n_folds contiguous folds. Fold --fold has the validation classes, the
    other folds have the training classes.
    """
    development, test = cut_test(opt, sorted(set(table.classes)))
    if opt.n_folds > len(development):
        raise UserError(f'--n_folds {opt.n_folds}: only {len(development)} of the {len(set(table.classes))} classes '
                        'are not test classes; give fewer folds')
    folds = [fold.tolist() for fold in np.array_split(np.array(development, dtype=str), opt.n_folds)]
    validation = folds.pop(opt.fold)
    return indices_by_split(table, train=sum(folds, []), val=validation, test=test)


def mlrc(opt, table):
    """
    The class lists of Musgrave et al., A Metric Learning Reality Check, ECCV 2020: the second half of the n classes are
    test classes, and n / (2 --n_folds) classes of the first half are validation classes; fold 0 has the last ones.
    Since the starts of the folds are rounded down, a class or two may be in no fold's validation split. With an odd
    number of classes, the middle one is a test class.
    """
    names = sorted(set(table.classes))
    development, test = names[:len(names) // 2], names[len(names) // 2:]
    n_validation = len(names) // (2 * opt.n_folds)
    start = opt.fold * len(development) // opt.n_folds
    rotated = development[start:] + development[:start]
    n_train = len(development) - n_validation
    return indices_by_split(table, train=rotated[:n_train], val=rotated[n_train:], test=test)


def closed_set(opt, table):
    """
    Every class is in all three splits, as far as it has images. A class's images in the test range are test images; the
    others go to the folds in turn. The turn continues from class to class, so that small classes are not all validated
    in the same fold.
    """
    of_class = images_of_classes(table, range(len(table.classes)))
    splits = {'train': [], 'val': [], 'test': []}
    n_assigned = 0
    for name in sorted(of_class):
        development, test = cut_test(opt, of_class[name])
        splits['test'] += test
        for i in development:
            part = 'val' if n_assigned % opt.n_folds == opt.fold else 'train'
            splits[part].append(i)
            n_assigned += 1
    return splits


def predefined(opt, table):
    """
    The data set's official parts; queries, gallery and distractors together are the test split. Raises UserError where
    there are queries or a gallery without the other, or test images besides them, or distractors alone.
    """
    if table.parts is None:
        raise UserError(f'--split_scheme predefined: {opt.dataset} has no official split; choose another scheme')
    tested = {'test', 'query', 'gallery'} & set(table.parts)
    if tested not in (set(), {'test'}, {'query', 'gallery'}):
        raise UserError(f'--split_scheme predefined: the test images are marked {" and ".join(sorted(tested))}; mark '
                        'all of them test, or some of them query and the others gallery')
    if 'distractor' in table.parts and not tested:
        raise UserError('--split_scheme predefined: there are distractors, but no test images that they could be '
                        'confused with; mark images test, or query and gallery')
    split_of = dict.fromkeys(('query', 'gallery', 'distractor'), 'test')
    splits = {}
    for i, part in enumerate(table.parts):
        splits.setdefault(split_of.get(part, part), []).append(i)
    return splits


SCHEMES = {'half': half, 'class_folds': class_folds, 'mlrc': mlrc, 'closed_set': closed_set, 'predefined': predefined}
FILE = 'splits'                                                     # no scheme, but the file of --splits
FOLDED = ('class_folds', 'mlrc', 'closed_set')                     # with a validation split that --fold selects
RANGED = ('half', 'class_folds', 'closed_set')                     # with a test range: --test_start and --test_size


def scheme(opt, table):
    """--splits, or --split_scheme, or its default: predefined if the data set has official parts, else half."""
    if opt.splits:
        return FILE
    return opt.split_scheme or ('half' if table.parts is None else 'predefined')


def check(opt):
    """Raises UserError for a fold that the split scheme does not have, and for splits that would be empty."""
    if opt.fold and 'fold' in opt.given and opt.split_scheme not in FOLDED:
        raise UserError(f'--fold {opt.fold} goes with --split_scheme {", ".join(FOLDED)}')
    if opt.splits_step and not opt.splits:
        raise UserError(f'--splits_step {opt.splits_step} goes with --splits FILE, which has this step')
    if opt.test_size == 1 and not opt.evaluate:
        raise UserError('--test_size 1 leaves nothing to train on; use a smaller fraction, such as 0.5')
    if opt.tv_split_perc == 1 and opt.use_tv_split:
        raise UserError('--tv_split_perc 1 leaves nothing to validate on; use a smaller fraction, such as 0.8')
    if opt.split_scheme in FOLDED:
        if opt.use_tv_split:
            raise UserError(f'--use_tv_split: --split_scheme {opt.split_scheme} validates on --fold {opt.fold}; leave '
                            'one of them out')
        check_fold(opt)


def check_fold(opt):
    """Raises UserError for a --fold beyond --n_training_folds or --n_folds."""
    if (opt.n_training_folds or 0) > opt.n_folds:
        raise UserError(f'--n_training_folds {opt.n_training_folds}: there are only --n_folds {opt.n_folds}')
    n_folds = opt.n_training_folds or opt.n_folds
    if opt.fold >= n_folds:
        flag = 'n_training_folds' if opt.n_training_folds else 'n_folds'
        raise UserError(f'--fold {opt.fold}: with --{flag} {n_folds}, folds are numbered from 0 to {n_folds - 1}')


def cut_test(opt, items):
    """
    -> (others, test). The test range is the fraction --test_size of `items`, starting at the fraction --test_start; it
    wraps around at the end of the list.
    """
    start, end = (math.floor(len(items) * fraction + 1e-9)        # 10 * (0.7 + 0.1) is rounded below 8
                  for fraction in (opt.test_start, opt.test_start + opt.test_size))
    test = {i % len(items) for i in range(start, end)}
    others = [item for i, item in enumerate(items) if i not in test]
    return others, [item for i, item in enumerate(items) if i in test]


def images_of_classes(table, chosen):
    """{class: [image index]} of the images with the indices `chosen`."""
    of_class = {}
    for i in chosen:
        of_class.setdefault(table.classes[i], []).append(i)
    return of_class


def indices_by_split(table, **splits):
    """Keyword arguments split=[class] -> {split: [image index]}."""
    split_of = {name: split for split, names in splits.items() for name in names}
    images = {split: [] for split in splits}
    for i, name in enumerate(table.classes):
        images[split_of[name]].append(i)
    return images


def cut_validation(opt, table, train):
    """-> (training, validation) images; the last classes are for validation, or evenly spaced images of each class."""
    of_class = images_of_classes(table, train)
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
    table -> {'train': [image index], 'val': [...] if there is a validation split, 'test': [...]}.

    Raises UserError if a split would be empty. With --test_size 0 there is no test split; where nothing is trained
    (--evaluate), there are only the splits that have images.
    """
    chosen = scheme(opt, table)
    flags = vars(opt)                                    # vars() does not note them as read: here they are only checked
    moved = [f'--{flag} {flags[flag]}' for flag in ('test_size', 'test_start')            # files of all flags have 0.5
             if flag in flags.get('given', ()) and flags[flag] != 0.5]
    if chosen not in RANGED and moved:
        used = f'--splits {opt.splits}' if chosen == FILE else f'--split_scheme {chosen}'
        raise UserError(f'{" ".join(moved)}: it has no effect on {used}; leave it out, or choose --split_scheme '
                        f'{", ".join(RANGED)}')
    if chosen in FOLDED:
        check_fold(opt)
    split = split_file.apply if chosen == FILE else SCHEMES[chosen]
    splits = split(opt, table)
    if opt.use_tv_split:
        if 'val' in splits:
            has = f'--splits {opt.splits} has a' if chosen == FILE else 'this data set has an official'
            raise UserError(f'--use_tv_split: {has} validation split; give --use_tv_split false')
        splits['train'], splits['val'] = cut_validation(opt, table, splits.get('train', []))
    needed = {'train', 'test', *splits}
    if chosen in RANGED and opt.test_size == 0:
        needed.remove('test')
    if opt.evaluate and any(splits.values()):
        needed.clear()
    for name in needed:
        if not splits.get(name):
            used = [flag for flag, is_used in (('split_scheme', opt.split_scheme), ('tv_split_perc', opt.use_tv_split),
                                               ('fold', chosen in FOLDED), ('n_folds', chosen in FOLDED),
                                               ('test_size', opt.split_scheme in RANGED or opt.test_size != 0.5))
                    if is_used]
            is_val_only = name == 'test' and table.parts and 'val' in splits
            marked = '; mark images as test, not only as val' if is_val_only else ''
            raise UserError(f'--dataset {opt.dataset}: the {name} split is empty ({len(set(table.classes))} classes in '
                            'all' + ''.join(f', --{flag} {getattr(opt, flag)}' for flag in used) + f'){marked}')
    return {name: splits[name] for name in ('train', 'val', 'test') if splits.get(name)}


def describe(sets):
    """
    {split: ImageSet} -> the content of splits.yaml in the run folder: for each split the number of images of each
    class, their totals and a hash; and one hash of all splits. Two splits have the same hash if they have the same
    classes with the same numbers of images, and the same images_hash if they also have the same images.
    """
    splits = {}
    for name, images in sets.items():
        counts = np.bincount(images.labels).tolist()
        classes = dict(zip(images.class_names, counts, strict=True))
        lone = {'n_lone_queries': lone_queries(images)}
        if images.groups is not None:
            lone['n_lone_queries_across'] = lone_queries(images, images.groups)
        splits[name] = {'hash': digest(repr(sorted(classes.items()))), 'n_images': len(images),
                        'n_classes': len(classes), 'images_hash': hash_of_images(images)} | lone | {'classes': classes}
    return {'hash': digest(repr([(name, part['hash']) for name, part in splits.items()])), 'splits': splits}


def image_hashes(table, splits):
    """
    What distinguishes data of equal class names and numbers of images: {what: hash} of the files, labels and, where
    the table has them, super-classes, groups and boxes of the images, in the order of the splits, as split()
    gives them. Files are named below the folder that they have in common, so that data may move.
    """
    superclasses = [[level.get(name) for level in table.levels] for name in table.classes]
    columns = {'files': table.paths, 'labels': table.classes, 'groups': table.groups, 'roles': table.roles,
               'boxes': table.boxes and [box[1:5] for box in table.boxes],
               'super-classes': any(table.levels) and superclasses}
    found = {}
    for name, column in columns.items():
        if column:
            values = [column[i] for chosen in splits.values() for i in chosen]
            values = below_common_folder(values) if name == 'files' else values
            sizes = {split: len(chosen) for split, chosen in splits.items()}
            found[name] = digest(f'{sizes}\n' + '\n'.join(map(str, values)))
    return found


def hash_of_images(images):
    """A hash of the files, boxes, labels and roles of an ImageSet, whatever their order."""
    boxes = [source[1:5] if isinstance(source, tuple) else () for source in images.sources]
    names = [images.class_names[label] for label in images.labels]
    rows = zip(below_common_folder(images.paths), boxes, names, images.is_query.tolist(), images.in_gallery.tolist(),
               strict=True)
    return digest('\n'.join(sorted(map(repr, rows))))


def below_common_folder(paths):
    """Paths -> their names below the folder that all of them are in."""
    names = [str(path).replace(os.sep, '/') for path in paths]
    shared = os.path.commonprefix([min(names), max(names)]).rpartition('/')[0] if names else ''
    return [name[len(shared):] for name in names]


def lone_queries(images, groups=None):
    """
    The number of queries without a positive in the gallery, or, with their groups [N], without one of another group;
    retrieval metrics leave them out.
    """
    def n_alike(labels):
        """[number of queries] the number of gallery images with the query's label."""
        return np.bincount(labels[images.in_gallery], minlength=labels.max() + 1)[labels[images.is_query]]

    # each image is a group of its own by default: only the query itself is left out
    groups = np.arange(len(images)) if groups is None else np.unique(groups, return_inverse=True)[1]
    pairs = np.unique(images.labels * (groups.max() + 1) + groups, return_inverse=True)[1]
    return int((n_alike(images.labels) == n_alike(pairs)).sum())


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
