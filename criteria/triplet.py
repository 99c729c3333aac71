"""
Triplet loss. Schroff et al., FaceNet, CVPR 2015, https://arxiv.org/abs/1503.03832, section 3.1.

With power 1 and active_only, over all triplets, it is the triplet loss of Musgrave et al., ECCV 2020.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False


def distances(batch, first, second, power=2):
    """‖x_i − x_j‖^power of the pairs (i, j) = (first, second): [T]. The gradient of a zero distance is zero."""
    if len(first) <= len(batch):
        squared = (batch[first] - batch[second]).pow(2).sum(dim=1)
    else:
        gram = batch @ batch.T                                     # one B x B product instead of T x D differences
        norms = gram.diagonal()
        squared = (norms[:, None] + norms - 2 * gram).clamp(min=0)[first, second]
    if power == 2:
        return squared
    apart = squared > 0
    return torch.where(apart, squared, 1).pow(power / 2) * apart


def triplet_violations(batch, triplets, margin=0.2, power=2):
    """[ d_ap^power − d_an^power + margin ]₊ of each triplet: [T]. Arguments as in triplet_loss."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, positives, negatives = triplets.T
        d_ap, d_an = distances(batch, anchors, positives, power), distances(batch, anchors, negatives, power)
        return F.relu(d_ap - d_an + margin)


def triplet_loss(batch, triplets, margin=0.2, power=2, active_only=False):
    """
    Args:
        batch:       [B, D] embeddings, used as they are.
        triplets:    [T, 3] int64 indices (anchor, positive, negative).
        margin:      in units of distance^power.
        power:       2, squared distances (FaceNet, Roth et al.); 1, plain ones (Musgrave et al.).
        active_only: mean over the triplets that violate the margin instead of over all.

    Returns: scalar; 0, with a graph, where there are no triplets.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.]])
    >>> triplet_loss(batch, torch.tensor([[0, 1, 2]]), margin=3.5)
    tensor(0.5000)
    """
    return mean(triplet_violations(batch, triplets, margin, power), active_only)


def mean(violations, active_only):
    return violations.sum() / ((violations > 0).sum().clamp(min=1) if active_only else max(len(violations), 1))


class Criterion(torch.nn.Module):
    """opt: loss_triplet_margin, _power, _active_only. batchminer: (batch [B, D], labels [B]) -> triplets [T, 3]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margin, self.power = opt.loss_triplet_margin, opt.loss_triplet_power
        self.active_only, self.batchminer = opt.loss_triplet_active_only, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        triplets = torch.as_tensor(self.batchminer(batch, labels), device=batch.device).long().reshape(-1, 3)
        violations = triplet_violations(batch, triplets, self.margin, self.power)
        self.log = {'tuples': len(triplets), 'active_tuples': (violations > 0).sum()}
        return mean(violations, self.active_only)
