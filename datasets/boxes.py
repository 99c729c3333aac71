"""Boxes: parts of images that a CSV file lists, cropped when they are read. Off where it has no columns of boxes."""
import math
import re

from datasets import decoding
from datasets.decoding import Box
from utilities.errors import UserError

COLUMNS = ('x1', 'y1', 'x2', 'y2')
# names of four columns, in the form of simplified(): whether the last two are width and height
LAYOUTS = {COLUMNS: False, ('xmin', 'ymin', 'xmax', 'ymax'): False, ('left', 'top', 'right', 'bottom'): False,
           ('x', 'y', 'w', 'h'): True, ('x', 'y', 'width', 'height'): True, ('left', 'top', 'width', 'height'): True,
           ('xmin', 'ymin', 'width', 'height'): True}
LISTS = {'bbox', 'box', 'boundingbox'}
CENTRES = {'xcenter', 'ycenter', 'xcentre', 'ycentre', 'centerx', 'centery', 'cx', 'cy'}
MIN_SIDE = 2                                                      # pixels


def columns_of(file, columns):
    """
    The four columns of a CSV file that contain boxes, by one of LAYOUTS; [] if there are none. Raises UserError if some
    of four columns are missing, and for boxes that are given in one column or by their centres.
    """
    found = columns_among(columns)
    if found:
        return found
    present = {*map(simplified, columns)}
    if LISTS & present or len(CENTRES & present) > 1:
        raise UserError(f'--csv {file}: boxes are not read from one column, nor by their centres; write the columns '
                        f'{",".join(COLUMNS)}, or x,y,width,height')
    for names, are_sizes in LAYOUTS.items():
        missing = [name for name in names if name not in present]
        if len(missing) < 3 and not are_sizes:
            raise UserError(f'--csv {file}: a box needs the columns {",".join(names)}; missing: {",".join(missing)}')
    return []


def columns_among(columns):
    """The four of these columns that contain boxes, by one of LAYOUTS; [] if there are none."""
    named = {simplified(name): name for name in reversed(columns)}            # the first of two names counts
    for names in LAYOUTS:
        if named.keys() >= {*names}:
            return [named[name] for name in names]
    return []


def simplified(name):
    """The name of a column without capitals, underscores and a leading bbox."""
    letters = re.sub('[^a-z0-9]', '', name.lower())
    return letters.removeprefix('bbox') or letters


def from_rows(file, rows, lines, paths, columns):
    """
    The Boxes in these rows and lines of a CSV file, in whole pixels, clipped at the borders of their images. columns:
    of columns_of(). Raises UserError for rows without a box, and for boxes narrower than MIN_SIDE.
    """
    names = ','.join(columns)
    are_sizes = LAYOUTS[tuple(map(simplified, columns))]
    entries = [four_numbers(f'--csv {file}, line {line}, columns {names}', [row[name] for name in columns])
               for line, row in zip(lines, rows, strict=True)]
    are_fractions = in_fractions(f'--csv {file}, columns {names}', entries, lines)
    if tuple(columns) != COLUMNS or are_fractions:
        order = 'left, top, width, height' if are_sizes else 'left, top, right, bottom'
        unit = 'fractions of the image' if are_fractions else 'pixels'
        print(f'Note: --csv {file}: boxes are read from {names}: {order}, in {unit}')
    files = list(dict.fromkeys(paths))
    sizes = dict(zip(files, decoding.read_each(decoding.upright_size, files, 'sizes of images'), strict=True))
    found = []
    n_clipped = 0
    for entry, path, line in zip(entries, paths, lines, strict=True):
        what = f'--csv {file}, line {line}, columns {names}: found {joined(entry)}'
        left, top, right, bottom = entry
        if are_sizes:
            right += left
            bottom += top
        if left >= right or top >= bottom:
            needed = 'a width and a height above 0' if are_sizes else 'left < right and top < bottom'
            raise UserError(f'{what}, expected {needed}')
        if sizes[path] is None:                                   # the image is unreadable; opening it says so
            found.append(Box(path, left, top, right, bottom, line))
            continue
        width, height = sizes[path]
        x, y = (width, height) if are_fractions else (1, 1)
        whole = [round(left * x), round(top * y), round(right * x), round(bottom * y)]
        box = Box(path, max(whole[0], 0), max(whole[1], 0), min(whole[2], width), min(whole[3], height), line)
        if box.right - box.left < MIN_SIDE or box.bottom - box.top < MIN_SIDE:
            raise UserError(f'{what}, expected a box of at least {MIN_SIDE} x {MIN_SIDE} pixels within {path}, which '
                            f'has {width} x {height}; fractions of the image are read if all boxes lie between 0 and 1')
        n_clipped += whole != [*box[1:5]]
        found.append(box)
    if n_clipped:
        print(f'Note: --csv {file}: {n_clipped:,} of {len(found):,} boxes reach beyond their images and are clipped')
    return found


def four_numbers(where, texts):
    """The numbers of a box. Raises UserError, beginning with `where`, if they are not four finite numbers."""
    try:
        values = [float(text or 'nothing') for text in texts]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise UserError(f'{where}: found {",".join(text or "nothing" for text in texts)}, expected four numbers')
    return values


def in_fractions(where, entries, lines):
    """Whether all boxes are fractions of the image, from 0 to 1. Raises UserError if only some are."""
    within = [all(0 <= value <= 1 for value in entry) for entry in entries]
    if any(within) and not all(within):
        one, other = within.index(True), within.index(False)
        raise UserError(f'{where}: line {lines[one]} has fractions of the image, {joined(entries[one])}, but line '
                        f'{lines[other]} has {joined(entries[other])}; expected fractions from 0 to 1 in all lines, or '
                        'pixels in all')
    return all(within)


def joined(values):
    return ','.join(f'{value:g}' for value in values)
