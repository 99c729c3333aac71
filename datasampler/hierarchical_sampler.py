"""Batches from a few super-classes each, so that many negatives are similar to the anchor, as two bicycles are."""
import torch

from datasampler.sampling import ClassImages, classes_per_batch
from utilities.errors import UserError
from utilities.randomness import derive

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
    """

    def __init__(self, opt, image_dict, image_list, superclasses):
        self.n_classes, self.per_class = classes_per_batch(opt, len(image_dict)), opt.samples_per_class
        if None in superclasses:
            raise UserError(f'--data_sampler hierarchical: --dataset {opt.dataset} has no super-classes; '
                            'online_products, inshop and omniglot have them, and your own images may (docs/data.md)')
        names = {name: number for number, name in enumerate(sorted(set(superclasses)))}
        if opt.data_hierarchical_superclasses > len(names):
            raise UserError(f'--data_hierarchical_superclasses {opt.data_hierarchical_superclasses}: the training '
                            f'classes belong to only {len(names)}')
        self.n_superclasses, self.seed, self.epoch = opt.data_hierarchical_superclasses, opt.seed, 0
        self.of_class = ClassImages(image_dict)
        self.superclass = torch.tensor([names[name] for name in superclasses])        # [C]
        self.sizes = self.superclass.bincount()                                             # classes per super-class
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        for _ in range(self.sampler_length):
            yield self.of_class.sample(self.classes(generator), self.per_class, generator).flatten().tolist()

    def classes(self, generator):
        """int64 [n_classes]: one class of each sampled super-class in turn, as long as it has any left."""
        order = torch.randperm(len(self.sizes), generator=generator)
        n_needed = int((self.sizes[order].cumsum(0) < self.n_classes).sum()) + 1
        order = order[:max(self.n_superclasses, n_needed)]
        rank = torch.full_like(self.sizes, -1)
        rank[order] = torch.arange(len(order))
        classes = torch.randperm(len(self.superclass), generator=generator)
        classes = classes[rank[self.superclass[classes]] >= 0]
        classes = classes[rank[self.superclass[classes]].argsort(stable=True)]         # sorted by super-class
        sizes = self.sizes[order]
        turn = torch.arange(len(classes)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return classes[turn.argsort(stable=True)[:self.n_classes]]
