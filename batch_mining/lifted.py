# SPDX-License-Identifier: MIT
"""All positives and all negatives of each anchor that has both, for the lifted structure loss."""
import torch

RETURNS = 'masks'


@torch.no_grad()
def lifted_pairs(labels):
    """
    Args:
        labels: [B].

    Returns: two bool [B, B], the positives and the negatives of each anchor (row). The rows of samples without a
    positive or without a negative are empty.

    >>> positives, negatives = lifted_pairs(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    is_anchor = (positives.any(dim=1) & ~same.all(dim=1))[:, None]
    return positives & is_anchor, ~same & is_anchor


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return lifted_pairs(labels)
