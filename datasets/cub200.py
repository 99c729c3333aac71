"""CUB-200-2011: 11,788 photos of 200 bird species. Wah et al., Caltech technical report CNS-TR-2011-001."""
from pathlib import Path

from datasets.base import class_folders, find
from datasets.download import fetch

ARCHIVE = 'https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz'
MD5 = '97eceeb196236b17998738112f37df78'
PUBLISHED = {'all': (11788, 200)}                    # images and classes, as in every published result
LAYOUTS = ['cub200/images', *(f'{above}CUB_200_2011/images' for above in (
    'cub200/', '', 'cub2011/', 'CUB_200_2011/', 'cub200/CUB_200_2011/'))]
WHERE = '''cub200/                       or CUB_200_2011/, also one folder deeper, as in cub200/CUB_200_2011/
    images/
        001.Black_footed_Albatross/*.jpg
        ...
From https://www.vision.caltech.edu/datasets/cub_200_2011/; --download downloads it.'''


def load(opt):
    if opt.download:
        source = Path(opt.source_path)
        fetch(ARCHIVE, MD5, source / 'cub200', [source / layout for layout in LAYOUTS])
    return class_folders(find(opt, 'cub200', LAYOUTS, WHERE))
