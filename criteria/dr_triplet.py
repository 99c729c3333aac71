"""
Triplet loss with direction regularisation. Mohan et al., Moving in the Right Direction, CVPR 2020. With gamma 0 it is
the triplet loss with power 1.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
MARGIN_UNIT = 'distance'


def squared_distances(batch):
    """‖x_i − x_j‖² of all pairs, [B, B], and the mask [B, B] of those above the rounding error of 0."""
    batch = batch - batch.detach().mean(dim=0)           # distances stay; smaller norms have smaller rounding errors
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared, squared > 8 * torch.finfo(batch.dtype).eps * norms


def squared_of_pairs(batch, first, second):
    """‖x_i − x_j‖² of the pairs (i, j) = (first, second): [T]. A value within the rounding error of 0 is set to 0."""
    if len(first) <= 4 * len(batch):
        return (batch[first] - batch[second]).pow(2).sum(dim=1)
    squared, apart = squared_distances(batch)                      # one B x B product instead of T x D differences
    return squared.where(apart, 0)[first, second]


def dr_triplet_violations(batch, triplets, margin=0.278, gamma=0.492):
    """[ d_ap − d_an + margin − γ cos(x_n − x_a, x_p − x_a) ]₊ of each triplet: [T]. Arguments as in dr_triplet_loss."""
    anchors, positives, negatives = triplets.T
    squared = [squared_of_pairs(batch, *pair) for pair in ((anchors, positives), (anchors, negatives))]
    apart = [part > 0 for part in squared]
    d_ap, d_an = (part.where(mask, 1).sqrt() for part, mask in zip(squared, apart, strict=True))
    direction = 0
    if gamma:
        # by the law of cosines; 0 where the anchor coincides with the positive or the negative
        side = squared[0] + squared[1] - squared_of_pairs(batch, positives, negatives)
        direction = side / (2 * d_ap * d_an) * (apart[0] & apart[1])
    return F.relu(d_ap * apart[0] - d_an * apart[1] + margin - gamma * direction)


def dr_triplet_loss(batch, triplets, margin=0.278, gamma=0.492):
    """
    Args:
        batch:    [B, D] embeddings, used as they are.
        triplets: [T, 3] int64 indices (anchor, positive, negative).
        margin:   in units of distance.
        gamma:    γ, weight of the cosine of the angle at the anchor between the positive and the negative.

    Returns: scalar, the mean of [ d_ap − d_an + margin − γ cos(x_n − x_a, x_p − x_a) ]₊; a differentiable zero without
    triplets.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [3., 4.]])
    >>> dr_triplet_loss(batch, torch.tensor([[0, 1, 2]]), margin=4.5, gamma=0.5)
    tensor(0.2000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        return dr_triplet_violations(batch, triplets, margin, gamma).sum() / max(len(triplets), 1)


class Criterion(torch.nn.Module):
    """opt: loss_dr_triplet_margin, _gamma. batchminer: (batch [B, D], labels [B]) -> triplets [T, 3]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margin, self.gamma, self.batchminer = opt.loss_dr_triplet_margin, opt.loss_dr_triplet_gamma, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        triplets = torch.as_tensor(self.batchminer(batch, labels), device=batch.device).long().reshape(-1, 3)
        self.log = {'tuples': len(triplets)}
        return dr_triplet_loss(batch, triplets, self.margin, self.gamma)
