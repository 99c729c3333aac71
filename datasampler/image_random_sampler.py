"""Every image alike, whatever its class: the plain shuffle. Large classes come up more often than small ones."""
import itertools

import torch

from datasampler.draws import deal
from utilities.errors import UserError
from utilities.randomness import derive

DISTINCT = 'images'             # no two of a batch are the same


class Sampler(torch.utils.data.Sampler):
    """
    The shuffled images, dealt out: no image twice within a batch, nor within n_images // bs batches, an epoch's length
    unless --iterations_per_epoch says otherwise. Nothing promises a positive pair. An epoch is a function of the seed
    and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs > len(image_list):
            raise UserError(f'--bs {opt.bs}: image_random draws different images, but {len(image_list)} train')
        self.bs, self.n_images, self.seed, self.epoch = opt.bs, len(image_list), opt.seed, 0
        self.sampler_length = opt.iterations_per_epoch or len(image_list) // opt.bs

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        for batch in itertools.islice(deal(self.n_images, self.bs, generator), self.sampler_length):
            yield batch.tolist()
