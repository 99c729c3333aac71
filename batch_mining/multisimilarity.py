# SPDX-License-Identifier: MIT
"""
The pair mining of the multi-similarity loss, for other losses. Wang et al., CVPR 2019, https://arxiv.org/abs/1904.06627,
Eq. 11 and 12.
"""
import torch
import torch.nn.functional as F

RETURNS = 'masks'
FLAGS = {'epsilon': {}}


@torch.no_grad()
def multisimilarity_pairs(batch, labels, epsilon=0.1):
    """
    The positive pairs with s_ip − ε < max_n s_in, and the negative pairs with s_in + ε > min_p s_ip.

    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B].
        epsilon: ε, margin of the pair mining, a cosine.

    Returns: two bool [B, B], the positives and the negatives of each anchor (row).

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0.8, 0.6], [-1., 0.]])
    >>> positives, negatives = multisimilarity_pairs(batch, torch.tensor([0, 0, 1, 2]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        similarities = batch @ batch.T
        same = labels[:, None] == labels
        positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        hardest_negative = similarities.masked_fill(same, -torch.inf).amax(dim=1, keepdim=True)
        hardest_positive = similarities.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
        return (positives & (similarities - epsilon < hardest_negative),
                ~same & (similarities + epsilon > hardest_positive))


class BatchMiner:
    """opt: miner_multisimilarity_epsilon."""

    def __init__(self, opt):
        self.epsilon = opt.miner_multisimilarity_epsilon

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return multisimilarity_pairs(batch, labels, self.epsilon)
