"""SPC-n of Roth et al., ICML 2020: a batch is bs / samples_per_class random classes with as many samples each."""
import torch

from utilities.errors import UserError
from utilities.randomness import derive


class Sampler(torch.utils.data.Sampler):
    """
    Classes are drawn without replacement within a batch, and so are the samples of a class; a class that has fewer than
    samples_per_class gives each of its samples once before any comes again. An epoch has n_images // bs batches, or
    --iterations_per_epoch, and is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs % opt.samples_per_class:
            raise UserError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.n_classes, self.per_class = opt.bs // opt.samples_per_class, opt.samples_per_class
        if self.n_classes > len(image_dict):
            raise UserError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} takes {self.n_classes} '
                            f'classes a batch, but {len(image_dict)} train; lower --bs or raise --samples_per_class')
        self.seed, self.epoch = opt.seed, 0
        self.indices = [torch.tensor([index for _, index in images]) for images in image_dict.values()]
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        for _ in range(self.sampler_length):
            classes = torch.randperm(len(self.indices), generator=generator)[:self.n_classes].tolist()
            yield torch.cat([self.draw(self.indices[c], generator) for c in classes]).tolist()

    def draw(self, indices, generator):
        """samples_per_class of `indices`, as evenly as their number allows."""
        n_rounds = -(-self.per_class // len(indices))
        places = [torch.randperm(len(indices), generator=generator) for _ in range(n_rounds)]
        return indices[torch.cat(places)[:self.per_class]]
