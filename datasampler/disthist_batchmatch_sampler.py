"""DDM of Roth et al., ICML 2020: batches whose moments and histogram of distances are those of a big batch."""
import torch

from datasampler.big_batch import Matching
from utilities.randomness import derive

DISTINCT = 'classes'            # the groups of a batch are of different classes
REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)


def distance_histogram_costs(points, candidates, n_bins=50, weight=75):
    """
    |m - m'| + |s - s'| + weight * W: the distance of the means, that of the standard deviations per dimension, and the
    Wasserstein distance of the histograms of all pairs' distances. It is over the histogram's support, in units of
    distance: the work of moving the mass from bin to bin. The bins divide the range of all points' distances.

    Args:
        points:     [n, D].
        candidates: [m, B] int64, places in points, none twice in a row, B >= 2.

    Returns: [m].
    """
    distances = torch.cdist(points, points)
    own = torch.eye(len(points), dtype=torch.bool, device=points.device)
    low, high = distances.masked_fill(own, torch.inf).min(), distances.max()
    width = (high - low) / n_bins
    bins = ((distances - low) / width.clamp(min=torch.finfo(width.dtype).tiny)).long().clamp(max=n_bins - 1)
    bins = bins.masked_fill(own, n_bins)                                # a bin of their own, which is left out

    def cumulative(bins):
        """[m, ...] bins -> [m, n_bins], the share of the pairs up to each bin."""
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
    --iterations_per_epoch, and is a function of the seed, the epoch and what is stored when it begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: a Storage of their embeddings.
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
