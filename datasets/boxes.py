"""Boxes: parts of images that a CSV file lists, cropped when they are read. Off where it has no columns x1,y1,x2,y2."""
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets import decoding
from datasets.decoding import Photo
from utilities.errors import UserError

COLUMNS = ('x1', 'y1', 'x2', 'y2')


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


def from_rows(file, rows, lines, paths):
    """
    The Boxes of the rows of a CSV file, at these lines of it, rounded to whole pixels. Raises UserError for the first
    row without one.
    """
    missing = [name for name in COLUMNS if name not in rows[0]]
    if missing:
        raise UserError(f'--csv {file}: a box needs the columns {",".join(COLUMNS)}; missing: {",".join(missing)}')
    found = []
    for line, row, path in zip(lines, rows, paths, strict=True):
        values = [row[name] or 'nothing' for name in COLUMNS]
        try:
            box = Box(path, *(round(float(value)) for value in values), line)
        except (ValueError, OverflowError):                # not a number; infinite
            box = None
        if box is None or not (0 <= box.left < box.right and 0 <= box.top < box.bottom):
            raise UserError(f'--csv {file}, line {line}: x1,y1,x2,y2 must be pixels with 0 <= x1 < x2 and '
                            f'0 <= y1 < y2, not {",".join(values)}')
        found.append(box)
    return found


def open_photo(source, whites=None):
    """As decoding.open_photo; for a Box, the Photo of this part. Raises UserError if the box exceeds the image."""
    photo = decoding.open_photo(image_path(source), whites)
    return cropped(photo, source) if isinstance(source, Box) else photo


def read_upright(source):
    """As decoding.read_upright; for a Box, this part of the image. Raises UserError if the box exceeds the image."""
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
