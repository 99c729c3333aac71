"""Stanford Online Products: 120,053 photos of 22,634 products in 12 categories. Oh Song et al., CVPR 2016."""
from pathlib import Path

from datasets.base import ImageTable, find, listed_rows

WHERE = '''online_products/              or Stanford_Online_Products/, also in online_products/
    Ebay_train.txt            the lists of the images, also in Info_Files/
    Ebay_test.txt
    bicycle_final/*.JPG       the 12 folders of the categories, also in images/;
    cabinet_final/*.JPG       or all images in images/ without these folders
    ...
The data are at https://cvgl.stanford.edu/projects/lifted_struct/.'''
FOLDERS = ('online_products/Info_Files', 'online_products', 'online_products/Stanford_Online_Products',
           'Stanford_Online_Products', 'Stanford_Online_Products/Info_Files')
PUBLISHED = {'train': (59551, 11318), 'test': (60502, 11316)}        # images and classes of the lists


def load(opt):
    lists = find(opt, 'online_products', [f'{folder}/Ebay_train.txt' for folder in FOLDERS], WHERE).parent
    root = lists.parent if lists.name == 'Info_Files' else lists
    folder = root / 'images' if (root / 'images').exists() else root
    paths = []
    classes = []
    parts = []
    superclasses = {}
    for part in ('train', 'test'):
        file = lists / f'Ebay_{part}.txt'
        rows = listed_rows(file, 'image_id class_id super_class_id path')
        for _, class_id, _, path in rows:
            name = f'{class_id:0>5}'
            paths.append(path)
            classes.append(name)
            parts.append(part)
            superclasses[name] = path.split('/')[0].removesuffix('_final')
    is_flat = paths and not (folder / paths[0]).exists() and (folder / Path(paths[0]).name).exists()
    names = [Path(path).name if is_flat else path for path in paths]
    return ImageTable([folder / name for name in names], classes, parts, [superclasses])
