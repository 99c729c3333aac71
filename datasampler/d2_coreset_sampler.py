"""D2 of Roth et al., ICML 2020: anchors that are typical of a big batch and far from each other, at random."""
from functools import partial

import torch

from datasampler.big_batch import Coreset
from utilities.randomness import derive

REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)


def d2_coreset(points, k, generator, power=1.0):
    """
    The point nearest to a draw from N(m, S), m and S the points' mean and covariance; then k - 1 times a point with a
    probability proportional to N(x; m, S) D(x)^power, D the sum of the squared distances to the chosen points.

    Args:
        points:    [n, D], n >= k.
        k:         how many to choose, none twice.
        generator: on the CPU.
        power:     lambda.

    Returns: places in points, int64 [k].
    """
    n, dim = points.shape
    mean = points.mean(dim=0)
    values, vectors = torch.linalg.eigh(points.T.cov().view(dim, dim))
    # A floor for the directions in which the points do not vary; they do not deviate there either.
    deviations = values.clamp(min=1e-6 * values[-1] + torch.finfo(values.dtype).tiny).sqrt()
    whitened = (points - mean) @ vectors / deviations
    # argmax(log p + Gumbel noise) is a draw from p.
    noise = -torch.empty(k, n).exponential_(generator=generator).log()
    scores = noise.to(points.device) - whitened.pow(2).sum(dim=1) / 2
    draw = mean + vectors @ (deviations * torch.randn(dim, generator=generator).to(points.device))
    chosen = [(points - draw).norm(dim=1).argmin()[None]]
    total = torch.zeros(n, device=points.device)                                    # D
    for step in range(1, k):
        total = total + (points - points[chosen[-1]]).pow(2).sum(dim=1)
        scores.index_fill_(1, chosen[-1], -torch.inf)
        weight = power * total.clamp(min=torch.finfo(total.dtype).tiny).log()
        chosen.append((scores[step] + weight).argmax()[None])
    return torch.cat(chosen)


class Sampler(torch.utils.data.Sampler):
    """
    The batches of big_batch.Coreset, with --data_d2_coreset_lambda. An epoch has n_images // bs batches, or
    --iterations_per_epoch, and is a function of the seed, the epoch and what is stored when it begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: a Storage of their embeddings.
    """

    def __init__(self, opt, image_dict, image_list, storage):
        self.coreset, self.storage = Coreset(opt, image_dict), storage
        self.choose = partial(d2_coreset, power=opt.data_d2_coreset_lambda)
        self.seed, self.epoch = opt.seed, 0
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        return iter(self.coreset.batches(len(self), self.storage, self.choose, generator))
