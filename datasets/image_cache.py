"""
Decoded images on disk, shared by the runs and data workers of a machine: --image_cache FOLDER.

A cache is a folder below FOLDER, of a name that tells what it holds: `pixels`, the uint8 RGB values of one image after
the other, and `index`, an int64 row (offset, height, width) per image. All processes map the same file into memory, and
so share the operating system's page cache. It is filled once, by whoever comes first. Pixels are safe on disk before
their row of the index is written, so that filling goes on after the last whole row, however it was stopped.
"""
import contextlib
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
from PIL import Image
from tqdm import tqdm

from datasets.base import read_image
from utilities import stopping
from utilities.errors import UserError

VERSION = 1                  # to be raised when read_image changes
CHUNK = 64                   # images that are decoded between two writes


class ImageCache:
    """
    Takes the place of read_image for `paths`, whatever their order and number of times.

    resize: what the pipelines begin with (transforms.shared): its results are stored; None: the images as they are.

    An image that cannot be read has a row of height 0, and is left to read_image, which says so. Raises UserError where
    the folder cannot be used, or the disk is too small.
    """

    def __init__(self, opt, paths, resize=None):
        paths = sorted(set(paths), key=str)
        self.folder = Path(opt.image_cache) / f'{opt.dataset}_{key(paths, opt.source_path, resize)}'
        self.rows = {path: row for row, path in enumerate(paths)}
        self.pixels = None                                             # mapped at the first image, once per process
        try:
            self.index = whole_rows(self.folder, len(paths))
            if len(self.index) < len(paths):
                self.index = fill(self.folder, paths, resize)
        except OSError as error:
            raise UserError(f'--image_cache {opt.image_cache}: {error.filename or self.folder}: {error.strerror}; '
                            'choose another folder, or leave the flag out') from None

    def __getstate__(self):
        return self.__dict__ | {'pixels': None}

    def __call__(self, path):
        offset, height, width = self.index[self.rows[path]].tolist()
        if height == 0:
            return read_image(path)
        if self.pixels is None:
            self.pixels = np.memmap(self.folder / 'pixels', np.uint8, 'r')
        return Image.fromarray(self.pixels[offset:offset + 3 * height * width].reshape(height, width, 3))

    def unreadable(self):
        """The paths that could not be read when the cache was filled."""
        return [path for path, row in self.rows.items() if self.index[row, 1] == 0]


def key(paths, source, resize):
    """Names what is stored: the files, by path below `source`, size and time of change, and what is done to them."""
    digest = hashlib.sha256(repr([VERSION, PIL.__version__, resize]).encode())
    source = str(Path(source))
    for path in paths:
        try:
            status = path.stat()
            state = status.st_size, status.st_mtime_ns
        except FileNotFoundError:                                      # --skip_bad_images leaves it out
            state = None
        digest.update(os.fsencode(f'{str(path).removeprefix(source).lstrip(os.sep)} {state}\n'))
    return digest.hexdigest()[:16]


def whole_rows(folder, n_images):
    """The index as far as it is consistent with itself and with the size of `pixels`, int64 [at most n_images, 3]."""
    try:
        index = np.fromfile(folder / 'index', '<i8')
        n_bytes = (folder / 'pixels').stat().st_size
    except FileNotFoundError:
        index, n_bytes = np.empty(0, '<i8'), 0
    index = index[:len(index) // 3 * 3].reshape(-1, 3)[:n_images]
    offsets, sizes = index[:, 0], 3 * index[:, 1] * index[:, 2]
    good = (index >= 0).all(axis=1) & (offsets == sizes.cumsum() - sizes) & (offsets + sizes <= n_bytes)
    return index if good.all() else index[:max(good.argmin() - 1, 0)]  # the row before may be the wrong one


def end_of(index):
    """The number of bytes of pixels that the index accounts for."""
    return int(index[-1, 0] + 3 * index[-1, 1] * index[-1, 2]) if len(index) else 0


def fill(folder, paths, resize):
    """Appends the images that are not yet in the cache, unless another process does; returns the whole index."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        index = whole_rows(folder, len(paths))
        if len(index) == len(paths):
            return index
        print(f'--image_cache: filling {folder}', flush=True)
        (folder / 'pixels').touch()
        with (open(folder / 'index', 'ab') as index_file, open(folder / 'pixels', 'r+b') as pixels_file,
              ThreadPoolExecutor() as pool,
              tqdm(initial=len(index), total=len(paths), desc='decoding images', disable=None) as bar):
            index_file.truncate(index.nbytes)
            pixels_file.seek(end_of(index))
            while len(index) < len(paths):
                stopping.check()
                images = list(pool.map(lambda path: decode(path, resize), paths[len(index):len(index) + CHUNK]))
                shapes = np.array([image.shape[:2] for image in images], '<i8')
                sizes = 3 * shapes.prod(axis=1)
                chunk = np.column_stack([end_of(index) + sizes.cumsum() - sizes, shapes])
                longer = np.concatenate([index, chunk])
                require_space(folder, end_of(longer) * len(paths) // len(longer) - end_of(index))
                for image in images:
                    pixels_file.write(image.tobytes())
                pixels_file.flush()
                os.fsync(pixels_file.fileno())
                index_file.write(chunk.tobytes())
                index_file.flush()
                index = longer
                bar.update(len(images))
        return index


@contextlib.contextmanager
def locked(folder):
    """While the block runs, this process is the only one in `folder`; the lock goes when the process does."""
    import fcntl  # here, since Windows has none

    with open(folder / 'lock', 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f'--image_cache: another process is filling {folder}; waiting for it', flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def decode(path, resize):
    """uint8 [H, W, 3]; [0, 0, 3] for an image that cannot be read."""
    try:
        image = read_image(path)
    except UserError:
        return np.empty((0, 0, 3), np.uint8)
    return np.asarray(resize(image) if resize else image)


def require_space(folder, n_bytes):
    """Raises UserError where less than `n_bytes`, which the images still to be stored are likely to take, is free."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f'--image_cache: {folder} will need about {n_bytes / 1e9:.3g} GB more, and {free / 1e9:.3g} GB '
                        'are free; choose another folder, or leave the flag out')
