"""Omniglot: handwritten characters of 50 alphabets, 20 drawings each. Lake et al., Science 2015."""
from pathlib import Path

from datasets.base import ImageTable, class_folders, find
from datasets.download import fetch

CHARACTERS = True            # its images must not be flipped or cropped
ROOT = 'https://raw.githubusercontent.com/brendenlake/omniglot/master/python/'
ARCHIVES = {'images_background.zip': '68d2efa1b9178cc56df9314c21c6e718',            # their MD5 hashes
            'images_evaluation.zip': '6b91aef0f799c5bb55b94e3f2daec811'}
PUBLISHED = {'all': (32460, 1623)}                   # images and classes of both parts
WHERE = '''omniglot/
    images/<Alphabet>.<character>/*.png
or  images_background/<Alphabet>/<character>/*.png     also in omniglot-py/, as torchvision has them
    images_evaluation/<Alphabet>/<character>/*.png
From https://github.com/brendenlake/omniglot; --download downloads it.'''


def load(opt):
    source = Path(opt.source_path)
    for archive, md5 in ARCHIVES.items() if opt.download else ():
        fetch(ROOT + archive, md5, source / 'omniglot', [source / layout for layout in layouts(Path(archive).stem)])
    path = find(opt, 'omniglot', layouts('images_background'), WHERE)
    if path.name == 'images':
        table = class_folders(path)
    else:
        evaluation = [source / layout for layout in layouts('images_evaluation') if (source / layout).exists()]
        characters = [folder for part in (path, *evaluation[:1]) for folder in sorted(part.glob('[!.]*/[!.]*/'))]
        table = ImageTable.from_folders({folder: f'{folder.parent.name}.{folder.name}' for folder in characters})
    table.levels = [{name: name.split('.')[0] for name in table.classes}]
    return table


def layouts(part):
    """Paths below --source_path of the folder with all images, and of this part of the original download."""
    return ['omniglot/images', *(f'{above}/{part}' for above in ('omniglot', 'omniglot/omniglot-py', 'omniglot-py'))]
