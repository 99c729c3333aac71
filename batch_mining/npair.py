# SPDX-License-Identifier: MIT
"""
One positive and many negatives per anchor. Sohn, NIPS 2016, section 3, and the form of Roth et al., ICML 2020.

Differs: Negatives are given as a mask, so that classes may have different numbers of samples in a batch.
"""
import torch
import torch.nn.functional as F

RETURNS = 'masks'


@torch.no_grad()
def npair_tuples(labels, negatives='all'):
    """
    Args:
        labels:    [B].
        negatives: all: every sample with a positive is an anchor, its positive is random, and its negatives are all
                   samples of other classes; pairs: as in the paper, each class of two or more samples has one random
                   anchor with one random positive, and the negatives are the positives of the other classes.

    Returns: two bool [B, B], the positive and the negatives of each anchor (row). The rows of other samples are empty.

    Example: of four images of the classes x, x, y, y `all` makes four anchors with two negatives each. `pairs` may take
    image 0 with its positive 1 and image 3 with its positive 2; the only negative of image 0 is then 2, and the only
    negative of image 3 is 1.

    >>> positives, negatives = npair_tuples(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    order = torch.randperm(len(labels), device=labels.device)
    ordered, index = labels[order].sort(stable=True)
    order = order[index]                                           # by class, in random order within a class
    chosen = torch.zeros(len(labels), len(labels), dtype=torch.bool, device=labels.device)
    if negatives == 'pairs':
        follows = F.pad(ordered[1:] == ordered[:-1], (1, 1))       # whether the sample before has the same class
        chosen[order, order.roll(-1)] = follows[1:] & ~follows[:-1]   # the first two of each class
        is_anchor, is_positive = chosen.any(dim=1, keepdim=True), chosen.any(dim=0)
        return chosen, (is_anchor & is_positive) ^ chosen
    start = torch.searchsorted(ordered, ordered)
    size = torch.searchsorted(ordered, ordered, right=True) - start
    index = torch.arange(len(labels), device=labels.device) - start                # each sample's number in its class
    step = 1 + (torch.rand(len(labels), device=labels.device) * (size - 1)).long()
    chosen[order, order[start + (index + step) % size]] = size > 1    # none for a class of one sample
    return chosen, (labels[:, None] != labels) & chosen.any(dim=1, keepdim=True)


class BatchMiner:
    """opt: loss_npair_negatives, for the loss `npair`; other losses take `all`."""

    def __init__(self, opt):
        self.negatives = opt.loss_npair_negatives if opt.loss == 'npair' else 'all'

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return npair_tuples(labels, self.negatives)
