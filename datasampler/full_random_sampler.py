"""SPC-R of Roth et al., ICML 2020: random images of random classes, and one image that makes a positive pair."""
import torch

from datasampler.sampling import ClassImages, random_integers
from utilities.errors import UserError
from utilities.randomness import derive


class Sampler(torch.utils.data.Sampler):
    """
    Each of the first bs - 1 images is a random image of a random class, both uniform and with replacement. The last
    image is another image of the class of a random one of them, or the same image if the class has no other. An epoch
    has n_images // bs batches, or --iterations_per_epoch, and is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs < 2:
            raise UserError(f'--bs {opt.bs}: full_random needs at least 2 images per batch, for a positive pair')
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
            classes = random_integers(torch.full((self.bs - 1,), len(sizes)), generator)
            members = random_integers(sizes[classes], generator)
            anchor = random_integers(torch.tensor(self.bs - 1), generator)
            size = sizes[classes[anchor]]
            # Any image of the class except the anchor itself.
            positive = (members[anchor] + 1 + random_integers(size - 1, generator)) % size
            classes, members = torch.cat([classes, classes[anchor, None]]), torch.cat([members, positive[None]])
            yield images[starts[classes] + members].tolist()
