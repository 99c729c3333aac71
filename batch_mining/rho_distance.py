# SPDX-License-Identifier: MIT
"""
Distance-weighted mining that sometimes pushes a positive away, so that classes do not become too compact. Roth et al.,
Revisiting Training Strategies and Generalization Performance in Deep Metric Learning, ICML 2020, section 5.
"""
import torch

FLAGS = {
    'lower_cutoff': {'at_least': 0, 'at_most': 2},
    'upper_cutoff': {'default': 1.4, 'at_least': 0, 'obsolete': True},
    'cp': {'at_least': 0, 'at_most': 1},
}


@torch.no_grad()
def rho_distance_triplets(batch, labels, lower_cutoff=0.5, cp=0.2):
    """
    For each anchor a and a random positive p, gives with probability cp the triplet (a, a, p), which pushes p away, and
    else (a, p, n). The probability of a negative n is in proportion to 1 / q(d_an), where q is the density of the
    distance between two random points of the unit sphere.

    Args:
        batch:        [B, D] embeddings of norm 1.
        labels:       [B].
        lower_cutoff: a distance; smaller distances are treated as equal to it.
        cp:           probability of a triplet (a, a, p), which pushes the positive p away.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.nn.functional.normalize(torch.tensor([[1., 0., 0.], [1., 1., 0.], [0., 0., 1.]]))
    >>> rho_distance_triplets(batch, torch.tensor([0, 0, 1]), cp=1)
    tensor([[0, 0, 1],
            [1, 1, 0]])
    """
    same = labels.unsqueeze(1) == labels
    negative = sample_weighted(negative_weights(batch, same, lower_cutoff))
    positive, n_positives = sample_uniform(same.fill_diagonal_(False))
    pushed = torch.rand(len(labels), 1, device=labels.device) < cp
    everyone = torch.arange(len(labels), device=labels.device)[:, None]
    negative, positive = torch.where(pushed, positive, negative), torch.where(pushed, everyone, positive)
    anchor = (n_positives * (len(labels) - 1 - n_positives)).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def negative_weights(batch, same, lower_cutoff=0.5):
    """
    [B, B] weights of each row's negatives, in proportion to their probabilities; 0 where `same`. The largest weight of
    a row is between 1 / 2B and 1 / lower_cutoff. The weights of rows without a negative are arbitrary.

    log 1/q(d) = (2 − D) log d − (D − 3)/2 log(1 − d²/4), up to a constant: with s = d² and u = s (1 − s/4), 1/q is
    u^(−(D − 3)/2) / √s.
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
    norms = gram.diagonal()
    squared = (norms[:, None] + norms - 2 * gram).clamp(max(lower_cutoff, 1e-6) ** 2, (2 - 1e-3) ** 2)
    logs = (squared - squared.square() / 4).log() * ((3 - batch.shape[1]) / 2)
    # finite: −inf would give nan in rows without a negative
    return logs.masked_fill(same, torch.finfo(logs.dtype).min).softmax(dim=1) * squared.rsqrt()


def sample_weighted(weights, n=1):
    """
    Samples n columns from each row of `weights` [B, N], with replacement and with probability in proportion to their
    weights: [B, n]. In a row of zeros, the columns are arbitrary; in other rows, none of weight 0 is sampled.
    """
    # A cumulative sum must not change at a weight of 0. GPUs add in parallel and need float64 for that, which MPS
    # lacks; the CPU adds in order.
    exact = weights.dtype if weights.device.type in ('cpu', 'mps') else torch.float64
    cumulated = weights.cumsum(dim=1, dtype=exact)
    total = cumulated[:, -1:]
    threshold = torch.rand_like(total.expand(-1, n)) * total        # below the total, so that a column reaches it
    return torch.searchsorted(cumulated, threshold, right=True).clamp(max=weights.shape[1] - 1)


def sample_uniform(mask):
    """
    Samples a column from each row of the mask [B, N], uniformly; in an empty row, the column is N. Returns the columns
    and the numbers of candidates, two [B, 1].
    """
    count = mask.cumsum(dim=1, dtype=torch.int32)
    total = count[:, -1:]
    k = (torch.rand(len(mask), 1, device=mask.device) * total).int()                 # 0 ... total − 1
    return torch.searchsorted(count, k, right=True), total


class BatchMiner:
    """opt: miner_rho_distance_lower_cutoff, miner_rho_distance_cp."""

    def __init__(self, opt):
        self.lower_cutoff = opt.miner_rho_distance_lower_cutoff
        self.cp = opt.miner_rho_distance_cp

    def __call__(self, batch, labels):
        """batch [B, D] of norm 1, labels [B], on one device -> triplets [T, 3]."""
        return rho_distance_triplets(batch, labels, self.lower_cutoff, self.cp)
