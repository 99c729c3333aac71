"""SPC-R of Roth et al., ICML 2020: random images of random classes, and one image that makes a positive pair."""
import torch

from datasampler.draws import ClassImages, below
from utilities.errors import UserError
from utilities.randomness import derive


class Sampler(torch.utils.data.Sampler):
    """
    bs - 1 times a class, then one of its images, both uniform and with replacement; then one image of the class of a
    random one of these, another image where the class has one. An epoch has n_images // bs batches, or
    --iterations_per_epoch, and is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs < 2:
            raise UserError(f'--bs {opt.bs}: full_random needs at least 2 images a batch, a positive pair')
        self.bs, self.seed, self.epoch = opt.bs, opt.seed, 0
        self.of_class = ClassImages(image_dict)
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        sizes, starts, images = self.of_class.sizes, self.of_class.starts, self.of_class.images
        for _ in range(self.sampler_length):
            classes = below(torch.full((self.bs - 1,), len(sizes)), generator)
            places = below(sizes[classes], generator)
            anchor = below(torch.tensor(self.bs - 1), generator)
            size = sizes[classes[anchor]]
            # Any place of the class but the anchor's.
            positive = (places[anchor] + 1 + below(size - 1, generator)) % size
            classes, places = torch.cat([classes, classes[anchor, None]]), torch.cat([places, positive[None]])
            yield images[starts[classes] + places].tolist()
