# SPDX-License-Identifier: MIT
"""Plain shuffling of the images, regardless of their classes: large classes appear more often than small ones."""
import hashlib
import itertools

import torch

DISTINCT = 'images'             # no image repeats in a batch


class Sampler(torch.utils.data.Sampler):
    """
    The batches are consecutive chunks of the shuffled images, so no image repeats within a batch or within
    n_images // bs batches, the length of an epoch unless --iterations_per_epoch is given. A batch need not
    contain a positive pair. An epoch is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].

    >>> import types
    >>> opt = types.SimpleNamespace(bs=5, seed=0, iterations_per_epoch=None)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> sampler = Sampler(opt, image_dict, image_list)
    >>> [len(batch) for batch in sampler]
    [5, 5]
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs > len(image_list):
            raise ValueError(f'--bs {opt.bs}: image_random samples without replacement, but there are only '
                             f'{len(image_list)} training images')
        self.bs = opt.bs
        self.n_images = len(image_list)
        self.seed = opt.seed
        self.epoch = 0
        self.sampler_length = opt.iterations_per_epoch or len(image_list) // opt.bs

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        batches = chunks_of_permutations(self.n_images, self.bs, generator)
        for batch in itertools.islice(batches, self.sampler_length):
            yield batch.tolist()


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1


def chunks_of_permutations(n, k, generator):
    """
    Yields, without end, k <= n distinct integers from 0 to n - 1, int64 [k]: consecutive chunks of one random
    permutation after another. A chunk that spans two permutations skips numbers of the second that it already contains.
    """
    remaining = torch.empty(0, dtype=torch.int64)
    while True:
        if len(remaining) < k:
            following = torch.randperm(n, generator=generator)
            remaining = torch.cat([remaining, following[torch.isin(following, remaining).int().argsort(stable=True)]])
        yield remaining[:k]
        remaining = remaining[k:]
