"""The photos that a command line names: image files, folders of any depth, CSV files and lists of paths."""
import csv
import os
import sys
from pathlib import Path

from datasets import boxes, decoding, image_list
from datasets.base import note_ignored
from utilities.errors import UserError


def find(places):
    """
    The absolute paths, as strings, of the images that `places` name, each once, in the order of `places`:

    - a folder: all images in it and in its folders, sorted, without hidden ones; other files there are printed;
    - a .csv file: the paths in its column `path`, relative to the folder of the file;
    - a .txt file: one path in each line, relative to the folder of the file;
    - an image file.

    The files in a list need not exist. Raises UserError if a member of `places` does not exist, or names no image.
    """
    found = {}
    ignored = []
    for place in map(Path, places):
        if place.is_dir():
            images, others = in_folder(place)
            ignored += others
        elif place.is_file():
            images = named_by(place)
        else:
            raise UserError(f'{place}: there is no such file or folder')
        if not images:
            note_ignored(ignored, sys.stderr)
            raise UserError(f'{place}: it names no image; expected a folder with images '
                            f'({" ".join(sorted(decoding.suffixes()))}), a CSV file with the column path, '
                            'a .txt file with one path in each line, or an image')
        found |= dict.fromkeys(map(os.path.abspath, images))
    note_ignored(ignored, sys.stderr)
    return list(found)


def in_folder(folder):
    """The images in a folder and in its folders, and the other files there, both sorted, without hidden ones."""
    images = []
    others = []
    for path, files in decoding.folders_below(folder):
        for name in files:
            if not name.startswith('.'):
                known = Path(name).suffix.lower() in decoding.suffixes()
                (images if known else others).append(os.path.join(path, name))
    return sorted(images), sorted(others)


def named_by(place):
    """The paths that a .csv or .txt file lists; any other path alone, which need not exist."""
    read = READERS.get(place.suffix.lower())
    if read is None or place.is_dir():
        return [place]
    try:
        with open(place, newline='', encoding='utf-8-sig') as opened:
            names = read(place, opened)
    except OSError as error:
        raise UserError(f'{place}: {error.strerror}') from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{place}: not a list of images in UTF-8 ({error})') from None
    names = [name for name in names if name]
    if any('\0' in name for name in names):
        raise UserError(f'{place}: not a list of images in UTF-8 (it has NUL bytes)')
    return image_list.located(place, place.parent, names, sys.stderr)


def paths_in_csv(file, opened):
    rows = csv.DictReader(opened)
    if 'path' not in (rows.fieldnames or ()):
        raise UserError(f'{file}: expected a header with the column path, found '
                        f'{", ".join(rows.fieldnames or ["no row"])}')
    if boxes.columns_among(rows.fieldnames):
        print(f'Note: {file}: its boxes are not read: each image is taken once, and as a whole', file=sys.stderr)
    return [row['path'] for row in rows]


def paths_in_lines(file, opened):
    return [line.strip() for line in opened]


READERS = {'.csv': paths_in_csv, '.txt': paths_in_lines}
