"""CUB-200-2011: 11,788 photos of 200 bird species. Wah et al., Caltech technical report CNS-TR-2011-001."""
from pathlib import Path

from datasets.base import class_folders, find
from datasets.download import fetch

ARCHIVE = 'https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz'
CHECKSUM = 'md5:97eceeb196236b17998738112f37df78'
WHERE = ('<number>.<class>/*.jpg, from https://www.vision.caltech.edu/datasets/cub_200_2011/; '
         '--download downloads it')


def load(opt):
    if opt.download:
        fetch(ARCHIVE, CHECKSUM, Path(opt.source_path) / 'cub200')
    return class_folders(find(opt, 'cub200', ['cub200/images', 'cub200/CUB_200_2011/images', 'CUB_200_2011/images',
                                              'cub2011/CUB_200_2011/images'], WHERE))
