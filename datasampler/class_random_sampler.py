"""SPC-n of Roth et al., ICML 2020: a batch is bs / samples_per_class random classes with as many samples each."""
import itertools

import torch

from datasampler.draws import classes_per_batch, deal
from utilities.randomness import derive

DISTINCT = 'classes'            # the groups of a batch are of different classes


class Sampler(torch.utils.data.Sampler):
    """
    Classes are drawn without replacement within a batch, and so are the samples of a class; a class that has fewer than
    samples_per_class gives each of its samples once before any comes again. An epoch has n_images // bs batches;
    with --data_cover_epoch, as many as visit each class once (the last one is filled up with classes that come a second
    time). --iterations_per_epoch has priority. An epoch is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        self.n_classes, self.per_class = classes_per_batch(opt, len(image_dict)), opt.samples_per_class
        self.seed, self.epoch, self.cover_epoch = opt.seed, 0, opt.data_cover_epoch
        self.indices = [torch.tensor([index for _, index in images]) for images in image_dict.values()]
        length = -(-len(image_dict) // self.n_classes) if self.cover_epoch else max(1, len(image_list) // opt.bs)
        self.sampler_length = opt.iterations_per_epoch or length

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        draws = deal(len(self.indices), self.n_classes, generator) if self.cover_epoch else self.draws(generator)
        for classes in itertools.islice(draws, self.sampler_length):
            yield torch.cat([self.draw(self.indices[c], generator) for c in classes.tolist()]).tolist()

    def draws(self, generator):
        while True:
            yield torch.randperm(len(self.indices), generator=generator)[:self.n_classes]

    def draw(self, indices, generator):
        """samples_per_class of `indices`, as evenly as their number allows."""
        n_rounds = -(-self.per_class // len(indices))
        places = [torch.randperm(len(indices), generator=generator) for _ in range(n_rounds)]
        return indices[torch.cat(places)[:self.per_class]]
