"""
FRD of Roth et al., ICML 2020: of random candidates, the one with the smallest Frechet distance to a big batch.

Differs: The public code samples the classes of the big batch and of the candidates with replacement; here a batch is
composed as by class_random. There it cannot be selected (undefined name).
"""
import torch

from datasampler.big_batch import Matching
from utilities.randomness import derive

DISTINCT = 'classes'            # no class repeats in a batch
REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)
USES = ['data_batchmatch_bigbs', 'data_batchmatch_ncomps']


def frechet_distances(points, candidates):
    """
    Frechet distance between two Gaussians, which have the means and (unbiased) covariances of all points and of a
    candidate: |m - m'|^2 + tr(S + S' - 2 (S S')^1/2). Heusel et al., NeurIPS 2017, https://arxiv.org/abs/1706.08500,
    Eq. 6.

    With S' = Y^T Y, S S' has the same eigenvalues as the symmetric [B, B] matrix Y S Y^T apart from zeros. If D is
    smaller than B, the [D, D] matrix R S' R with R = S^1/2 gives them instead.

    Args:
        points:     [n, D].
        candidates: [m, B] int64, indices into points, B >= 2.

    Returns: float64 [m], in units of squared distance.
    """
    points = points.double()           # in float32, roots of eigenvalues that should be 0 would be large
    covariance = points.T.cov().view(points.shape[1], -1)
    subsets = points[candidates]                                                    # [m, B, D]
    means, size = subsets.mean(dim=1), candidates.shape[1]
    spread = (subsets - means[:, None]) / (size - 1) ** .5                          # Y
    if size <= points.shape[1]:
        gram = spread @ covariance @ spread.mT
    else:
        values, vectors = torch.linalg.eigh(covariance)
        rooted = spread @ (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        gram = rooted.mT @ rooted
    values = torch.linalg.eigvalsh(gram)
    between = (means - points.mean(dim=0)).pow(2).sum(dim=1)
    return between + covariance.trace() + spread.pow(2).sum(dim=(1, 2)) - 2 * values.clamp(min=0).sqrt().sum(dim=1)


class Sampler(torch.utils.data.Sampler):
    """
    The batches of big_batch.Matching with the smallest Frechet distance. An epoch has n_images // bs batches, or
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
        return iter(self.matching.batches(len(self), self.storage, frechet_distances, generator))
