"""CARS196: 16,185 photos of 196 car models. Krause et al., 3dRR workshop, ICCV 2013."""
from pathlib import Path

import numpy as np

from datasets.base import ImageTable, class_folders, find, subfolders
from utilities.errors import UserError

PUBLISHED = {'all': (16185, 196)}                    # images and classes, as in every published result
ROOTS = ('cars196', 'stanford_cars', 'cars196/stanford_cars', 'cars196/car_data', 'cars196/car_data/car_data')
LAYOUTS = [f'{root}/{layout}' for layout in ('images', 'car_ims', 'devkit/cars_train_annos.mat',
                                             'cars_train_annos.mat', 'train') for root in ROOTS]
WHERE = '''cars196/                      or stanford_cars/
    images/<class>/*.jpg
or  car_ims/*.jpg
    cars_annos.mat
or  cars_train/*.jpg
    cars_test/*.jpg
    devkit/                   or its files directly in cars196/
        cars_meta.mat
        cars_train_annos.mat
        cars_test_annos_withlabels.mat
or  train/<class>/*.jpg
    test/<class>/*.jpg
The page https://ai.stanford.edu/~jkrause/cars/car_dataset.html no longer serves the files, but mirrors on Kaggle do.
Training and test images of a mirror are put together, since here the classes are split.'''


def load(opt):
    require_devkit(opt)
    path = find(opt, 'cars196', LAYOUTS, WHERE)
    if path.name == 'car_ims':
        annotations = path.with_name('cars_annos.mat')               # as in the original download
        names = class_names(annotations)
        return table(path.parent, names, annotated(annotations, 'relative_im_path', names))
    if path.name == 'cars_train_annos.mat':
        return kit_table(path)
    parts = path.parent if path.name == 'train' else path
    if {'train', 'test'} <= {folder.name for folder in subfolders(parts)}:
        return both_parts(class_folders(parts / 'train'), class_folders(parts / 'test'))
    return class_folders(path)


def require_devkit(opt):
    """Raises UserError for a mirror on Kaggle that has the photos of the two parts, but not their annotations."""
    for root in (Path(opt.source_path) / root for root in ROOTS):
        is_of_kaggle = (root / 'cars_annos.mat').exists() and (root / 'cars_train').exists()
        has_others = any((root / name).exists() for name in (
            'car_ims', 'images', 'devkit/cars_train_annos.mat', 'cars_train_annos.mat'))
        if is_of_kaggle and not has_others:
            raise UserError(f'{root}: its cars_annos.mat gives the classes of car_ims/000001.jpg and so on, and the '
                            'photos in cars_train/ and cars_test/ have other numbers; put cars_meta.mat, '
                            'cars_train_annos.mat and cars_test_annos_withlabels.mat there, as other mirrors have them')


def both_parts(train, test):
    return ImageTable(train.paths + test.paths, train.classes + test.classes, ignored=train.ignored + test.ignored)


def kit_table(annotations):
    """
    The development kit: cars_train_annos.mat lists the images in cars_train/, and cars_test_annos_withlabels.mat, or
    cars_test_annos.mat of some mirrors, those in cars_test/. Without cars_meta.mat, the classes are numbers.
    """
    folder = annotations.parent
    root = folder.parent if folder.name == 'devkit' else folder
    meta = folder / 'cars_meta.mat'
    names = class_names(meta) if meta.exists() else [f'{number:03d}' for number in range(1, 197)]
    tests = [file for place in (folder, root) for file in place.glob('cars_test_annos*.mat')]
    listed = [annotated(file, 'fname', names) for file in sorted(tests, key=lambda file: 'withlabels' not in file.name)]
    test = next((rows for rows in listed if rows is not None), None)
    if test is None:
        raise UserError(f'{folder}: it has no classes of the images in cars_test/, since the kit itself withholds them;'
                        ' put cars_test_annos_withlabels.mat there, or pass the images as --dataset folder')
    return both_parts(table(images_in(root, 'cars_train'), names, annotated(annotations, 'fname', names)),
                      table(images_in(root, 'cars_test'), names, test))


def images_in(root, name):
    """The folder of images; archives that were unpacked into a folder of their name have it twice."""
    return root / name / name if (root / name / name).is_dir() else root / name


def table(folder, names, rows):
    return ImageTable([folder / path for path, _ in rows], [names[number - 1] for _, number in rows])


def class_names(file):
    """The names of the classes, in the order of their numbers, with these as prefix."""
    return [f'{number:03d}.{name}' for number, name in enumerate(content(file, 'class_names'), start=1)]


def annotated(file, field, names):
    """[(file name, class number)] of the images; None where the file has no classes. field: of the file names."""
    rows = content(file, 'annotations')
    if 'class' not in (rows.dtype.names or ()):
        return None
    try:
        found = [(str(row[field]), int(row['class'])) for row in rows]
    except (ValueError, TypeError) as error:
        raise not_annotations(file, error) from None
    wrong = [number for _, number in found if not 1 <= number <= len(names)]
    if wrong:
        raise UserError(f'{file}: expected class numbers from 1 to {len(names)}, found {wrong[0]}; download it again')
    return found


def content(file, name):
    """An array in an annotation file. Raises UserError if it cannot be read."""
    from scipy.io import loadmat
    try:
        return np.atleast_1d(loadmat(file, squeeze_me=True)[name])
    except Exception as error:  # scipy raises anything on a broken file
        raise not_annotations(file, error) from None


def not_annotations(file, error):
    return UserError(f'{file}: not the annotations of CARS196 ({type(error).__name__}: {error}); download it again')
