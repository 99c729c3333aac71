"""Batches that the tests of miners share."""
import torch
import torch.nn.functional as F

from tests.helpers import LABELS

SHAPES = {
    'pairs': LABELS,
    'uneven, not contiguous, one class alone': torch.tensor([5, 0, 5, 2, 0, 5, 9, 2, 5, 0]),
    'four of each': torch.arange(4).repeat_interleave(4),
    'shuffled, of large and negative numbers': torch.tensor([-7, 10 ** 12, 3, -7, 3, 10 ** 12, -7, 3]),
    'two classes': torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]),
    'one class': torch.tensor([4, 4, 4, 4]),
    'all alone': torch.arange(4),
    'one sample': torch.tensor([4]),
}


def unit(n, dim=8, seed=0, dtype=torch.float64):
    """Random points of the unit sphere: [n, dim]."""
    return F.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=1)


def grid(n, dim=2, seed=0, dtype=torch.float64):
    """Points with coordinates −1, 0, 1: many duplicates and equal distances, and, for n a power of two, no rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (n, dim), generator=generator).to(dtype)


def collapsed(n, dim=8, seed=0, dtype=torch.float64):
    """Points that nearly coincide, far from the origin."""
    return 100 + 1e-3 * unit(n, dim, seed, dtype)
