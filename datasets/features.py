"""Data sets of features: a frozen backbone is applied to images once, and its output is kept in the cache folder."""
import contextlib
import hashlib
import os
import sys

import numpy as np
import torch

from datasets.base import as_pair
from records.checkpoint import checksum
from utilities.files import atomic, cache_folder

LIMIT = 4e9                                  # bytes of all files of features; the least recently used are removed first


class FeatureSet(torch.utils.data.Dataset):
    """An ImageSet whose batches have pooled features [B, F], of rows [N, F] on the CPU, in place of images."""

    def __init__(self, images, rows):
        self.images = images
        self.rows = rows

    def __getitems__(self, items):
        indices = torch.tensor([as_pair(item)[0] for item in items])
        return self.rows[indices], torch.from_numpy(self.images.labels)[indices], indices

    def loader(self, batches):
        """Yields (features [B, F], labels [B], indices [B]) for each list of items of an ImageSet."""
        return torch.utils.data.DataLoader(self, batch_sampler=batches, collate_fn=lambda batch: batch,
                                           generator=torch.Generator())           # does not draw from the global one


class FixedFeatures(dict):
    """
    {(ImageSet, its transform as text): FeatureSet}, as long as `network` does not train the layers that compute them.
    others: networks with the same backbone until it is trained, such as the moving average.
    """

    def __init__(self, network, *others):
        super().__init__()
        self.networks = (network, *others)

    def of(self, images, network=None):
        """
        The FeatureSet of an ImageSet; None if there is none, or if `network` is another network. Each call asks the
        trained network whether its backbone is still fixed; if not, all features are forgotten.
        """
        if not self.networks[0].has_fixed_features():
            self.clear()
        if network not in (None, *self.networks):
            return None
        return self.get((images, repr(images.transform)))


def file_of(opt, network, images, batches):
    """
    The file in the cache folder for the features of an ImageSet. Its name is a checksum of all that they depend on,
    including the batches of indices in which they are computed, which may change their last bits.
    """
    states = [os.stat(path) for path in images.paths]
    files = [*map(str, images.sources), *((state.st_size, state.st_mtime_ns) for state in states)]
    weights = network.backbone.state_dict() | {'mean': network.mean, 'std': network.std}
    settings = [opt.arch, opt.pool, network.input_size, network.bgr, images.transform, str(opt.device),
                torch.__version__, checksum(weights), files, batches]
    return cache_folder() / f'features_{hashlib.sha256(repr(settings).encode()).hexdigest()[:32]}.float32'


def read(file, shape):
    """The features of this shape, [N, F], in a file of write(); None if it does not exist or has another length."""
    with contextlib.suppress(OSError):
        rows = np.fromfile(file, np.float32)
        if rows.size == shape[0] * shape[1]:
            os.utime(file)                               # it was used just now
            return torch.from_numpy(rows).reshape(shape)
    return None


def write(file, rows):
    """Writes features [N, F] as float32; prints a note if this is not possible, or if they exceed the LIMIT."""
    try:
        if rows.nbytes > LIMIT:
            raise OSError(f'they need {rows.nbytes / 1e9:.1f} GB, and at most {LIMIT / 1e9:g} GB are kept')
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file) as temporary:
            temporary.write_bytes(rows.numpy())          # tofile() does not say that a disk is full
    except OSError as error:
        print(f'Note: the features are not kept for further runs: {error}', file=sys.stderr)
    with contextlib.suppress(OSError):                   # another run may remove the same files
        # temporary files of killed runs count as well
        files = sorted(file.parent.glob('*features_*'), key=lambda path: path.stat().st_mtime)
        while sum(path.stat().st_size for path in files) > LIMIT:
            files.pop(0).unlink()
