"""
DDM of Roth et al., ICML 2020: of random candidates, the one most similar to a big batch in moments and distances.

Differs: The public code samples the classes of the big batch and of the candidates with replacement; here a batch is
composed as by class_random. It takes the Wasserstein distance between the heights of the bins, in both directions, so
that two single peaks 40 bins apart cost 0; here it is the distance between the histograms, once.
"""
import torch

from datasampler.big_batch import Matching
from utilities.randomness import derive

DISTINCT = 'classes'            # no class repeats in a batch
REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)
USES = ['data_batchmatch_bigbs', 'data_batchmatch_ncomps']


def distance_histogram_costs(points, candidates, n_bins=50, weight=75):
    """
    Cost |m - m'| + |s - s'| + weight * W of each candidate, compared with all points: m and s are the mean and standard
    deviation per dimension, and W is the Wasserstein distance of the histograms of pairwise distances, in units of
    distance. The bins divide the range of the distances between all points.

    Args:
        points:     [n, D].
        candidates: [m, B] int64, indices into points, different within a row, B >= 2.

    Returns: [m].
    """
    distances = torch.cdist(points, points)
    own = torch.eye(len(points), dtype=torch.bool, device=points.device)
    low, high = distances.masked_fill(own, torch.inf).min(), distances.max()
    width = (high - low) / n_bins
    bins = ((distances - low) / width.clamp(min=torch.finfo(width.dtype).tiny)).long().clamp(max=n_bins - 1)
    bins = bins.masked_fill(own, n_bins)                                # an extra bin that is not counted

    def cumulative(bins):
        """[m, ...] bins of pairs -> [m, n_bins], the fraction of the pairs up to and including each bin."""
        rows = torch.arange(len(bins), device=bins.device)[:, None] * (n_bins + 1)
        counts = (bins.flatten(1) + rows).flatten().bincount(minlength=len(bins) * (n_bins + 1))
        counts = counts.view(len(bins), n_bins + 1)[:, :n_bins].cumsum(dim=1)
        return counts / counts[:, -1:]

    chosen = bins[candidates[:, :, None], candidates[:, None, :]]       # [m, B, B]
    moved = width * (cumulative(chosen) - cumulative(bins[None])).abs().sum(dim=1)
    subsets = points[candidates]
    means = (subsets.mean(dim=1) - points.mean(dim=0)).norm(dim=1)
    deviations = (subsets.std(dim=1, correction=0) - points.std(dim=0, correction=0)).norm(dim=1)
    return means + deviations + weight * moved


class Sampler(torch.utils.data.Sampler):
    """
    The batches of big_batch.Matching with the least cost. An epoch has n_images // bs batches, or
    --iterations_per_epoch, and is a function of the seed, the epoch and the memory bank as it is when the epoch begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: the memory bank, a Storage.
    """

    def __init__(self, opt, image_dict, image_list, storage):
        self.matching, self.storage = Matching(opt, image_dict), storage
        self.seed, self.epoch = opt.seed, 0
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    def __iter__(self):
        generator = torch.Generator().manual_seed(derive(self.seed, self.epoch))
        return iter(self.matching.batches(len(self), self.storage, distance_histogram_costs, generator))
