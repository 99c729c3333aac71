"""Reads the size of image files, and decodes their pixels when they are needed, at reduced size if that is enough."""
import contextlib
import functools
import importlib.util
import io
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError, features

from utilities.errors import UserError

# The raster formats to read, by Pillow's names, and their file name extensions, for which folders are searched.
# Decoders of other formats start a program (EPS: Ghostscript) or a system handler (WMF), whatever the extension of the
# file.
FORMATS = {'JPEG': ('.jpg', '.jpeg', '.jfif'), 'PNG': ('.png',), 'BMP': ('.bmp',), 'GIF': ('.gif',),
           'TIFF': ('.tif', '.tiff'), 'WEBP': ('.webp',), 'PPM': ('.ppm', '.pgm'), 'AVIF': ('.avif',),
           'JPEG2000': ('.jp2',), 'HEIF': ('.heic', '.heif')}
NEEDS = {'AVIF': 'avif', 'WEBP': 'webp', 'JPEG2000': 'jpg_2000'}         # Pillow's features, by format
SIXTEEN_BIT = ('I', 'I;16', 'I;16B', 'I;16L', 'I;16N')
TRANSPARENT = ('RGBA', 'LA', 'PA')
CHANNELS = (1, 3)            # channels of grey and RGB images

warnings.simplefilter('ignore', Image.DecompressionBombWarning)        # check_size refuses images above the limit


@dataclass
class Photo:
    """
    An image whose pixels are decoded when they are needed; np.asarray gives all of them.

    height, width: in pixels, upright.
    decode: scale (1, 2, 4 or 8) -> uint8 [ceil(height / scale), ceil(width / scale), 3], or [height, width, 3] if the
            image cannot be decoded at this scale; for a grey image, the last dimension may be 1.
    is_jpeg: whether it is a JPEG file, by its name.
    """
    height: int
    width: int
    decode: Callable
    is_jpeg: bool = False

    def __array__(self, dtype=None, copy=None):
        return np.array(self.decode(1), dtype, copy=copy)


@contextlib.contextmanager
def named(path):
    """In the block, which reads the image at `path`, any exception becomes a UserError with the file's name."""
    try:
        yield
    except Exception as error:  # decoders raise all kinds of exceptions on broken files
        raise UserError(f'{path}: not a readable image ({decoding_reason(error)}). Replace it, or leave such files out '
                        'with --skip_bad_images.') from None


def decoding_reason(error):
    """Returns a readable reason why decoding failed; Pillow's own message would name a Python object."""
    return 'its format is not known' if isinstance(error, UnidentifiedImageError) else str(error)


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


def opened(file, limit=None):
    """
    Opens the image in a file, a path or binary stream, of one of FORMATS; its pixels are not decoded yet.

    limit: the largest number of megapixels; None: Pillow's, twice Image.MAX_IMAGE_PIXELS. Raises TooLarge above it.
    """
    try:
        image = Image.open(file, formats=formats())
    except Image.DecompressionBombError as error:
        raise TooLarge(error) from None
    check_size(*image.size, limit)
    return image


def check_size(width, height, limit=None):
    """Raises TooLarge for an image of more than `limit` megapixels, as in opened()."""
    if limit is None:
        limit = 2e-6 * Image.MAX_IMAGE_PIXELS if Image.MAX_IMAGE_PIXELS else math.inf
    if width * height > 1e6 * limit:
        raise TooLarge(f'{width:,} x {height:,} pixels are more than {limit:,.4g} megapixels')


def shown(path):
    """A path as it can be printed: bytes that are not UTF-8 as \\xff."""
    return os.fsencode(path).decode(errors='backslashreplace')


def upright(image):
    """An opened PIL image -> the decoded image, upright, in RGB or, if it is grey, in L."""
    ImageOps.exif_transpose(image, in_place=True)                          # loads it
    if image.mode in SIXTEEN_BIT:
        image = Image.fromarray((np.asarray(image, dtype=np.uint32) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in TRANSPARENT or 'transparency' in image.info:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image if image.mode in ('RGB', 'L') else image.convert('L' if image.mode == '1' else 'RGB')


def read_upright(path, limit=None, side=None):
    """
    The image at `path` as a PIL image in RGB or, if it is grey, in L: rotated upright as EXIF says, transparency
    replaced by white, 16-bit grey scaled to 8 bits.

    side: None, or a number of pixels: a JPEG file is decoded at the smallest size whose shorter side has at least as
          many; the limit then applies to that size.

    Raises UserError with the file's name if it is missing, truncated, not an image, or larger than opened() allows.
    """
    with named(path), opened(path, math.inf if side else limit) as image:
        if side:
            image.draft(image.mode, (side, side))
            check_size(*image.size, limit)
        return upright(image)


def open_photo(path, limit=None):
    """
    The Photo at `path`, with the pixels of read_upright. Raises UserError like read_upright, either here or when the
    Photo is decoded.

    torchvision decodes a JPEG file faster than Pillow. It is used if both give the same pixels.
    """
    with named(path):
        data = np.fromfile(path, np.uint8)
        decode_jpeg = jpeg_decoder()
        header = jpeg_header(memoryview(data)) if decode_jpeg else None
        if header is None:
            with opened(io.BytesIO(data), limit) as image:
                pixels = channels_last(upright(image))
            return Photo(*pixels.shape[:2], lambda scale: pixels, is_jpeg(path))
        height, width = header
        check_size(width, height, limit)

    def decode(scale):
        with named(path):
            if scale == 1:
                return decode_jpeg(torch.from_numpy(data)).permute(1, 2, 0).numpy()
            with opened(io.BytesIO(data), limit) as image:
                image.draft(image.mode, (width // scale, height // scale))
                return channels_last(upright(image))

    return Photo(height, width, decode, is_jpeg(path))


def is_jpeg(path):
    """Whether a file is a JPEG file by its name, so that a cache of its pixels gives the same answer."""
    return os.path.splitext(path)[1].lower() in FORMATS['JPEG']


def channels_last(image):
    """A PIL image in RGB or L -> uint8 [height, width, 3 or 1]."""
    return np.array(image).reshape(image.height, image.width, -1)


def jpeg_header(data):
    """
    The (height, width) of a JPEG file. None if the pixels of read_upright need Pillow: the file is truncated, has an
    EXIF orientation, is neither RGB nor grey with 8 bits, or is not a JPEG file.

    ITU-T Recommendation T.81, 1992, Annex B.
    """
    if bytes(data[:2]) != b'\xff\xd8' or b'\xff\xd9' not in bytes(data[-64:]):
        return None
    start, may_be_turned = 2, False
    while start + 10 <= len(data) and data[start] == 0xff:
        marker, length = data[start + 1], int.from_bytes(data[start + 2:start + 4])
        if marker in (0xc0, 0xc1, 0xc2):                                   # sequential or progressive Huffman coding
            precision, n_channels = data[start + 4], data[start + 9]
            height, width = (int.from_bytes(data[place:place + 2]) for place in (start + 5, start + 7))
            plain = precision == 8 and n_channels in CHANNELS and height and width
            return (height, width) if plain and not (may_be_turned and has_exif_rotation(data)) else None
        may_be_turned |= marker == 0xe1                                    # EXIF or XMP
        start += 2 + length
    return None


def has_exif_rotation(data):
    with Image.open(io.BytesIO(data), formats=['JPEG']) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1) != 1


@functools.cache
def jpeg_decoder():
    """torchvision's JPEG decoder, file [N] -> pixels [3 or 1, H, W], uint8; None if its pixels differ from Pillow's."""
    try:
        from torchvision.io import decode_jpeg  # deprecated; later versions may lack it
    except ImportError:
        return None
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (53, 41, 3), dtype=np.uint8))
    for image, subsampling in ((noise, '4:4:4'), (noise, '4:2:2'), (noise, '4:2:0'), (noise.convert('L'), '4:4:4')):
        file = io.BytesIO()
        image.save(file, 'JPEG', subsampling=subsampling)
        try:
            decoded = decode_jpeg(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        except RuntimeError:                                               # torchvision was built without libjpeg
            return None
        with Image.open(file, formats=['JPEG']) as reference:
            if not np.array_equal(decoded.permute(1, 2, 0), channels_last(reference)):
                return None
    return decode_jpeg
