"""Reads image files, and their sizes."""
import contextlib
import functools
import importlib.util
import math
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError, features
from tqdm import tqdm

from utilities import stopping
from utilities.errors import UserError

# The raster formats to read, by Pillow's names, and their file name extensions, for which folders are searched.
# Decoders of other formats start a program (EPS: Ghostscript) or a system handler (WMF), whatever the extension of the
# file.
FORMATS = {'JPEG': ('.jpg', '.jpeg', '.jfif'), 'PNG': ('.png',), 'BMP': ('.bmp',), 'GIF': ('.gif',),
           'TIFF': ('.tif', '.tiff'), 'WEBP': ('.webp',), 'PPM': ('.ppm', '.pgm'), 'AVIF': ('.avif',),
           'JPEG2000': ('.jp2',), 'HEIF': ('.heic', '.heif')}
NEEDS = {'AVIF': 'avif', 'WEBP': 'webp', 'JPEG2000': 'jpg_2000'}         # Pillow's features, by format
TRANSPARENT = ('RGBA', 'LA', 'PA')
DEEP_COLOURS = re.compile(';16[BLN]')        # in Pillow's name of 16-bit colours, of which it loads the upper bytes
DARK = 16                             # grey level, of 255, that the brightest pixel of an image must reach
MAX_SCANS = 100              # limit of a JPEG file, as in libtiff; usual files have 1 to 10, each as slow as an image
MARKER = re.compile(rb'\xff([^\x00\x01\xd0-\xd8\xff])')             # a JPEG's marker with a length after it, or END
SCAN = b'\xda'
END = b'\xd9'

warnings.simplefilter('ignore', Image.DecompressionBombWarning)        # check_size refuses images above the limit


@contextlib.contextmanager
def named(path):
    """In the block, which reads the image at `path`, all but a MemoryError becomes a UserError with the file's name."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # decoders raise all kinds of exceptions on broken files
        raise UserError(f'{path}: not a readable image ({decoding_reason(error)}). Replace it, or leave such files out '
                        'with --skip_bad_images.') from None


def decoding_reason(error):
    """Returns a readable reason why decoding failed; Pillow's own message would name a Python object."""
    return 'its format is not known' if isinstance(error, UnidentifiedImageError) else str(error)


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


class TooLarge(ValueError):
    """An image of more pixels than allowed; its pixels are not decoded."""


@functools.cache
def formats():
    """The FORMATS that this installation reads: HEIF needs pillow-heif, AVIF and others a Pillow built with them."""
    if importlib.util.find_spec('pillow_heif'):
        import pillow_heif
        pillow_heif.register_heif_opener()
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN and (name not in NEEDS or features.check(NEEDS[name]))]


def suffixes():
    """The file name extensions of the formats that this installation reads."""
    return {suffix for name in formats() for suffix in FORMATS[name]}


def open_image(file, limit=None):
    """
    Opens the image in a file, a path or binary stream, of one of FORMATS; its pixels are not decoded yet.

    limit: the largest number of megapixels; None: Pillow's, twice Image.MAX_IMAGE_PIXELS. Raises TooLarge above it.
    """
    try:
        image = Image.open(file, formats=formats())
    except Image.DecompressionBombError as error:
        raise TooLarge(error) from None
    check_size(*image.size, limit)
    if image.format == 'TIFF':
        image.filename = ''                  # or Pillow maps uncompressed pixels to memory, in rows of the turned size
    return image


def check_size(width, height, limit=None):
    """Raises TooLarge for an image of more than `limit` megapixels, as in open_image()."""
    if limit is None:
        limit = 2e-6 * Image.MAX_IMAGE_PIXELS if Image.MAX_IMAGE_PIXELS else math.inf
    if width * height > 1e6 * limit:
        raise TooLarge(f'{width:,} x {height:,} pixels are more than {limit:,.4g} megapixels')


def check_scans(image):
    """Raises ValueError for an opened JPEG file of more than MAX_SCANS scans: a small one takes long to decode."""
    if image.format not in ('JPEG', 'MPO'):
        return
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    n_scans = 0
    marker = MARKER.search(data)
    while marker and marker[1] != END and n_scans <= MAX_SCANS:
        n_scans += marker[1] == SCAN
        length = int.from_bytes(data[marker.end():marker.end() + 2])
        marker = MARKER.search(data, marker.end() + max(length, 2))          # libjpeg takes 0 and 1 for 2
    if n_scans > MAX_SCANS:
        raise ValueError(f'a JPEG file of more than {MAX_SCANS} scans')


def printable_path(path):
    """A path as it can be printed: bytes that are not UTF-8 as \\xff."""
    return os.fsencode(path).decode(errors='backslashreplace')


def folders_below(folder):
    """
    `folder` and each folder below it, as (path, names of its files), without hidden folders and links to a folder
    above. Raises UserError for a folder that cannot be listed, but for lost+found.
    """
    def refuse(error):
        if not error.filename.endswith('lost+found'):
            raise UserError(f'{error.filename}: {error.strerror}; allow to list this folder, or move it elsewhere')

    for path, below, files in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(path).resolve()
        below[:] = [name for name in below
                    if not name.startswith('.') and not here.is_relative_to(Path(path, name).resolve())]
        yield path, files


def upright(image):
    """
    An opened PIL image -> the decoded image, upright, in RGB or, if it is grey, in L. Raises ValueError as
    check_scans() and in_8_bits(), and for an image of more than 8 bits per channel that would be black, such as one
    with 8-bit values in a 16-bit file.
    """
    check_scans(image)
    # a loaded image of colours no longer tells how many bits they had
    is_deep = image.mode[0] in 'IF' or DEEP_COLOURS.search(str(getattr(image, 'tile', ())[:1]))
    ImageOps.exif_transpose(image, in_place=True)                          # loads it
    if is_deep:
        image = in_8_bits(image)
    is_dark = is_deep and image.convert('L').getextrema()[1] < DARK
    if image.mode in TRANSPARENT or 'transparency' in image.info:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    if is_dark and np.ptp(image.convert('L').getextrema()) < DARK:         # unlike black on a transparent ground
        raise ValueError('it would be black: it has more than 8 bits per channel, where white is 65,535, or 1 in '
                         'floats, but only dark values; save it with 8 bits per channel')
    return image if image.mode in ('RGB', 'L') else image.convert('L' if image.mode == '1' else 'RGB')


def in_8_bits(image):
    """
    A loaded PIL image of more than 8 bits per channel -> the image in 8 bits. White is 65,535, or 1 in floats; of
    integers, the upper bytes are kept, also of the transparent colour. Raises ValueError for values out of this range.
    """
    clear = image.info.get('transparency')
    if image.mode[0] in 'IF':
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= (1 if image.mode == 'F' else 65535)):       # or NaN
            raise ValueError(f'its values lie between {values.min():g} and {values.max():g}; expected floats in '
                             '[0, 1], or integers from 0 to 65,535')
        image = Image.fromarray((np.rint(values * 255) if image.mode == 'F' else values >> 8).astype(np.uint8))
    if clear is not None:
        image.info['transparency'] = clear >> 8 if isinstance(clear, int) else tuple(value >> 8 for value in clear)
    return image


def read_upright(source, limit=None, side=None):
    """
    The image at a path, or the part of it that a Box names, as a PIL image in RGB or, if it is grey, in L: rotated
    upright as EXIF says, transparency replaced by white, more than 8 bits per channel reduced to 8.

    side: None, or a number of pixels: a JPEG file is decoded at the smallest size whose shorter side has at least as
          many; the limit then applies to that size.

    Raises UserError with the file's name if it is missing, truncated, not an image, larger than open_image() allows, or
    does not contain the Box.
    """
    path = source.path if isinstance(source, Box) else source
    with named(path), open_image(path, math.inf if side else limit) as image:
        if side:
            image.draft(image.mode, (side, side))
            check_size(*image.size, limit)
        image = upright(image)
    if path is source:
        return image
    if source.right > image.width or source.bottom > image.height:
        raise UserError(f'{path}: the box x1,y1,x2,y2 = {",".join(map(str, source[1:5]))} of line {source.line} of the '
                        f'CSV file is not inside the image, which has {image.width} x {image.height} pixels; correct '
                        'the line, or leave such images out with --skip_bad_images')
    return image.crop(source[1:5])


def upright_size(path):
    """
    (width, height) of the image at `path`, upright as EXIF says, without decoding it. Raises UserError like
    read_upright.
    """
    with named(path), open_image(path) as image:
        tags = getattr(image, 'tag_v2', {})                      # a TIFF image.size may be upright already
        width = tags.get(ExifTags.Base.ImageWidth, image.width)
        height = tags.get(ExifTags.Base.ImageLength, image.height)
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)     # PNG's own would decode it
        return (height, width) if orientation in (5, 6, 7, 8) else (width, height)


def read_each(read, sources, name):
    """[read(source)] of many images, by several threads; None for an image that is not readable. name: of the bar."""
    def result(source):
        stopping.check()
        try:
            return read(source)
        except UserError:
            return None

    with ThreadPoolExecutor() as pool:
        return list(tqdm(pool.map(result, sources), total=len(sources), desc=name, disable=None, leave=False))
