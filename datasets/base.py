"""The table of a data set's images on disk, and the image set of one split, which reads them."""
import contextlib
import decimal
import os
import random
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from datasets import decoding
from datasets.loading import Loader, workers
from flags.command_line import is_text
from utilities.device import is_gpu
from utilities.errors import UserError


@dataclass
class ImageTable:
    """
    One entry per image, in the order in which the data set lists them.

    paths:   the image files.
    classes: the class name of each image.
    parts:   None, or the official part that each image belongs to: train, val, test, query, gallery or distractor.
    levels:  mappings {class name: name of its super-class}, from the nearest level up; [{}] without super-classes.
    ignored: files and folders among the images that are not images.
    groups:  None, or the group (camera, place, day) of each image.
    roles:   None, or whether each image is a query and whether it is in the gallery, in the split of its part.
    boxes:   None, or the decoding.Box of each image, the part of its file that is read.
    """
    paths: list
    classes: list
    parts: list | None = None
    levels: list = field(default_factory=lambda: [{}])
    ignored: list = field(default_factory=list)
    groups: list | None = None
    roles: list | None = None
    boxes: list | None = None

    @classmethod
    def from_folders(cls, folders):
        """The table of the images directly in `folders`, {folder: its class}."""
        table = cls([], [])
        for folder, name in folders.items():
            files = image_files(folder, table.ignored)
            table.paths += files
            table.classes += [name] * len(files)
        return table

    @property
    def sources(self):
        """What is read of each image: its path, or its Box."""
        return self.paths if self.boxes is None else self.boxes

    def keep(self, chosen):
        """The table of the images `chosen` (a list of indices) only."""
        columns = {name: getattr(self, name) for name in ('paths', 'classes', 'parts', 'groups', 'roles', 'boxes')}
        return replace(self, **{name: [column[i] for i in chosen] for name, column in columns.items() if column})


class ImageSet(torch.utils.data.Dataset):
    """
    The images of one split. The item at `index`, or at `(index, seed)`, is (image [3, H, W] float32 RGB in [0, 1],
    label int, index int). With a seed, the augmentation is a function of the seed, and the global generators do not
    change. Without a seed, the augmentation samples from these generators, as torchvision's data sets do: it differs
    from item to item and from epoch to epoch, and a DataLoader seeds the generators in each of its workers.

    paths:       list of N paths.
    sources:     the same list, or a list of Boxes: what is read. Its texts are the names of the images in records.
    labels:      int64 array [N], numbered from 0 in the order of class_names.
    class_names: the classes, sorted.
    superclasses: the super-class of each class, or None; levels: this list, then such lists of coarser super-classes.
    transform:   a pipeline.Pipeline.
    is_query, in_gallery: bool [N]: the queries and their gallery; an image may be in both.
    is_distractor: bool [N]: gallery images that are never queries or positives.
    groups:      None, or an array [N] of strings: the group (camera, place, day) of each image.
    features:    None, or the features.FixedFeatures with the features that take the images' place.
    """

    def __init__(self, table, chosen, transform):
        table = table.keep(chosen)
        self.paths = table.paths
        self.sources = table.sources
        self.transform = transform
        self.features = None
        names, labels = np.unique(np.array(table.classes, dtype=str), return_inverse=True)
        self.class_names = names.tolist()
        self.labels = labels.astype(np.int64)
        self.levels = [[level.get(name) for name in self.class_names] for level in table.levels]
        self.superclasses = self.levels[0]
        self.groups = None if table.groups is None else np.array(table.groups, dtype=str)
        parts = np.array(table.parts or [''] * len(self), dtype=str)
        self.is_distractor = parts == 'distractor'
        self.is_query = ~np.isin(parts, ['gallery', 'distractor'])
        self.in_gallery = parts != 'query'
        if table.roles:
            self.is_query, self.in_gallery = np.array(table.roles).T

    def __getstate__(self):
        return vars(self) | {'features': None}                 # data workers do not need it, and it holds networks

    @property
    def n_classes(self):
        return len(self.class_names)

    @property
    def superclass_labels(self):
        """
        [C, number of levels] int64: the super-class of each class at each level, numbered from 0 in sorted order; None
        where a class has none.
        """
        if not self.class_names or any(None in level for level in self.levels):
            return None
        numbers = [np.unique(np.array(level, dtype=str), return_inverse=True)[1] for level in self.levels]
        return np.stack(numbers, axis=1)

    @property
    def image_list(self):
        """[(path, label)], the format that samplers take."""
        return list(zip(self.paths, self.labels.tolist(), strict=True))

    @property
    def image_dict(self):
        """label -> [(path, index)], the format that samplers take."""
        images = {label: [] for label in range(self.n_classes)}
        for index, (path, label) in enumerate(self.image_list):
            images[label].append((path, index))
        return images

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        index, seed = as_pair(item)
        with restored_generators(seed is not None):
            seed_generators(seed)
            image = self.transform(decoding.read_upright(self.sources[index]))
        return image, int(self.labels[index]), int(index)

    def batch(self, items):
        """
        The batch of these items as a data worker sends it: images as the transform's `collate` gives them, labels [B]
        and indices [B]. Either all items have a seed, or none has one.
        """
        pairs = [as_pair(item) for item in items]
        loaded = []
        with restored_generators(any(seed is not None for _, seed in pairs)):
            for index, seed in pairs:
                seed_generators(seed)
                loaded.append(self.transform.load(decoding.read_upright(self.sources[index])))
        indices = torch.tensor([int(index) for index, _ in pairs])
        return self.transform.collate(loaded), torch.from_numpy(self.labels)[indices], indices

    def loader(self, opt, batches, network=None):
        """
        Yields (images [B, 3, H, W], labels [B], indices [B]) for each list of indices in `batches`. If there are
        features of `network`, they take the images' place.
        """
        found = None if self.features is None else self.features.of(self, network)
        if found is not None:
            return found.loader(batches)
        return Loader(self, batch_sampler=batches, num_workers=workers(opt), pin_memory=is_gpu(opt.device),
                      generator=torch.Generator())


def as_pair(item):
    """An item of an ImageSet, index or (index, seed) -> (index, seed or None)."""
    return item if isinstance(item, tuple) else (item, None)


@contextlib.contextmanager
def restored_generators(are_seeded):
    """
    Restores the states of torch's generator on the CPU, of Python's and of NumPy's after the block, if `are_seeded`: if
    the block seeds them. Around a batch, since to copy NumPy's state takes as long as to load a small image.
    """
    if not are_seeded:
        yield
        return
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def seed_generators(seed):
    """Seeds torch's generator on the CPU, Python's and NumPy's; without a seed, leaves them as they are."""
    if seed is not None:
        torch.default_generator.manual_seed(seed)               # torch.manual_seed would also seed GPUs, which is slow
        random.seed(seed)
        np.random.seed(seed % 2 ** 32)


def image_files(folder, others=None):
    """
    The image files directly in `folder`, sorted, without hidden files such as macOS's ._ files. Other files and folders
    are added to the list `others`.
    """
    shown = sorted(path for path in Path(folder).iterdir() if not path.name.startswith('.'))
    images = [path for path in shown if path.suffix.lower() in decoding.suffixes()]
    if others is not None and len(images) < len(shown):
        others += sorted({*shown} - {*images})
    return images


def subfolders(folder):
    """The folders directly in `folder`, sorted, without hidden ones (.ipynb_checkpoints) and lost+found of a disk."""
    return sorted(path for path in Path(folder).iterdir()
                  if path.is_dir() and not path.name.startswith('.') and path.name != 'lost+found')


def class_folders(folder):
    """The table of a folder that contains one folder of images per class."""
    table = ImageTable.from_folders({path: path.name for path in subfolders(folder)})
    table.ignored = files_in(folder) + table.ignored
    return table


def files_in(folder):
    """The files directly in `folder`, sorted, without hidden ones."""
    return sorted(path for path in Path(folder).iterdir() if not path.name.startswith('.') and not path.is_dir())


def note_ignored(ignored, file=None):
    """Prints which files are no images, and which images and folders are in no class folder. file: None: sys.stdout."""
    misplaced = {path for path in ignored if Path(path).suffix.lower() in decoding.suffixes() or os.path.isdir(path)}
    others = [path for path in ignored if path not in misplaced]
    counts = Counter(Path(path).suffix.lower() or 'no extension' for path in others)
    kinds = ', '.join(f'{kind} {number:,}' for kind, number in counts.most_common(5)) + ' ...' * (len(counts) > 5)
    extensions = ' '.join(sorted(decoding.suffixes()))
    for paths, reason in (
            (others, f'their names have none of the extensions {extensions}: {len(others):,} ({kinds})'),
            (sorted(misplaced), f'they are not directly in a class folder: {len(misplaced):,}')):
        if paths:
            names = ', '.join(map(decoding.printable_path, paths[:3])) + ' ...' * (len(paths) > 3)
            print(f'Note: not among the images, since {reason}: {names}', file=file)
    missing = [kind for kind in decoding.FORMATS['HEIF'] if kind in counts and kind not in decoding.suffixes()]
    if missing:
        print(f'Note: {" and ".join(missing)} can be read after: pip install pillow-heif', file=file)


def note_similar_labels(where, labels):
    """
    Prints labels that are the same number, such as 1 and 1.0, or differ only in capitals, in blanks at their ends or in
    Unicode's form. where: for the note.
    """
    alike = {}
    for label in sorted(labels):
        text = unicodedata.normalize('NFC', label.strip())
        is_number = re.fullmatch(r'[+-]?\d+(\.\d*)?', text)
        key = decimal.Decimal(text) if is_number else text.casefold()
        alike.setdefault(key, []).append(label if label == text else ascii(label))
    pairs = [' and '.join(found) for found in alike.values() if len(found) > 1]
    if pairs:
        more = f', and {len(pairs) - 3:,} more' if len(pairs) > 3 else ''
        print(f'Note: {where}: these labels are different classes, although they are one number, or differ in capitals '
              f'or blanks only: {", ".join(pairs[:3])}{more}')


def listed_rows(file, columns, begins_with_count=False):
    """
    The rows of a data set's list file, split at white space. Blank lines at its end are left out.

    columns:           the names in its header, separated by blanks.
    begins_with_count: whether the line before the header is the number of rows.
    Raises UserError if the header is missing, a row lacks columns, or the count is not that of the rows.
    """
    try:
        lines = [line.split() for line in file.read_text(encoding='utf-8-sig').rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f'{file}: not a text in UTF-8 ({error}); download it again') from None
    except OSError as error:
        raise UserError(f'{file}: {error.strerror}; download it again') from None
    n_header = 2 if begins_with_count else 1
    header = ' '.join(lines[n_header - 1]) if len(lines) >= n_header else ''
    if header.lower() != columns:
        raise UserError(f'{file}, line {n_header}: expected the header "{columns}", found "{header}"; download it '
                        'again')
    rows = lines[n_header:]
    n_columns = len(columns.split())
    for number, row in enumerate(rows, start=n_header + 1):
        if len(row) != n_columns:
            raise UserError(f'{file}, line {number}: expected {n_columns} columns, found {len(row)}; download it again')
    if begins_with_count and lines[0] != [str(len(rows))]:
        raise UserError(f'{file}, line 1: expected {len(rows)}, the number of its rows, found "{" ".join(lines[0])}"; '
                        'download it again')
    return rows


def check_names(table):
    """Raises UserError if a path or class cannot be written to the records of a run."""
    for text in (*map(str, table.paths), *table.classes):
        if not is_text(text):
            raise UserError(f'{ascii(text)}: names of images and classes cannot hold NUL bytes, or bytes that are not '
                            'UTF-8; rename it')


def find(opt, name, layouts, where):
    """
    The first of `layouts`, paths below --source_path, that exists.

    If there is none, raises UserError with `where`: the expected folders as trees, and where to get the data.
    """
    for layout in layouts:
        if os.path.exists(Path(opt.source_path) / layout):           # False for a name that is too long; a Path raises
            return Path(opt.source_path) / layout
    others = ', or another of these layouts there' if len(layouts) > 1 else ''
    raise UserError(f'--dataset {name}: expected {Path(opt.source_path) / layouts[0]} (--source_path '
                    f'{opt.source_path}){others}:\n{where}')
