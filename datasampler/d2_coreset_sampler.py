"""
D2 of Roth et al., ICML 2020: anchors sampled by their density in a big batch and their distances to each other.

Differs: The public code chooses the anchors in one big batch and uses their indices in another one, which serves the
whole epoch, so that the anchors are random images; here they are chosen in and taken from the same big batch, a new one
for each batch. It samples the other images of the class with replacement, the anchor included, so that an image could
be its own positive.
"""
from functools import partial

import torch

from datasampler.big_batch import Coreset
from utilities.randomness import derive

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
    The batches of big_batch.Coreset, with --data_d2_coreset_lambda. An epoch has n_images // bs batches, or
    --iterations_per_epoch, and is a function of the seed, the epoch and the memory bank as it is when the epoch begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: the memory bank, a Storage.
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
