"""CARS196: 16,185 photos of 196 car models. Krause et al., 3dRR workshop, ICCV 2013."""
from datasets.base import ImageTable, class_folders, find
from datasets.download import no_address
from utilities.errors import UserError

WHERE = ('images/<class>/*.jpg, or car_ims/*.jpg and cars_annos.mat as in the original download; the page '
         'https://ai.stanford.edu/~jkrause/cars/car_dataset.html no longer serves the files, but mirrors on Kaggle do')


def load(opt):
    if opt.download:
        no_address('CARS196', WHERE)
    path = find(opt, 'cars196', ['cars196/images', 'cars196/cars_annos.mat'], WHERE)
    return class_folders(path) if path.name == 'images' else annotated(path)


def annotated(annotations):
    """The original download: cars_annos.mat lists each image's path and class number, and the names of the classes."""
    from scipy.io import loadmat
    try:
        listed = loadmat(annotations, squeeze_me=True)
        names = [f'{number:03d}.{name}' for number, name in enumerate(listed['class_names'], start=1)]
        rows = listed['annotations']
        return ImageTable([annotations.parent / str(row['relative_im_path']) for row in rows],
                          [names[int(row['class']) - 1] for row in rows])
    except Exception as error:  # scipy raises anything on a broken file
        raise UserError(f'{annotations}: not the annotations of CARS196 ({type(error).__name__}: {error}); download '
                        'it again') from None
