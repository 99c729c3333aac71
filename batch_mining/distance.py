"""
Distance-weighted negatives: as likely to be near as far. Wu et al., Sampling Matters in Deep Embedding Learning,
ICCV 2017, https://arxiv.org/abs/1706.07567, section 4.1; without the upper cut-off, as Roth et al. use it.
"""
import torch


def uniform(mask):
    """One column of each row's mask [B, N], uniformly; any column where the mask is empty: [B]."""
    return ((1 - torch.rand(mask.shape, device=mask.device)) * mask).argmax(dim=1)       # 1 - rand is never 0


def log_inverse_density(distances, dim):
    """−log q(d) up to a constant, q the density of distances between random points of the unit sphere in R^dim."""
    return (2 - dim) * distances.log() - (dim - 3) / 2 * torch.log1p(-distances.pow(2) / 4)


@torch.no_grad()
def distance_triplets(batch, labels, lower_cutoff=0.5):
    """
    For each anchor a random positive, and a negative n with probability in proportion to 1 / q(d_an).

    Args:
        batch:        [B, D] embeddings of norm 1.
        labels:       [B].
        lower_cutoff: smaller distances weigh as much as this one.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.nn.functional.normalize(torch.tensor([[1., 0., 0.], [1., 1., 0.], [0., 0., 1.]]))
    >>> distance_triplets(batch, torch.tensor([0, 0, 1]))
    tensor([[0, 1, 2],
            [1, 0, 2]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    weights = negative_weights(batch, same, lower_cutoff).cumsum(dim=1)
    total = weights[:, -1:].contiguous()
    drawn = torch.rand(len(labels), 1, device=batch.device, dtype=weights.dtype) * total
    negative = torch.searchsorted(weights, drawn.minimum(total.nextafter(torch.zeros_like(total))), right=True)[:, 0]
    positive = uniform(positives)
    anchor = (positives.any(dim=1) & ~same.all(dim=1)).nonzero()[:, 0]
    return torch.stack([anchor, positive[anchor], negative[anchor]], dim=1)


def negative_weights(batch, same, lower_cutoff):
    """[B, B], each row in proportion to the probabilities of its negatives, the largest weight 1; 0 where `same`."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        norms = gram.diagonal()
        distances = (norms[:, None] + norms - 2 * gram).clamp(min=0).sqrt().clamp(lower_cutoff, 2 - 1e-3)
        log_weights = log_inverse_density(distances, batch.shape[1]).masked_fill(same, -torch.inf)
        largest = log_weights.amax(dim=1, keepdim=True).nan_to_num(neginf=0)
        return (log_weights - largest).exp()


class BatchMiner:
    """opt: miner_distance_lower_cutoff."""

    def __init__(self, opt):
        self.lower_cutoff = opt.miner_distance_lower_cutoff

    def __call__(self, batch, labels):
        """batch [B, D] of norm 1, labels [B], on one device -> triplets [T, 3]."""
        return distance_triplets(batch, labels, self.lower_cutoff)
