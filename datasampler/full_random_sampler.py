# SPDX-License-Identifier: MIT
"""SPC-R of Roth et al., ICML 2020: random images of random classes, and one image that makes a positive pair."""
import hashlib

import torch


class Sampler(torch.utils.data.Sampler):
    """
    Each of the first bs - 1 images is a random image of a random class, both uniform and with replacement. The last
    image is another image of the class of a random one of them, or the same image if the class has no other. An epoch
    has n_images // bs batches, or --iterations_per_epoch, and is a function of the seed and the epoch.

    image_dict: class -> [(path, index)]; image_list: [(path, class)].

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, seed=0, iterations_per_epoch=None)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> sampler = Sampler(opt, image_dict, image_list)
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list):
        if opt.bs < 2:
            raise ValueError(f'--bs {opt.bs}: full_random needs at least 2 images per batch, for a positive pair')
        self.bs = opt.bs
        self.seed = opt.seed
        self.epoch = 0
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])  # by class
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        sizes, starts, images = self.sizes, self.starts, self.images
        for _ in range(self.sampler_length):
            classes = random_integers(torch.full((self.bs - 1,), len(sizes)), generator)
            members = random_integers(sizes[classes], generator)
            anchor = random_integers(torch.tensor(self.bs - 1), generator)
            size = sizes[classes[anchor]]
            # Any image of the class except the anchor itself.
            positive = (members[anchor] + 1 + random_integers(size - 1, generator)) % size
            classes = torch.cat([classes, classes[anchor, None]])
            members = torch.cat([members, positive[None]])
            yield images[starts[classes] + members].tolist()


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1


def random_integers(limits, generator):
    """Uniform integers from 0 to each limit - 1; `limits` is an int64 tensor of any shape."""
    return (torch.rand(limits.shape, generator=generator, dtype=torch.float64) * limits).long()
