"""Every image once per epoch, in groups of one class, with as many different classes per batch as possible."""
import itertools

import torch

from datasampler.sampling import ClassImages, classes_per_batch
from utilities.randomness import derive


class Sampler(torch.utils.data.Sampler):
    """
    The shuffled images of each class are split into groups of samples_per_class; if the last group is too small, it is
    filled with earlier images of the class. A batch is bs / samples_per_class groups. The groups of a class are spread
    evenly over the batches, so that a class repeats in a batch only if it has more groups than the epoch has batches.
    If the groups do not fill the last batches, further groups of random classes are added.

    An epoch is one pass over all images, or --iterations_per_epoch batches from consecutive passes. It is a function of
    the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        self.groups_per_batch, self.per_class = classes_per_batch(opt), opt.samples_per_class
        self.seed, self.epoch, self.of_class = opt.seed, 0, ClassImages(image_dict)
        self.n_groups = -(-self.of_class.sizes // self.per_class)                      # groups per class
        self.n_batches = -(-int(self.n_groups.sum()) // self.groups_per_batch)
        self.sampler_length = opt.iterations_per_epoch or self.n_batches

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        batches = itertools.chain.from_iterable(self.one_pass(generator) for _ in itertools.count())
        return itertools.islice(batches, self.sampler_length)

    def one_pass(self, generator):
        """Batches that contain every image at least once: a list of lists of indices."""
        sizes, starts = self.of_class.sizes, self.of_class.starts
        shuffled = torch.randperm(len(self.of_class.images), generator=generator)
        shuffled = shuffled[self.of_class.class_of[shuffled].argsort(stable=True)]     # sorted by class

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
