# SPDX-License-Identifier: MIT
"""
Triplet loss. Schroff et al., FaceNet, CVPR 2015, https://arxiv.org/abs/1503.03832, section 3.1.

With power 1 and active_only, over all triplets, it is the triplet loss of Musgrave et al., ECCV 2020.

Differs: Squared distances and the mean over all triplets, as in FaceNet; pytorch-metric-learning by default takes plain
distances and the mean over the triplets that violate the margin (`--loss_triplet_power 1 --loss_triplet_active_only`).
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
ACCEPTS_MASKS = True            # it has a formula for masks of pairs, too, as `all` gives them
FLAGS = {'margin': {}, 'power': {'above': 0}, 'active_only': {}}


def squared_distances(batch):
    """‖x_i − x_j‖² of all pairs, [B, B], and a mask [B, B]: whether it is above the rounding error of 0, or NaN."""
    batch = batch - batch.detach().mean(dim=0)           # distances stay the same; their rounding errors shrink
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared, ~(squared <= 8 * torch.finfo(batch.dtype).eps * norms)


def to_power(squared, apart, power):
    """squared^(power / 2), the power of the distances; where not `apart` it is 0 and has gradient 0."""
    if power == 2:
        return squared.where(apart, 0)
    return squared.where(apart, 1).pow(power / 2).where(apart, 0)


def triplet_violations(batch, triplets, margin=0.2, power=2.0):
    """[ d_ap^power − d_an^power + margin ]₊ of each triplet: [T]. Arguments as in triplet_loss."""
    anchors, positives, negatives = triplets.T
    if len(triplets) > 4 * len(batch):
        distances = to_power(*squared_distances(batch), power)     # 12 times as fast for all triplets of 112 samples
        d_ap = distances[anchors, positives]
        d_an = distances[anchors, negatives]
    else:
        own = batch.index_select(0, anchors)
        squared_ap = (own - batch.index_select(0, positives)).square().sum(dim=1)
        squared_an = (own - batch.index_select(0, negatives)).square().sum(dim=1)
        d_ap = to_power(squared_ap, squared_ap != 0, power)
        d_an = to_power(squared_an, squared_an != 0, power)
    return F.relu(d_ap - d_an + margin)


def violations_of_pairs(batch, positives, negatives, margin=0.2, power=2.0):
    """
    triplet_violations of every triplet that the masks [B, B] make, without listing the triplets: [P, B], with a row for
    each of the P positive pairs (a, p) and a column for each sample n, 0 where (a, n) is no negative pair; and the
    number of triplets.
    """
    distances = to_power(*squared_distances(batch), power)
    anchors, partners = positives.nonzero().T
    negated = (-distances).where(negatives, -torch.inf)
    gaps = negated[anchors] + (distances[anchors, partners] + margin)[:, None]
    n_triplets = positives.sum(dim=1, dtype=torch.int32) * negatives.sum(dim=1, dtype=torch.int32)
    return F.relu(gaps), n_triplets.sum()


def triplet_loss(batch, triplets, margin=0.2, power=2.0, active_only=False, log=None):
    """
    Args:
        batch:       [B, D] embeddings, used as they are.
        triplets:    [T, 3] int64 indices (anchor, positive, negative); or two bool masks [B, B], the positives and the
                     negatives of each anchor (row), for every triplet that they make.
        margin:      margin, in units of the distance to the power `power`.
        power:       exponent of the distances: 2 for squared distances (FaceNet), 1 for plain distances (Musgrave et
                     al.).
        active_only: average over the margin-violating triplets only, instead of over all triplets.
        log:         a dict that receives `tuples`, the number of triplets, and `active_tuples`, the number of triplets
                     that violate the margin.

    Returns: scalar, the mean of [ d_ap^power − d_an^power + margin ]₊; a differentiable zero without triplets.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.]])
    >>> triplet_loss(batch, torch.tensor([[0, 1, 2]]), margin=3.5)
    tensor(0.5000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        if isinstance(triplets, tuple):
            violations, n_triplets = violations_of_pairs(batch, *triplets, margin, power)
        else:
            violations = triplet_violations(batch, triplets, margin, power)
            n_triplets = len(triplets)
        n_active = violations.count_nonzero()
        if log is not None:
            log.update(tuples=n_triplets, active_tuples=n_active)
        n_counted = n_active if active_only else n_triplets
        return violations.sum() / torch.as_tensor(n_counted).clamp(min=1)


class Criterion(torch.nn.Module):
    """
    opt: loss_triplet_margin, _power, _active_only.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3], or masks of positive and negative pairs, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.arguments = opt.loss_triplet_margin, opt.loss_triplet_power, opt.loss_triplet_active_only
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        mined = self.batchminer(batch, labels)
        if not isinstance(mined, tuple):
            mined = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3)
        self.log = {}
        return triplet_loss(batch, mined, *self.arguments, log=self.log)
