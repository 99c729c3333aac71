"""
How well Evaluate_Network.py RUN overlap finds altered copies: copies of test photos, altered in five ways, are planted
among the training photos, and precision and recall of the pairs are printed for several thresholds of the similarity.
It takes the flags of main.py that select data and network.

OMP_NUM_THREADS=1 python -m benchmarks.overlap --dataset folder --source_path PHOTOS --arch ...
"""
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import configuration
import evaluation
import parts
from datasets.base import ImageSet, ImageTable, read_image
from retrieval import overlap

N_COPIES = 250
THRESHOLDS = 0.7, 0.75, 0.8, 0.85, 0.9, 0.95


def cropped(image, fraction):
    width, height = image.size
    return image.crop(tuple(round(part) for part in (fraction * width, fraction * height, (1 - fraction) * width,
                                                     (1 - fraction) * height)))


ALTERED = {
    'JPEG, quality 50': lambda image: image,
    'half the size': lambda image: image.resize((image.width // 2, image.height // 2), Image.BICUBIC),
    '5 % cut off each side': lambda image: cropped(image, 0.05),
    '10 % cut off each side': lambda image: cropped(image, 0.1),
    'mirrored': lambda image: image.transpose(Image.FLIP_LEFT_RIGHT),
}


def main():
    torch.set_num_threads(1)
    opt = configuration.parse(sys.argv[1:])
    built = parts.prepare(opt)
    train, test = built.data.evaluation['train'], built.data.evaluation['test']
    sources = np.random.default_rng(0).permutation(len(test))[:N_COPIES]
    with tempfile.TemporaryDirectory() as folder:
        planted = [Path(folder) / f'{kind}_{source}.jpg' for kind in range(len(ALTERED)) for source in sources]
        for path, (alter, source) in zip(planted, ((alter, source) for alter in ALTERED.values()
                                                   for source in sources), strict=True):
            photo = read_image(test.paths[source])
            alter(photo).save(path, quality=50 if path.name.startswith('0') else 90)
        table = ImageTable(planted, ['planted'] * len(planted))
        sets = {'train': train, 'test': test,
                'planted': ImageSet(table, range(len(planted)), test.transform, test.read)}
        found = [evaluation.embed(opt, built.model, images, name, features=True).embeddings.numpy()
                 for name, images in sets.items()]
    train, test, planted = overlap.directions(found)
    own = (test[sources] * planted.reshape(len(ALTERED), len(sources), -1)).sum(axis=2)
    others = np.array([similarity for *_, similarity, _ in overlap.overlap(
        test, train, [None] * len(test), [None] * len(train), THRESHOLDS[0])[0]])
    print(f'{len(train):,} x {len(test):,} pairs of photos without a copy; {len(sources)} altered copies of each kind')
    print(f'| threshold | such pairs | {" | ".join(ALTERED)} | precision |')
    for threshold in THRESHOLDS:
        wrong, right = (others >= threshold).sum(), (own >= threshold).sum()
        recalls = ' | '.join(f'{recall:.2f}' for recall in (own >= threshold).mean(axis=1))
        print(f'| {threshold} | {wrong:,} | {recalls} | {right / max(1, wrong + right):.2f} |')


if __name__ == '__main__':
    main()
