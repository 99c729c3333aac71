"""Boxes: parts of images that a CSV file lists, cropped when they are read. Off where it has no columns of boxes."""
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from datasets import decoding
from datasets.decoding import Photo
from utilities import stopping
from utilities.errors import UserError

COLUMNS = ('x1', 'y1', 'x2', 'y2')
CORNERS = (COLUMNS, ('xmin', 'ymin', 'xmax', 'ymax'), ('left', 'top', 'right', 'bottom'))
SIZES = (('x', 'y', 'w', 'h'), ('x', 'y', 'width', 'height'), ('left', 'top', 'width', 'height'),
         ('xmin', 'ymin', 'width', 'height'))
LISTS = ('bbox', 'box', 'boundingbox')                            # four numbers in one column, as in [10, 20, 50, 40]
CENTRES = {'xcenter', 'ycenter', 'xcentre', 'ycentre', 'centerx', 'centery', 'cx', 'cy'}
MIN_SIDE = 2                                                      # pixels


class Box(NamedTuple):
    """
    A part of an image file, in pixels of the upright image: columns left to right - 1, rows top to bottom - 1. line:
    where the CSV file lists it.
    """
    path: Path
    left: int
    top: int
    right: int
    bottom: int
    line: int

    def __str__(self):
        return f'{self.path}[{self.left},{self.top},{self.right},{self.bottom}]'

    def require_inside(self, width, height):
        """Raises UserError if the box is not inside an image of this size."""
        if self.right > width or self.bottom > height:
            raise UserError(f'{self.path}: the box x1,y1,x2,y2 = {self.left},{self.top},{self.right},{self.bottom} of '
                            f'line {self.line} of the CSV file is not inside the image, which has {width} x {height} '
                            'pixels; correct the line, or leave such images out with --skip_bad_images')


def image_path(source):
    """The file of what an ImageSet reads: a path, or a Box."""
    return source.path if isinstance(source, Box) else source


def columns_of(file, columns):
    """
    The columns of a CSV file that contain boxes: four of CORNERS or SIZES, or one of LISTS; [] if there are none.
    Capitals, underscores and a leading "bbox" in their names do not matter. Raises UserError if some of four columns
    are missing, and for boxes given by their centres.
    """
    named = {}
    for name in columns:
        named.setdefault(plain(name), name)
    for names in (*CORNERS, *SIZES):
        if {*names} <= {*named}:
            return [named[name] for name in names]
    for name in LISTS:
        if name in named:
            return [named[name]]
    if len(CENTRES & {*named}) > 1:
        raise UserError(f'--csv {file}: boxes by their centres are not read; write the columns {",".join(COLUMNS)}')
    for names in CORNERS:
        missing = [name for name in names if name not in columns]
        if len(missing) < 4 and (len(missing) < 3 or names == COLUMNS):
            raise UserError(f'--csv {file}: a box needs the columns {",".join(names)}; missing: {",".join(missing)}')
    return []


def plain(name):
    """The name of a column in the form of CORNERS, SIZES, LISTS and CENTRES."""
    letters = re.sub('[^a-z0-9]', '', name.lower())
    return letters.removeprefix('bbox') or letters


def from_rows(file, rows, lines, paths, columns):
    """
    The Boxes in these rows and lines of a CSV file, in whole pixels, clipped at the borders of their images. columns:
    of columns_of(). Raises UserError for rows without a box, and for boxes narrower than MIN_SIDE.
    """
    name = ','.join(columns)
    entries = [numbers(file, line, row, columns) for line, row in zip(lines, rows, strict=True)]
    sizes = upright_sizes(paths)
    within = [all(0 <= value <= 1 for value in entry) for entry in entries]
    are_fractions = all(within)
    if any(within) and not are_fractions:
        one, other = within.index(True), within.index(False)
        raise UserError(f'--csv {file}: boxes must all be in pixels, or all in fractions of the image from 0 to 1, '
                        f'unlike {shown(entries[one])} in line {lines[one]} and {shown(entries[other])} in line '
                        f'{lines[other]}')
    scales = [(1, 1) if are_fractions else size for size in sizes]
    corners, are_sizes = read_corners(file, entries, lines, scales, name, plain(columns[0]) in LISTS,
                                      plain(columns[-1]) in {names[-1] for names in SIZES})
    if tuple(columns) != COLUMNS or are_fractions:
        order = 'left, top, width, height' if are_sizes else 'left, top, right, bottom'
        unit = 'fractions of the image' if are_fractions else 'pixels'
        print(f'Note: --csv {file}: boxes are read from {name}: {order}, in {unit}')
    found = []
    n_clipped = 0
    for path, size, corner, line in zip(paths, sizes, corners, lines, strict=True):
        if size is None:                                          # not readable; opening the image says so
            found.append(Box(path, *corner, line))
            continue
        factors = size * 2 if are_fractions else (1, 1, 1, 1)
        whole = [round(value * factor) for value, factor in zip(corner, factors, strict=True)]
        box = Box(path, max(whole[0], 0), max(whole[1], 0), min(whole[2], size[0]), min(whole[3], size[1]), line)
        if box.right - box.left < MIN_SIDE or box.bottom - box.top < MIN_SIDE:
            raise UserError(f'--csv {file}, line {line}: the box {shown(corner)} has less than {MIN_SIDE} pixels in a '
                            f'direction within {path}, which has {size[0]} x {size[1]} pixels; correct or remove the '
                            'line')
        n_clipped += whole != [*box[1:5]]
        found.append(box)
    if n_clipped:
        print(f'Note: --csv {file}: {n_clipped:,} of {len(found):,} boxes reach beyond their images and are clipped')
    return found


def numbers(file, line, row, columns):
    """The four numbers of a row's box. Raises UserError if they are not four finite numbers."""
    texts = [row[name] or 'nothing' for name in columns]
    if len(columns) == 1:
        texts = re.split(r'[,;\s]+', texts[0].strip('[]() '))
    try:
        values = [float(text) for text in texts]
    except ValueError:
        values = []
    if len(values) != 4 or not all(map(math.isfinite, values)):
        raise UserError(f'--csv {file}, line {line}: {",".join(columns)} must be four numbers, not {",".join(texts)}')
    return values


def read_corners(file, entries, lines, scales, name, is_list, are_sizes):
    """
    Returns ([left, top, right, bottom] of each entry, whether the entries were left, top, width and height). Only a
    list may be of either kind; it is read as the kind with which every box has a positive size and lies within its
    image.
    """
    readings = {True: [(left, top, left + width, top + height) for left, top, width, height in entries],
                False: entries}

    def first_bad(kind):
        return next((i for i, (left, top, right, bottom) in enumerate(readings[kind])
                     if left >= right or top >= bottom), None)

    def all_fit(kind):
        return all(size is None or (corner[2] <= size[0] and corner[3] <= size[1])
                   for corner, size in zip(readings[kind], scales, strict=True))

    kinds = [True, False] if is_list else [are_sizes]
    possible = [kind for kind in kinds if first_bad(kind) is None]
    if len(possible) == 2:
        possible = [kind for kind in kinds if all_fit(kind)]
        if len(possible) != 1:
            raise UserError(f'--csv {file}: the boxes in {name} may be left,top,width,height or left,top,right,bottom; '
                            f'write the columns x,y,width,height or {",".join(COLUMNS)}')
    if not possible:
        i = first_bad(kinds[0])
        needs = 'a width and a height above 0' if kinds[0] else 'left < right and top < bottom'
        raise UserError(f'--csv {file}, line {lines[i]}: {name} must be numbers with {needs}, not {shown(entries[i])}')
    return readings[possible[0]], possible[0]


def shown(values):
    return ','.join(f'{value:g}' for value in values)


def upright_sizes(paths):
    """(width, height) of each image in pixels, upright; None for a file that is not a readable image."""
    def size(path):
        stopping.check()
        try:
            return decoding.upright_size(path)
        except UserError:
            return None

    files = list(dict.fromkeys(paths))
    with ThreadPoolExecutor() as pool:
        sizes = tqdm(pool.map(size, files), total=len(files), desc='sizes of images', disable=None, leave=False)
        found = dict(zip(files, sizes, strict=True))
    return [found[path] for path in paths]


def open_photo(source):
    """The Photo of an image file, or of the part that a Box names. Raises UserError if the image lacks that part."""
    photo = decoding.open_photo(image_path(source))
    return cropped(photo, source) if isinstance(source, Box) else photo


def read_upright(source):
    """An image file, or the part that a Box names, as an upright PIL image. Raises UserError as open_photo()."""
    image = decoding.read_upright(image_path(source))
    if not isinstance(source, Box):
        return image
    source.require_inside(*image.size)
    return image.crop(source[1:5])


def cropped(photo, box):
    """The Photo of a box."""
    box.require_inside(photo.width, photo.height)
    return Photo(box.bottom - box.top, box.right - box.left, lambda: np.ascontiguousarray(
        photo.decode()[box.top:box.bottom, box.left:box.right]))
