"""
Images per second of one core, from the file to the batch, augmented by random crops and flips at 224 pixels, compared
with the usual pipelines: Pillow with torchvision's transforms v2, and with timm's; torchvision's decoder with v2. All
run in turn in one process with one thread, on the same crops. Ours gives uint8 images, the others normalised float32.

OMP_NUM_THREADS=1 taskset -c 0 python -m benchmarks.loading
"""
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import PIL
import timm
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

import configuration
import datasets
from architectures.embedding_network import IMAGENET_MEAN, IMAGENET_STD
from datasets import decoding
from datasets.loading import Loader
from utilities.text_tables import markdown

SIZE = 224
BATCH = 16


def write_photos(folder, n_images, n_tiles, side):
    """Files of n_tiles x n_tiles random parts of scikit-learn's two photos, each scaled to `side` x 3/4 `side`."""
    random = np.random.default_rng(0)
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    for i in range(n_images):
        whole = Image.new('RGB', (side * n_tiles, side * 3 // 4 * n_tiles))
        for tile in range(n_tiles ** 2):
            photo = photos[random.integers(2)]
            width = int(random.integers(400, 560))
            left = random.integers(640 - width + 1)
            top = random.integers(427 - width * 3 // 4 + 1)
            part = photo.resize((side, side * 3 // 4), box=(left, top, left + width, top + width * 3 // 4))
            whole.paste(part, (side * (tile % n_tiles), side * 3 // 4 * (tile // n_tiles)))
        whole.save(folder / f'{i:03d}.jpg', quality=92)


# {name: number of images; number of tiles, and width of each}
KINDS = {'photos of 500 x 375': (48, 1, 500), 'photos of 2,000 x 1,500': (8, 2, 1000)}
ROUNDS = 9                                             # timed passes of each pipeline


class Files(torch.utils.data.Dataset):
    """A data set of the usual kind: files, and a function that loads one, here with the crop that belongs to a seed."""

    def __init__(self, paths, load):
        self.paths = paths
        self.load = load

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        index, seed = item
        torch.default_generator.manual_seed(seed)
        return self.load(self.paths[index]), 0, index


def usual_pipelines():
    """{name: function path -> normalised float32 image}, the pipelines to compare with."""
    augment = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    of_timm = timm.data.create_transform(SIZE, is_training=True, interpolation='bilinear', color_jitter=None)
    return {'Pillow, v2': v2.Compose([read_by_pillow, *augment, v2.ToImage(), *normalise]),
            'Pillow, timm': v2.Compose([read_by_pillow, of_timm]),
            'torchvision, v2': v2.Compose([read_by_torchvision, *augment, *normalise])}


def read_by_pillow(path):
    return decoding.open_image(path).convert('RGB')


def read_by_torchvision(path):
    return decode_image(read_file(str(path)), ImageReadMode.RGB)


def pipelines(source):
    """{name: data set}"""
    opt = configuration.parse(['--dataset', 'folder', '--source_path', str(source), '--split_scheme', 'half',
                               '--test_size', '0'])
    opt.device = torch.device('cpu')
    paths = sorted(source.glob('images/*/*'))
    found = {name: Files(paths, load) for name, load in usual_pipelines().items()}
    found['ours'] = datasets.select(opt, SIZE).train
    return found


def measure(folder, kind):
    """{name: median processor time per image in seconds}. Each round has other crops, the same for all pipelines."""
    source = Path(folder) / kind
    (source / 'images' / 'class').mkdir(parents=True)
    write_photos(source / 'images' / 'class', *KINDS[kind])
    sets = pipelines(source)
    batches = []
    n_images = len(next(iter(sets.values())))
    functions = {name: partial(list, Loader(images, batch_sampler=batches)) for name, images in sets.items()}
    times = {name: [] for name in functions}
    for number in range(ROUNDS):
        items = [(i, 1000 * i + number) for i in range(n_images)]
        batches[:] = [items[start:start + BATCH] for start in range(0, n_images, BATCH)]
        for name, function in functions.items():
            began = time.process_time()
            function()
            times[name].append((time.process_time() - began) / n_images)
    return {name: median(taken) for name, taken in times.items()}


def main():
    torch.set_num_threads(1)
    print(f'torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}; processor time '
          f'per image, median of {ROUNDS} interleaved passes')
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            medians = measure(folder, kind)
            peer = min(medians[name] for name in usual_pipelines())
            print(f'\n{kind}\n' + markdown(['', 'ms', 'images/s', 'x the fastest peer'], [
                [name, f'{seconds * 1e3:.2f}', f'{1 / seconds:.0f}', f'{peer / seconds:.2f}']
                for name, seconds in medians.items()]), flush=True)


if __name__ == '__main__':
    main()
