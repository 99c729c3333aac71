"""Super-classes first: a batch is of a few super-classes, so that its negatives are alike, as two bicycles are."""
import torch

from datasampler.draws import ClassImages, classes_per_batch
from utilities.errors import UserError
from utilities.randomness import derive

DISTINCT = 'classes'            # the groups of a batch are of different classes
REQUIRES_HIERARCHY = True       # Sampler(opt, image_dict, image_list, superclasses)


class Sampler(torch.utils.data.Sampler):
    """
    A batch draws --data_hierarchical_superclasses super-classes, uniformly, without replacement, and more where these
    have too few classes together; from them bs / samples_per_class classes, as evenly as they have them, and of each
    class samples_per_class images, both without replacement (small classes give each image once before any comes
    again). An epoch has n_images // bs batches, or --iterations_per_epoch, and is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; superclasses: of each class, in their order.
    """

    def __init__(self, opt, image_dict, image_list, superclasses):
        self.n_classes, self.per_class = classes_per_batch(opt, len(image_dict)), opt.samples_per_class
        if None in superclasses:
            raise UserError(f'--data_sampler hierarchical: --dataset {opt.dataset} has no super-classes; '
                            'online_products, inshop and omniglot have')
        names = {name: number for number, name in enumerate(sorted(set(superclasses)))}
        if opt.data_hierarchical_superclasses > len(names):
            raise UserError(f'--data_hierarchical_superclasses {opt.data_hierarchical_superclasses}: the training '
                            f'classes are of {len(names)}')
        self.n_superclasses, self.seed, self.epoch = opt.data_hierarchical_superclasses, opt.seed, 0
        self.of_class = ClassImages(image_dict)
        self.superclass = torch.tensor([names[name] for name in superclasses])        # [C]
        self.sizes = self.superclass.bincount()                                             # classes of each
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        for _ in range(self.sampler_length):
            yield self.of_class.draw(self.classes(generator), self.per_class, generator).flatten().tolist()

    def classes(self, generator):
        """int64 [n_classes]: in turn one of each drawn super-class, as long as it has any left."""
        order = torch.randperm(len(self.sizes), generator=generator)
        n_needed = int((self.sizes[order].cumsum(0) < self.n_classes).sum()) + 1
        order = order[:max(self.n_superclasses, n_needed)]
        place = torch.full_like(self.sizes, -1)
        place[order] = torch.arange(len(order))
        classes = torch.randperm(len(self.superclass), generator=generator)
        classes = classes[place[self.superclass[classes]] >= 0]
        classes = classes[place[self.superclass[classes]].argsort(stable=True)]        # super-class after super-class
        sizes = self.sizes[order]
        turn = torch.arange(len(classes)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return classes[turn.argsort(stable=True)[:self.n_classes]]
