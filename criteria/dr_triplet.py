"""
Triplet loss with direction regularisation. Mohan et al., Moving in the Right Direction, CVPR 2020. At gamma 0 it is the
triplet loss of plain distances.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False


def squared_distances(batch, first, second):
    """‖x_i − x_j‖² of the pairs (i, j) = (first, second): [T]; what is within rounding of 0 is 0."""
    if len(first) <= 4 * len(batch):
        return (batch[first] - batch[second]).pow(2).sum(dim=1)
    gram = batch @ batch.T                                         # one B x B product instead of T x D differences
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared.where(squared > 8 * torch.finfo(batch.dtype).eps * norms, 0)[first, second]


def dr_triplet_violations(batch, triplets, margin=0.278, gamma=0.492):
    """[ d_ap − d_an + margin − γ cos(x_n − x_a, x_p − x_a) ]₊ of each triplet: [T]. Arguments: dr_triplet_loss's."""
    anchors, positives, negatives = triplets.T
    squared = [squared_distances(batch, *pair) for pair in ((anchors, positives), (anchors, negatives))]
    apart = [part > 0 for part in squared]
    d_ap, d_an = (part.where(mask, 1).sqrt() for part, mask in zip(squared, apart, strict=True))
    direction = 0
    if gamma:
        # the law of cosines; 0 where a difference vanishes
        side = squared[0] + squared[1] - squared_distances(batch, positives, negatives)
        direction = side / (2 * d_ap * d_an) * (apart[0] & apart[1])
    return F.relu(d_ap * apart[0] - d_an * apart[1] + margin - gamma * direction)


def dr_triplet_loss(batch, triplets, margin=0.278, gamma=0.492):
    """
    Args:
        batch:    [B, D] embeddings, used as they are.
        triplets: [T, 3] int64 indices (anchor, positive, negative).
        margin:   in units of distance.
        gamma:    γ, weight of the direction: how far the negative lies on the positive's side of the anchor.

    Returns: scalar, the mean over the triplets; 0, with a graph, where there are none.

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
