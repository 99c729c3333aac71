"""Plain shuffling of the images, regardless of their classes: large classes appear more often than small ones."""
import itertools

import torch

from datasampler.sampling import chunks_of_permutations
from utilities.errors import UserError
from utilities.randomness import derive

DISTINCT = 'images'             # no image repeats in a batch


class Sampler(torch.utils.data.Sampler):
    """
    The batches are consecutive chunks of the shuffled images, so no image repeats within a batch or within
    n_images // bs batches, the length of an epoch unless --iterations_per_epoch is given. A batch need not
    contain a positive pair. An epoch is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs > len(image_list):
            raise UserError(f'--bs {opt.bs}: image_random samples without replacement, but there are only '
                            f'{len(image_list)} training images')
        self.bs, self.n_images, self.seed, self.epoch = opt.bs, len(image_list), opt.seed, 0
        self.sampler_length = opt.iterations_per_epoch or len(image_list) // opt.bs

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        batches = chunks_of_permutations(self.n_images, self.bs, generator)
        for batch in itertools.islice(batches, self.sampler_length):
            yield batch.tolist()
