# SPDX-License-Identifier: MIT
"""
Histogram loss. Ustinova & Lempitsky, NIPS 2016, https://arxiv.org/abs/1611.00822, Eq. 1 to 4.

Differs: `nbins` is the number of nodes; in pytorch-metric-learning it is the number of intervals, which is one less.
Roth et al. find the bin by comparing floats for equality, which loses similarities unless the bin width is a power of
two (30 percent of them with 11 nodes).
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'nbins': {'argument': 'n_nodes', 'at_least': 2}}


def histogram_loss(batch, labels, n_nodes=65):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64.
        n_nodes: R, the number of nodes of the histograms, for cosines from −1 to 1.

    Returns: scalar, Σ_r h⁻_r Σ_{q≤r} h⁺_q, the probability that a random negative pair is more similar than a random
    positive pair; a differentiable zero where there is no positive or no negative pair.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> histogram_loss(batch, torch.tensor([0, 0, 1]), n_nodes=5)
    tensor(0.4600)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        first, second = torch.triu_indices(len(batch), len(batch), offset=1, device=batch.device)
        similarities = (batch @ batch.T)[first, second].clamp(-1, 1)
        is_positive = labels[first] == labels[second]
        position = (similarities + 1) * ((n_nodes - 1) / 2)
        node = position.detach().nan_to_num().long().clamp(max=n_nodes - 2)              # NaN is no index
        fraction = position - node                               # goes to the node above; 1 − fraction to `node`
        # float64: a float32 sum over millions of pairs loses digits; MPS has no float64
        fraction = fraction.to(batch.dtype if batch.device.type == 'mps' else torch.float64)

        def histogram(mask):
            counts = fraction.new_zeros(n_nodes)
            return counts.index_add(0, node, (1 - fraction) * mask).index_add(0, node + 1, fraction * mask)

        positive, negative = histogram(is_positive), histogram(~is_positive)
        n_positive = is_positive.sum()
        n_negative = len(is_positive) - n_positive
        return ((negative * positive.cumsum(0)).sum() / (n_negative * n_positive).clamp(min=1)).to(batch.dtype)


class Criterion(torch.nn.Module):
    """opt: loss_histogram_nbins, the number of nodes."""

    def __init__(self, opt):
        super().__init__()
        self.n_nodes = opt.loss_histogram_nbins

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return histogram_loss(batch, labels, self.n_nodes)
