"""Stanford Online Products: 120,053 photos of 22,634 products in 12 categories. Oh Song et al., CVPR 2016."""
from datasets.base import ImageTable, find, listed_rows
from datasets.download import no_address

WHERE = ('the list of its training images, with Ebay_test.txt beside it and the folders bicycle_final ... beside it or '
         'in images/; the data are at https://cvgl.stanford.edu/projects/lifted_struct/')
FOLDERS = ('online_products/Info_Files', 'online_products', 'online_products/Stanford_Online_Products',
           'Stanford_Online_Products')


def load(opt):
    if opt.download:
        no_address('Stanford Online Products', WHERE)
    lists = find(opt, 'online_products', [f'{folder}/Ebay_train.txt' for folder in FOLDERS], WHERE).parent
    images = next((path for path in (lists.parent / 'images', lists / 'images') if path.exists()), lists)
    paths, classes, parts, superclasses = [], [], [], {}
    for part in ('train', 'test'):
        for _, class_id, _, path in listed_rows(lists / f'Ebay_{part}.txt', n_header=1, n_columns=4):
            name = f'{class_id:0>5}'
            paths.append(images / path)
            classes.append(name)
            parts.append(part)
            superclasses[name] = path.split('/')[0].removesuffix('_final')
    return ImageTable(paths, classes, parts, superclasses)
