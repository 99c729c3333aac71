# SPDX-License-Identifier: MIT
"""Direction regularisation of any loss of triplets. Mohan et al., Moving in the Right Direction, CVPR 2020."""
import torch

NEEDS = 'it is for losses of triplets, such as triplet, margin or contrastive'
SET_BY = ('dr_weight',)
INSIDE_LOSSES = True
FLAGS = {'dr_weight': {'default': 0.0, 'at_least': 0, 'help': 'weight of direction regularisation (Mohan et al.) for '
                                                              'losses of triplets; 0 means none'}}


def directions(batch, triplets):
    """
    [T]: cos(x_n − x_a, x_p − x_a) of each triplet (a, p, n) [T, 3]; 0 where x_n or x_p is x_a.

    >>> directions(torch.tensor([[0., 0.], [1., 0.], [3., 4.], [0., 0.]]), torch.tensor([[0, 1, 2], [0, 3, 2]]))
    tensor([0.6000, 0.0000])
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, positives, negatives = batch[triplets.T]
        to_positive = positives - anchors
        to_negative = negatives - anchors
        squared = to_positive.square().sum(dim=1) * to_negative.square().sum(dim=1)
        apart = squared > 0
        return (to_positive * to_negative).sum(dim=1) / squared.where(apart, 1).sqrt() * apart


class DirectionRegularised(torch.nn.Module):
    """
    The loss minus `weight` times the mean of `directions` over the mined triplets.

    Args:
        criterion: a loss of triplets, built with `miner`.
        miner:     has the triplets [T, 3] of the last batch as its attribute `last`.
        weight:    γ, the factor of the mean.
    """

    def __init__(self, criterion, miner, weight):
        super().__init__()
        self.criterion = criterion
        self.miner = miner
        self.weight = weight

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        loss = self.criterion(batch=batch, labels=labels, **kwargs)
        triplets = self.miner.last
        direction = directions(batch, triplets).sum() / max(len(triplets), 1)
        self.log = {'direction': direction.detach()}
        return loss - self.weight * direction


def around(opt, build, miner):
    criterion = build(opt, miner)
    if miner is None or miner.use != 'triplets':
        return criterion
    return DirectionRegularised(criterion, miner, opt.dr_weight)
