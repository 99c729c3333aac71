"""Data sets: images of classes, split into training classes and classes for evaluation."""
import os
from dataclasses import dataclass, replace

from datasets import (
    cars196,
    cub200,
    decoding,
    folder,
    glyphs,
    inshop,
    omniglot,
    online_products,
    splits,
    transforms,
)
from datasets.base import ImageSet, check_names, note_ignored
from utilities.errors import UserError, choose

DATASETS = {
    'cub200': cub200,
    'cars196': cars196,
    'online_products': online_products,
    'inshop': inshop,
    'omniglot': omniglot,
    'glyphs': glyphs,
    'folder': folder,
}


@dataclass
class Data:
    """
    train:       the training images, with augmentation; empty where a data set without a training split is
                 evaluated. With --unsupervised, each image is a class of its own; with --train_level, the classes are
                 super-classes.
    evaluation:  {split: ImageSet} without augmentation, for each of 'train', 'val' and 'test' that exists.
    description: the classes and hashes of the splits, from splits.describe.
    """
    train: ImageSet
    evaluation: dict
    description: dict


def check(opt):
    """Raises UserError for flags of the data that do not go together."""
    if opt.csv and opt.dataset != 'folder':
        raise UserError(f'--csv goes with --dataset folder, not with {opt.dataset}')
    if opt.unsupervised and opt.train_level:
        raise UserError(f'--train_level {opt.train_level} and --unsupervised exclude each other: an image that is a '
                        'class of its own has no super-class')
    splits.check(opt)
    transforms.check(opt)


def select(opt, input_size):
    """The splits of --dataset, with images of the size `input_size`. Raises UserError if images are missing."""
    table = choose(DATASETS, opt.dataset, '--dataset').load(opt)
    check_names(table)
    note_ignored(table.ignored)
    # False for a name that is too long; a Path raises
    missing = [] if opt.skip_bad_images else [path for path in table.paths if not os.path.isfile(path)]
    if missing:
        raise UserError(f'{opt.dataset}: {len(missing)} of {len(table.paths)} listed images are missing, the first: '
                        f'{missing[0]}; --skip_bad_images leaves them out')
    training, evaluation = pipelines(opt, input_size)
    if opt.skip_bad_images:
        table = without_bad_images(table)
    other_data = unlike_published(opt.dataset, table)
    if other_data:
        print(f'Note: --dataset {opt.dataset}: {other_data}')
    if splits.scheme(opt, table) != 'predefined':
        table = without_parts(table)
    split = splits.split(opt, table)
    sets = {name: ImageSet(table, chosen, evaluation) for name, chosen in split.items()}
    labelled = table
    if opt.unsupervised:
        labelled = replace(table, classes=[f'{i:09}' for i in range(len(table.paths))], levels=[{}])
    elif opt.train_level:
        labelled = at_level(table, opt)
    train = ImageSet(labelled, split.get('train', []), training)
    description = splits.describe(sets) | {'image_hashes': splits.image_hashes(table, split)}
    if opt.splits:
        description['splits_file'] = splits.split_file.describe(opt)
    if other_data:
        description['other_data'] = other_data
    return Data(train, sets, description)


def without_parts(table):
    """The table without official parts and without distractors, which have no class; prints their number."""
    if 'distractor' in (table.parts or ()):
        chosen = [i for i, part in enumerate(table.parts) if part != 'distractor']
        print(f'Note: without --split_scheme predefined, {len(table.parts) - len(chosen):,} distractors are left out')
        table = table.keep(chosen)
    return replace(table, parts=None, roles=None)            # or else queries would be compared with the gallery only


def unlike_published(dataset, table):
    """How data under the name of a published set differ from it in numbers, as a sentence; '' where they do not."""
    differences = []
    for part, published in getattr(DATASETS[dataset], 'PUBLISHED', {}).items():
        classes = [name for i, name in enumerate(table.classes) if part in ('all', table.parts and table.parts[i])]
        if (len(classes), len({*classes})) != published:
            name = '' if part == 'all' else f'{part} '
            differences.append(f'{name}{len(classes):,} images of {len({*classes}):,} classes, not {published[0]:,} of '
                               f'{published[1]:,}')
    return f'{"; ".join(differences)}: results are not comparable with published ones' if differences else ''


def at_level(table, opt):
    """The table with the super-classes of --train_level as classes, and the levels above as their super-classes."""
    complete = [all(level.get(name) is not None for name in table.classes) for level in table.levels]
    if opt.train_level > len(complete) or not complete[opt.train_level - 1]:
        raise UserError(f'--train_level {opt.train_level}: --dataset {opt.dataset} has {sum(complete)} levels of '
                        'super-classes here; docs/data.md says which data sets have them')
    own, *above = table.levels[opt.train_level - 1:]
    for level in above:
        if len({(own[name], level[name]) for name in own}) > len({*own.values()}):
            raise UserError(f'--train_level {opt.train_level}: a super-class is in two super-classes of a level above')
    levels = [{own[name]: level[name] for name in own} for level in above] or [{}]
    return replace(table, classes=[own[name] for name in table.classes], levels=levels)


def pipelines(opt, input_size):
    """The (training, evaluation) pipelines of --dataset for images of the size `input_size`."""
    module = choose(DATASETS, opt.dataset, '--dataset')
    return transforms.select(opt, input_size, getattr(module, 'CHARACTERS', False))


def without_bad_images(table):
    """The table without images that cannot be read; prints their number and the first three."""
    readable = decoding.read_each(lambda source: bool(decoding.read_upright(source)), table.sources, 'checking images')
    names = [str(source) for source, good in zip(table.sources, readable, strict=True) if not good]
    if names:
        more = ' ...' if len(names) > 3 else ''
        print(f'--skip_bad_images: {len(names)} of {len(table.paths)} images cannot be read and are left out: '
              f'{", ".join(names[:3])}{more}')
    return table.keep([i for i, good in enumerate(readable) if good])
