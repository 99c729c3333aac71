"""Data sets: images of classes, split into classes to train on and classes to be judged on."""
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tqdm import tqdm

from datasets import cars196, cub200, folder, glyphs, inshop, omniglot, online_products, splits, transforms
from datasets.base import ImageSet, read_image
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
    train:       the training images, augmented.
    evaluation:  {'train', 'val' where there is one, 'test': ImageSet}, not augmented.
    description: what splits.describe says of them.
    """
    train: ImageSet
    evaluation: dict
    description: dict


def select(opt, input_size):
    """The data set --dataset, split, in images of `input_size` pixels. Raises UserError where data are missing."""
    table = choose(DATASETS, opt.dataset, '--dataset').load(opt)
    table = without_bad_images(table) if opt.skip_bad_images else table
    missing = [path for path in table.paths if not path.is_file()]
    if missing:
        raise UserError(f'{opt.dataset}: {len(missing)} of {len(table.paths)} listed images are missing, the first: '
                        f'{missing[0]}')
    if splits.scheme(opt, table) != 'predefined':
        table = replace(table, parts=None)                   # else queries would be searched for in a gallery only
    split = splits.split(opt, table)
    training, evaluation = transforms.select(opt, input_size, table.characters)
    sets = {name: ImageSet(table, chosen, evaluation) for name, chosen in split.items()}
    return Data(ImageSet(table, split['train'], training), sets, splits.describe(sets))


def without_bad_images(table):
    """Reads every image once and leaves out those that cannot be read, saying how many and which come first."""
    with ThreadPoolExecutor() as pool:
        readable = list(tqdm(pool.map(is_readable, table.paths), total=len(table.paths), desc='checking images',
                             disable=None))
    bad = [str(path) for path, good in zip(table.paths, readable, strict=True) if not good]
    if bad:
        print(f'--skip_bad_images: {len(bad)} of {len(readable)} images cannot be read and are left out: '
              f'{", ".join(bad[:3])}{" ..." if len(bad) > 3 else ""}')
    return table.keep([i for i, good in enumerate(readable) if good])


def is_readable(path):
    try:
        read_image(path)
    except UserError:
        return False
    return True
