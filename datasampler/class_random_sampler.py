# SPDX-License-Identifier: MIT
"""
SPC-n of Roth et al., ICML 2020: bs / samples_per_class random classes, samples_per_class images of each.

Differs: The public code samples classes and images with replacement, so that a class could repeat in a batch, and an
image could be its own positive.
"""
import hashlib
import itertools

import torch

FLAGS = {'cover_epoch': {'default': False, 'help': 'class_random: visit every class once per epoch'}}
DISTINCT = 'classes'            # no class repeats in a batch


class Sampler(torch.utils.data.Sampler):
    """
    Within a batch, classes are sampled without replacement, and so are the images of a class; a class of fewer than
    samples_per_class images repeats one only after using all. An epoch has n_images // bs batches. With
    --data_cover_epoch, it visits each class once instead, and repeats classes only to fill the last batch.
    --iterations_per_epoch overrides both. An epoch is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, samples_per_class=2, seed=0, iterations_per_epoch=None,
    ...                             data_cover_epoch=False)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> sampler = Sampler(opt, image_dict, image_list)
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs % opt.samples_per_class:
            raise ValueError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.n_classes = opt.bs // opt.samples_per_class
        self.per_class = opt.samples_per_class
        if self.n_classes > len(image_dict):
            raise ValueError(f'--bs {opt.bs} with --samples_per_class {self.per_class} needs {self.n_classes} classes '
                             f'per batch, but there are only {len(image_dict)} training classes; lower --bs or raise '
                             '--samples_per_class')
        self.seed = opt.seed
        self.epoch = 0
        self.cover_epoch = opt.data_cover_epoch
        self.indices = [torch.tensor([index for _, index in images]) for images in image_dict.values()]
        length = -(-len(image_dict) // self.n_classes) if self.cover_epoch else max(1, len(image_list) // opt.bs)
        self.sampler_length = opt.iterations_per_epoch or length

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        choose = chunks_of_permutations if self.cover_epoch else independent_choices
        for classes in itertools.islice(choose(len(self.indices), self.n_classes, generator), self.sampler_length):
            yield torch.cat([self.sample(self.indices[c], generator) for c in classes.tolist()]).tolist()

    def sample(self, indices, generator):
        """samples_per_class random `indices`; if these are too few, each is repeated about equally often."""
        n_rounds = -(-self.per_class // len(indices))
        order = torch.cat([torch.randperm(len(indices), generator=generator) for _ in range(n_rounds)])
        return indices[order[:self.per_class]]


def independent_choices(n, k, generator):
    """Yields, without end, k <= n distinct integers from 0 to n - 1, int64 [k], each time sampled from all of them."""
    while True:
        yield torch.randperm(n, generator=generator)[:k]


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
