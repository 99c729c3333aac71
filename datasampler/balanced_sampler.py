# SPDX-License-Identifier: MIT
"""Every image once per epoch, in groups of one class, with as many different classes per batch as possible."""
import hashlib
import itertools

import torch

DISTINCT = 'groups'             # groups of images of a class; a class may have several groups


class Sampler(torch.utils.data.Sampler):
    """
    The shuffled images of each class are split into groups of samples_per_class; if the last group is too small, it is
    filled with earlier images of the class. A batch is bs / samples_per_class groups. The groups of a class are spread
    evenly over the batches, so that a class repeats in a batch only if it has more groups than the epoch has batches.
    If the groups do not fill the last batches, further groups of random classes are added.

    An epoch is one pass over all images, or --iterations_per_epoch batches from consecutive passes. It is a function of
    the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, samples_per_class=2, seed=0, iterations_per_epoch=None)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> sampler = Sampler(opt, image_dict, image_list)
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs % opt.samples_per_class:
            raise ValueError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.groups_per_batch = opt.bs // opt.samples_per_class
        self.per_class = opt.samples_per_class
        self.seed = opt.seed
        self.epoch = 0
        images = torch.tensor([index for images in image_dict.values() for _, index in images])
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.class_of = torch.empty_like(images)                                       # the class of each image
        self.class_of[images] = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)
        self.n_groups = -(-self.sizes // self.per_class)                               # groups per class
        self.n_batches = -(-int(self.n_groups.sum()) // self.groups_per_batch)
        self.sampler_length = opt.iterations_per_epoch or self.n_batches

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        batches = itertools.chain.from_iterable(self.one_pass(generator) for _ in itertools.count())
        return itertools.islice(batches, self.sampler_length)

    def one_pass(self, generator):
        """Batches that contain every image at least once: a list of lists of indices."""
        sizes, starts = self.sizes, self.starts
        shuffled = torch.randperm(len(self.class_of), generator=generator)
        shuffled = shuffled[self.class_of[shuffled].argsort(stable=True)]     # sorted by class

        n_groups = self.n_groups + self.extra_groups(generator).bincount(minlength=len(sizes))
        order = torch.randperm(len(sizes), generator=generator)
        classes = order.repeat_interleave(n_groups[order])                             # the class of each group
        numbers = torch.arange(len(classes)) - (n_groups[order].cumsum(0) - n_groups[order]).repeat_interleave(
            n_groups[order])                                                           # the group's number in its class
        members = numbers[:, None] * self.per_class + torch.arange(self.per_class)
        groups = shuffled[starts[classes, None] + members % sizes[classes, None]]
        # Group i goes to batch i modulo n_batches, so that consecutive groups of a class go to different batches.
        batches = groups.view(self.groups_per_batch, self.n_batches, -1).transpose(0, 1).flatten(1)
        return batches[torch.randperm(self.n_batches, generator=generator)].tolist()

    def extra_groups(self, generator):
        """The classes of the groups that fill the last batches; if possible, no class that all batches have."""
        n_missing = self.groups_per_batch * self.n_batches - int(self.n_groups.sum())
        n_free = (self.n_batches - self.n_groups).clamp(0, n_missing)
        room = torch.arange(len(self.n_groups)).repeat_interleave(n_free)
        room = room[torch.randperm(len(room), generator=generator)]
        everyone = [torch.randperm(len(self.n_groups), generator=generator) for _ in range(0, n_missing, len(n_free))]
        return torch.cat([room, *everyone])[:n_missing]


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1
