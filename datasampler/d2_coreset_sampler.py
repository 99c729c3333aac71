# SPDX-License-Identifier: MIT
"""
D2 of Roth et al., ICML 2020: anchors sampled by their density in a big batch and their distances to each other.

Differs: The public code chooses the anchors in one big batch and uses their indices in another one, which serves the
whole epoch, so that the anchors are random images; here they are chosen in and taken from the same big batch, a new one
for each batch. It samples the other images of the class with replacement, the anchor included, so that an image could
be its own positive.
"""
import hashlib
from functools import partial

import torch

DISTINCT = 'groups'             # groups of images of a class; a class may have several groups
REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)
FLAGS = {'d2_coreset_lambda': {'argument': 'power', 'help': 'd2_coreset: exponent of the distance to earlier anchors;'
                                                            ' a larger value spreads the anchors'}}
USES = ['data_batchmatch_bigbs']


def d2_coreset(points, k, generator, power=1.0):
    """
    Let m and S be the mean and covariance of the points. The first chosen point is the nearest to a sample of N(m, S).
    Each further point x is chosen with a probability proportional to N(x; m, S) D(x)^power, where D is the sum of the
    squared distances to the points chosen before.

    Args:
        points:    [n, D], n >= k.
        k:         number of points to choose, all different.
        generator: a torch.Generator on the CPU.
        power:     exponent of D, the lambda of the paper.

    Returns: indices into points, int64 [k].
    """
    n, dim = points.shape
    points = points.to(torch.promote_types(points.dtype, torch.float32))
    mean = points.mean(dim=0)
    values, vectors = torch.linalg.eigh(points.T.cov().view(dim, dim))
    # The floor avoids division by 0 in directions without variance, in which the whitened points stay near 0.
    deviations = values.clamp(min=1e-6 * values[-1] + torch.finfo(values.dtype).tiny).sqrt()
    whitened = (points - mean) @ vectors / deviations
    # The argmax of log p plus Gumbel noise is a sample from p.
    noise = -torch.empty(k, n).exponential_(generator=generator).log()
    scores = noise.to(points.device) - whitened.pow(2).sum(dim=1) / 2
    sample = mean + vectors @ (deviations * torch.randn(dim, generator=generator).to(points.device))
    chosen = [(points - sample).norm(dim=1).argmin()[None]]
    total = torch.zeros(n, device=points.device)                                    # D of the docstring
    for step in range(1, k):
        total = total + (points - points[chosen[-1]]).pow(2).sum(dim=1)
        scores.index_fill_(1, chosen[-1], -torch.inf)
        weight = power * total.clamp(min=torch.finfo(total.dtype).tiny).log()
        chosen.append((scores[step] + weight).argmax()[None])
    return torch.cat(chosen)


class Sampler(torch.utils.data.Sampler):
    """
    Each batch is bs / samples_per_class anchors, each followed by samples_per_class - 1 other random images of its
    class. The anchors are chosen from a big batch of --data_batchmatch_bigbs images (all images, if there are fewer),
    sampled anew for each batch, uniformly and without replacement. No image repeats if the classes are large enough.
    An epoch has n_images // bs batches, or --iterations_per_epoch, and is a function of the seed, the epoch and the
    memory bank as it is when the epoch begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: the memory bank, embeddings [N, D] of
    all images, in a tensor or what has its `device` and is indexed as a tensor.

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, samples_per_class=2, seed=0, iterations_per_epoch=None,
    ...                             data_batchmatch_bigbs=8, data_d2_coreset_lambda=1.0)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> storage = torch.randn(len(image_list), 5)
    >>> sampler = Sampler(opt, image_dict, image_list, storage)
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list, storage):
        if opt.bs % opt.samples_per_class:
            raise ValueError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.n_anchors = opt.bs // opt.samples_per_class
        self.n_partners = opt.samples_per_class - 1
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])  # by class
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.class_of = torch.empty_like(self.images)                                  # the class of each image
        self.class_of[self.images] = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)
        self.size = min(opt.data_batchmatch_bigbs, len(self.images))
        if self.n_anchors > self.size:
            raise ValueError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} needs {self.n_anchors} '
                             f'anchors, more than the {self.size} images of the big batch (--data_batchmatch_bigbs '
                             f'{opt.data_batchmatch_bigbs}, {len(self.images)} training images)')
        self.choose = partial(d2_coreset, power=opt.data_d2_coreset_lambda)
        self.storage = storage
        self.seed = opt.seed
        self.epoch = 0
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    @torch.no_grad()
    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        choices = []
        for _ in range(self.sampler_length):
            images = torch.randperm(len(self.images), generator=generator)[:self.size]
            choices.append((images, self.choose(self.storage[images], self.n_anchors, generator)))
        chosen = torch.stack([indices for _, indices in choices]).cpu()        # the host waits for the device here only
        anchors = [images[indices] for (images, _), indices in zip(choices, chosen, strict=True)]
        return iter([torch.cat([a[:, None], self.partners(a, generator)], dim=1).flatten().tolist() for a in anchors])

    def partners(self, anchors, generator):
        """
        anchors int64 [K] -> n_partners images of each anchor's class, [K, n_partners]; if the class is large enough,
        they are distinct and none is an anchor.

        Anchors of one class share its images evenly; anchors themselves are used only when the others run out.
        """
        if not self.n_partners:
            return anchors.new_empty(len(anchors), 0)
        classes = self.class_of[anchors]
        same = classes[:, None] == classes
        first = same.int().argmax(dim=1)
        n_before = same.tril(-1).sum(dim=1)
        sizes, starts = self.sizes[classes, None], self.starts[classes, None]
        members = torch.arange(int(sizes.max()))
        keys = torch.rand(len(classes), len(members), generator=generator)[first]
        is_anchor = torch.zeros(len(self.images), dtype=torch.bool).index_fill_(0, anchors, True)
        keys = keys - is_anchor[self.images[(starts + members).clamp(max=len(self.images) - 1)]].float()
        keys = keys.masked_fill(members >= sizes, -2)                              # no such image
        ranks = n_before[:, None] * self.n_partners + torch.arange(self.n_partners)
        order = keys.topk(min(int(ranks.max()) + 1, len(members)), dim=1).indices
        return self.images[starts + order.gather(1, ranks % sizes)]


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1
