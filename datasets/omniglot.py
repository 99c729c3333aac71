"""Omniglot: handwritten characters of 50 alphabets, 20 drawings each. Lake et al., Science 2015."""
from pathlib import Path

from datasets.base import ImageTable, class_folders, find, image_files
from datasets.download import fetch

CHARACTERS = True            # its images must not be flipped or cropped
ROOT = 'https://raw.githubusercontent.com/brendenlake/omniglot/master/python/'
ARCHIVES = {'images_background.zip': '68d2efa1b9178cc56df9314c21c6e718',            # their MD5 hashes
            'images_evaluation.zip': '6b91aef0f799c5bb55b94e3f2daec811'}
WHERE = '''omniglot/
    images/<Alphabet>.<character>/*.png
or  images_background/<Alphabet>/<character>/*.png     also in omniglot-py/, as torchvision has them
    images_evaluation/<Alphabet>/<character>/*.png
From https://github.com/brendenlake/omniglot; --download downloads it.'''


def load(opt):
    if opt.download:
        for archive, md5 in ARCHIVES.items():
            fetch(ROOT + archive, md5, Path(opt.source_path) / 'omniglot')
    path = find(opt, 'omniglot', ['omniglot/images', 'omniglot/images_background',
                                  'omniglot/omniglot-py/images_background', 'omniglot-py/images_background'], WHERE)
    if path.name == 'images':
        table = class_folders(path)
        table.superclasses = alphabets(table.classes)
        return table
    paths = []
    classes = []
    ignored = []
    for part in ('images_background', 'images_evaluation'):
        for character in sorted((path.parent / part).glob('[!.]*/[!.]*/')):
            files = image_files(character, ignored)
            paths += files
            classes += [f'{character.parent.name}.{character.name}'] * len(files)
    return ImageTable(paths, classes, superclasses=alphabets(classes), ignored=ignored)


def alphabets(classes):
    return {name: name.split('.')[0] for name in classes}
