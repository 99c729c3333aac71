"""
Decoded images on disk, shared by all runs and data workers of a machine: --image_cache FOLDER.

A cache is a folder below FOLDER whose name has a hash of its content. It contains `pixels`, the uint8 values of all
images one after the other, and `index`, an int64 row (offset, height, width, channels, checksum) per image. Grey images
have one channel, all others three. All processes map the same file into memory and so share the operating system's page
cache. The first process that needs the cache fills it. Pixels are flushed to disk before their row of the index is
written, so that filling can continue after the last complete row, however it was stopped.
"""
import hashlib
import math
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
from tqdm import tqdm

from datasets.boxes import image_path, open_photo, read_upright
from datasets.decoding import CHANNELS, Photo, channels_last, is_jpeg
from utilities import stopping
from utilities.errors import UserError
from utilities.files import locked

VERSION = 3                  # raise it when read_upright or the format changes
COLUMNS = 5                  # numbers per row of the index
SAMPLE = 50                  # number of images to compare with their checksums when a cache is opened
CHUNK = 64                   # number of images decoded between two writes


class ImageCache:
    """
    Replaces open_photo for `paths`, which may repeat and be in any order. They may be Boxes, whose pixels are stored.

    resize: the resizing with which all pipelines begin (transforms.shared): resized images are stored; None: images are
            stored at their own size.

    An image that cannot be read has a row with height 0; reading it calls open_photo, which raises the error. Raises
    UserError if the folder cannot be used, the disk is too small, or a checksum does not fit. An image's checksum is
    compared when it is read. When the cache is opened, checksums are compared for a random sample of images (by
    --seed).
    """

    def __init__(self, opt, paths, resize=None):
        paths = sorted(set(paths), key=str)
        self.folder = Path(opt.image_cache) / f'{opt.dataset}_{key(paths, opt.source_path, resize)}'
        self.rows = {path: row for row, path in enumerate(paths)}
        self.limit = opt.max_megapixels
        self.pixels = None                                             # mapped into memory when the first image is read
        self.sums = {}                                                 # {row: word_sum of pixels whose checksum fitted}
        try:
            self.index = complete_rows(self.folder, len(paths))
            if len(self.index) < len(paths):
                self.index = fill(self.folder, paths, resize, self.limit)
            rows = np.random.default_rng(opt.seed).permutation(len(paths))
            self.check(sorted(rows[:SAMPLE]), paths)
        except OSError as error:
            raise UserError(f'--image_cache {opt.image_cache}: {error.filename or self.folder}: {error.strerror}; '
                            'choose another folder, or leave the flag out') from None

    def __getstate__(self):
        return self.__dict__ | {'pixels': None, 'sums': {}}

    def __call__(self, path):
        row = self.rows[path]
        offset, *shape, expected = self.index[row].tolist()
        if self.pixels is None:
            # mapped copy-on-write: torch warns of memory that it cannot write to
            self.pixels = np.memmap(self.folder / 'pixels', np.uint8, 'c')
        pixels = self.pixels[offset:offset + math.prod(shape)]
        found = word_sum(pixels, offset)
        if self.sums.get(row) != found:                                # the CRC-32 below takes 15 times as long
            if checksum(self.index[row, :-1], pixels) != expected:
                raise damage(f'{path} is damaged in {self.folder}')
            self.sums[row] = found
        if 0 in shape:
            return open_photo(path, self.limit)
        pixels = pixels.reshape(shape)
        return Photo(*shape[:2], lambda scale: pixels, is_jpeg(image_path(path)))

    def check(self, rows, paths):
        """Raises UserError if images of these rows are not as they were written."""
        damaged = []
        for row in rows:
            offset, *shape, expected = self.index[row].tolist()
            pixels = np.fromfile(self.folder / 'pixels', np.uint8, math.prod(shape), offset=offset)
            if checksum(self.index[row, :-1], pixels) != expected:
                damaged.append(paths[row])
        if damaged:
            raise damage(f'{len(damaged)} of {len(rows)} images looked at in {self.folder} are damaged, the first: '
                         f'{damaged[0]}')

    def unreadable(self):
        """The paths that could not be read when the cache was filled."""
        return [path for path, row in self.rows.items() if self.index[row, 1] == 0]


def damage(what):
    return UserError(f'--image_cache: {what}. Remove that folder; the next run fills it again')


def key(paths, source, resize):
    """
    A hash of the cache's content: each file's path below `source` with its box, if it has one, size and modification
    time, and the resizing.
    """
    digest = hashlib.sha256(repr([VERSION, PIL.__version__, resize]).encode())
    source = str(Path(source))
    for path in paths:
        try:
            status = image_path(path).stat()
            state = status.st_size, status.st_mtime_ns
        except OSError:                                                # --skip_bad_images leaves the file out
            state = None
        digest.update(os.fsencode(f'{str(path).removeprefix(source).lstrip(os.sep)} {state}\n'))
    return digest.hexdigest()[:16]


def complete_rows(folder, n_images):
    """The index up to the first row that contradicts earlier rows or the size of `pixels`, int64 [<= n_images, 5]."""
    try:
        index = np.fromfile(folder / 'index', '<i8')
        n_bytes = (folder / 'pixels').stat().st_size
    except FileNotFoundError:
        index, n_bytes = np.empty(0, '<i8'), 0
    index = index[:len(index) // COLUMNS * COLUMNS].reshape(-1, COLUMNS)[:n_images]
    offsets, sizes = index[:, 0], image_bytes(index)
    valid = (index >= 0).all(axis=1) & (offsets == sizes.cumsum() - sizes) & (offsets + sizes <= n_bytes)
    valid &= np.isin(index[:, 3], CHANNELS)
    return index if valid.all() else index[:max(valid.argmin() - 1, 0)]    # the broken row may be the one before


def checksum(row, pixels):
    """CRC-32 of an image's row of the index, int64 [4] (without the checksum), and its pixels."""
    return zlib.crc32(pixels, zlib.crc32(row.tobytes()))


def word_sum(pixels, offset):
    """
    The sum of the 64-bit words of uint8 [N] at `offset` of a page, and the bytes before and after these words. A
    changed bit always changes the result; equal results do not prove equal pixels.
    """
    start = -offset % 8
    stop = start + (len(pixels) - start) // 8 * 8
    if stop <= start:
        return 0, pixels.tobytes()
    return int(pixels[start:stop].view('<u8').sum()), pixels[:start].tobytes() + pixels[stop:].tobytes()


def image_bytes(index):
    """The number of bytes of each image."""
    return index[:, 1:4].prod(axis=1)


def total_bytes(index):
    """The number of bytes of `pixels` that the rows of the index cover."""
    return int(index[-1, 0] + image_bytes(index)[-1]) if len(index) else 0


def fill(folder, paths, resize, limit=None):
    """Adds the missing images to the cache, or waits for a process that does; returns the complete index."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / 'lock', f'--image_cache: another process is filling {folder}; waiting for it'):
        index = complete_rows(folder, len(paths))
        if len(index) == len(paths):
            return index
        print(f'--image_cache: filling {folder}', flush=True)
        (folder / 'pixels').touch()
        with (open(folder / 'index', 'ab') as index_file, open(folder / 'pixels', 'r+b') as pixels_file,
              ThreadPoolExecutor() as pool,
              tqdm(initial=len(index), total=len(paths), desc='decoding images', disable=None) as bar):
            index_file.truncate(index.nbytes)
            pixels_file.seek(total_bytes(index))
            while len(index) < len(paths):
                stopping.check()
                images = list(pool.map(lambda path: decode(path, resize, limit), paths[len(index):len(index) + CHUNK]))
                sizes = np.array([image.size for image in images])
                offsets = total_bytes(index) + sizes.cumsum() - sizes
                rows = np.column_stack([offsets, [image.shape for image in images]]).astype('<i8')
                contents = [image.tobytes() for image in images]
                chunk = np.column_stack([rows, list(map(checksum, rows, contents))])
                longer = np.concatenate([index, chunk])
                require_space(folder, total_bytes(longer) * len(paths) // len(longer) - total_bytes(index))
                for content in contents:
                    pixels_file.write(content)
                pixels_file.flush()
                os.fsync(pixels_file.fileno())
                index_file.write(chunk.tobytes())
                index_file.flush()
                index = longer
                bar.update(len(images))
        return index


def decode(path, resize, limit=None):
    """uint8 [H, W, 3 or 1], or [0, 0, 3] for an image that cannot be read."""
    try:
        image = read_upright(path, limit)
    except UserError:
        return np.empty((0, 0, 3), np.uint8)
    return channels_last(resize(image) if resize else image)


def require_space(folder, n_bytes):
    """Raises UserError if fewer than `n_bytes`, the estimate for the remaining images, are free on the disk."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f'--image_cache: {folder} will need about {n_bytes / 1e9:.3g} GB more, and {free / 1e9:.3g} GB '
                        'are free; choose another folder, or leave the flag out')
