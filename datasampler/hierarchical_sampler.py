# SPDX-License-Identifier: MIT
"""Batches from a few super-classes each, so that many negatives are similar to the anchor, as two bicycles are."""
import hashlib

import torch

DISTINCT = 'classes'            # no class repeats in a batch
REQUIRES_HIERARCHY = True       # Sampler(opt, image_dict, image_list, superclasses)
FLAGS = {'hierarchical_superclasses': {
    'default': 2, 'at_least': 1,
    'help': 'hierarchical: number of super-classes per batch; more if these have too few classes'}}


class Sampler(torch.utils.data.Sampler):
    """
    For each batch, --data_hierarchical_superclasses super-classes are sampled uniformly without replacement, or more if
    these have too few classes together. From them come bs / samples_per_class classes, evenly as far as possible, and
    samples_per_class images of each class, both without replacement; a class of fewer than samples_per_class images
    repeats one only after using all. An epoch has n_images // bs batches, or --iterations_per_epoch, and is a function
    of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; superclasses: the super-class of each class, in
    the order of image_dict.

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, samples_per_class=2, seed=0, iterations_per_epoch=None,
    ...                             data_hierarchical_superclasses=2)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> sampler = Sampler(opt, image_dict, image_list, ['bird', 'bird', 'fish'])
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list, superclasses):
        if None in superclasses:
            raise ValueError('--data_sampler hierarchical needs the super-class of each training class, and there are '
                             'none here: docs/data.md says which data sets have them (with --unsupervised, none has)')
        if opt.bs % opt.samples_per_class:
            raise ValueError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.n_classes = opt.bs // opt.samples_per_class
        self.per_class = opt.samples_per_class
        if self.n_classes > len(image_dict):
            raise ValueError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} needs {self.n_classes} '
                             f'classes per batch, but there are only {len(image_dict)} training classes; lower --bs '
                             'or raise --samples_per_class')
        names = {name: number for number, name in enumerate(sorted(set(superclasses)))}
        if opt.data_hierarchical_superclasses > len(names):
            raise ValueError(f'--data_hierarchical_superclasses {opt.data_hierarchical_superclasses}: the training '
                             f'classes belong to only {len(names)}')
        self.n_superclasses = opt.data_hierarchical_superclasses
        self.seed = opt.seed
        self.epoch = 0
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])  # by class
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.superclass = torch.tensor([names[name] for name in superclasses])        # [C]
        self.n_inside = self.superclass.bincount()                                     # classes per super-class
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        for _ in range(self.sampler_length):
            yield self.sample(self.classes(generator), self.per_class, generator).flatten().tolist()

    def classes(self, generator):
        """int64 [n_classes]: one class of each sampled super-class in turn, as long as it has any left."""
        order = torch.randperm(len(self.n_inside), generator=generator)
        n_needed = int((self.n_inside[order].cumsum(0) < self.n_classes).sum()) + 1
        order = order[:max(self.n_superclasses, n_needed)]
        rank = torch.full_like(self.n_inside, -1)
        rank[order] = torch.arange(len(order))
        classes = torch.randperm(len(self.superclass), generator=generator)
        classes = classes[rank[self.superclass[classes]] >= 0]
        classes = classes[rank[self.superclass[classes]].argsort(stable=True)]         # sorted by super-class
        n_inside = self.n_inside[order]
        turn = torch.arange(len(classes)) - (n_inside.cumsum(0) - n_inside).repeat_interleave(n_inside)
        return classes[turn.argsort(stable=True)[:self.n_classes]]

    def sample(self, classes, n, generator):
        """classes int64 [K] -> n random images of each, [K, n]; no image of a class repeats before all are used."""
        sizes = self.sizes[classes, None]
        keys = torch.rand(len(classes), int(sizes.max()), generator=generator)
        keys = keys.masked_fill(torch.arange(keys.shape[1]) >= sizes, -2)           # no such image
        order = keys.topk(min(n, keys.shape[1]), dim=1).indices
        return self.images[self.starts[classes, None] + order.gather(1, torch.arange(n) % sizes)]


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1
