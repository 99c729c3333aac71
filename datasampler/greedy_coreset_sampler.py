"""
GC of Roth et al., ICML 2020: anchors that cover a big batch, by greedy k-centre (Gonzalez, 1985; Sener and Savarese,
ICLR 2018, https://arxiv.org/abs/1708.00489, Algorithm 1).

Differs: The public code chooses the anchors in one big batch and uses their indices in another one, which serves the
whole epoch, so that the anchors are random images; here they are chosen in and taken from the same big batch, a new one
for each batch. It samples the other images of the class with replacement, the anchor included, so that an image could
be its own positive. There, --data_gc_coreset_lim and --data_sim_measure have no effect.
"""
import math
from functools import partial

import torch

from datasampler.big_batch import Coreset
from utilities.randomness import derive

REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)
FLAGS = {
    'gc_coreset_lim': {'argument': 'limit', 'help': 'greedy_coreset: images within this distance of an anchor count as '
                                                    'covered and are chosen last'},
    'gc_softened': {'argument': 'softened', 'help': 'greedy_coreset: choose each anchor at random from the farthest 3 '
                                                    'percent of the images'},
}
USES = ['data_batchmatch_bigbs']


def greedy_k_centre(points, k, generator, softened=False, limit=1e-9):
    """
    The first chosen point is random; each further one is the point that is farthest from its nearest chosen point.

    Args:
        points:    [n, D], n >= k.
        k:         number of points to choose.
        generator: a torch.Generator on the CPU.
        softened:  choose a random point out of the farthest 3 percent instead of the farthest point.
        limit:     a distance. Points within this distance of a chosen point count as covered: they are chosen last,
                   in random order.

    Returns: indices into points, int64 [k].
    """
    n = len(points)
    covered = -1 - torch.rand(n, generator=generator).to(points.device)
    chosen = [torch.randint(n, (1,), generator=generator).to(points.device)]
    nearest = torch.full((n,), torch.inf, device=points.device)
    free = torch.zeros(n, device=points.device)                                     # -inf at chosen points
    for step in range(1, k):
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).norm(dim=1))
        free.index_fill_(0, chosen[-1], -torch.inf)
        scores = torch.where(nearest > limit, nearest, covered) + free
        n_best = min(math.ceil(.03 * n), n - step) if softened else 1
        rank = int(torch.randint(n_best, (), generator=generator))
        chosen.append(scores.topk(n_best).indices[rank, None])
    return torch.cat(chosen)


class Sampler(torch.utils.data.Sampler):
    """
    The batches of big_batch.Coreset, with --data_gc_softened and --data_gc_coreset_lim. An epoch has n_images // bs
    batches, or --iterations_per_epoch, and is a function of the seed, the epoch and the memory bank as it is when the
    epoch begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: the memory bank, a Storage.
    """

    def __init__(self, opt, image_dict, image_list, storage):
        self.coreset, self.storage = Coreset(opt, image_dict), storage
        self.choose = partial(greedy_k_centre, softened=opt.data_gc_softened, limit=opt.data_gc_coreset_lim)
        self.seed, self.epoch = opt.seed, 0
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        return iter(self.coreset.batches(len(self), self.storage, self.choose, generator))
