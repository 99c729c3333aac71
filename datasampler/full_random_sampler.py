"""SPC-R of Roth et al., ICML 2020: random images of random classes, and one image that makes a positive pair."""
import torch

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
        self.indices = [torch.tensor([index for _, index in images]) for images in image_dict.values()]
        self.sizes = torch.tensor([len(indices) for indices in self.indices])
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))

        def below(limits):
            """A uniform integer under each limit."""
            return (torch.rand(limits.shape, generator=generator, dtype=torch.float64) * limits).long()

        for _ in range(self.sampler_length):
            classes = below(torch.full((self.bs - 1,), len(self.indices)))
            places = below(self.sizes[classes])
            anchor = below(torch.tensor(self.bs - 1))
            size = self.sizes[classes[anchor]]
            positive = (places[anchor] + 1 + below(size - 1)) % size      # any place of the class but the anchor's
            classes, places = torch.cat([classes, classes[anchor, None]]), torch.cat([places, positive[None]])
            yield [int(self.indices[c][p]) for c, p in zip(classes.tolist(), places.tolist(), strict=True)]
