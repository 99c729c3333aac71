# SPDX-License-Identifier: MIT
"""All positive and all negative pairs of a batch, which make all its triplets."""
import torch

RETURNS = 'masks'


@torch.no_grad()
def all_pairs(labels):
    """
    Args:
        labels: [B].

    Returns: two bool [B, B], each anchor's (row's) positives, without the anchor itself, and its negatives.

    >>> positives, negatives = all_pairs(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2], [2, 0], [2, 1]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return positives, ~same


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return all_pairs(labels)
