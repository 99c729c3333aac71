"""
Quadruplet loss. Chen et al., Beyond Triplet Loss, CVPR 2017, https://arxiv.org/abs/1704.01719; with plain distances in
the place of the paper's learned ones, as Roth et al., ICML 2020, use it.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False


def distances(batch, first, second):
    """‖x_i − x_j‖ of the pairs (i, j) = (first, second): [T]. The gradient of a zero distance is zero."""
    if len(first) <= 4 * len(batch):
        squared = (batch[first] - batch[second]).pow(2).sum(dim=1)
    else:
        gram = batch @ batch.T                                     # one B x B product instead of T x D differences
        norms = gram.diagonal()
        squared = norms[:, None] + norms - 2 * gram
        squared = squared.where(squared > 8 * torch.finfo(batch.dtype).eps * norms, 0)[first, second]
    apart = squared > 0
    return squared.where(apart, 1).sqrt().where(apart, 0)


@torch.no_grad()
def draw_fourths(labels, triplets):
    """
    For each triplet a random sample whose class is neither the anchor's nor the negative's: [T]; −1 where there is
    none.
    """
    order = labels.argsort()
    size = (labels[:, None] == labels).sum(dim=1, dtype=torch.int32)
    start = (labels[:, None] > labels).sum(dim=1, dtype=torch.int32)       # a class is order[start:start + size]
    anchor, negative = triplets[:, 0], triplets[:, 2]
    lower, upper = torch.where(start[anchor] < start[negative], torch.stack([anchor, negative]),
                               torch.stack([negative, anchor]))
    n_choices = len(labels) - size[lower] - size[upper]
    place = (torch.rand(len(triplets), device=labels.device, dtype=torch.float32) * n_choices).long()
    place = place.minimum((n_choices - 1).clamp(min=0))            # float32 may round up
    place = place + size[lower] * (place >= start[lower])          # the two classes are left out
    place = place + size[upper] * (place >= start[upper])
    return order[place.clamp(max=len(labels) - 1)].where(n_choices > 0, -1)


def quadruplet_loss(batch, triplets, fourths, margin_alpha_1=0.2, margin_alpha_2=0.2):
    """
    Args:
        batch:          [B, D] embeddings, used as they are.
        triplets:       [T, 3] int64 indices (anchor, positive, negative).
        fourths:        [T] int64 indices of samples of a third class each; −1: none.
        margin_alpha_1: of anchor, positive and negative.
        margin_alpha_2: of anchor, positive and the pair negative, fourth.

    Returns: scalar, the mean of [ d_ap − d_an + α₁ ]₊ plus the mean of [ d_ap − d_nf + α₂ ]₊ over the triplets that
    have a fourth; 0, with a graph, where there are none.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.], [0., 1.]])
    >>> quadruplet_loss(batch, torch.tensor([[0, 1, 2]]), torch.tensor([3]), margin_alpha_1=1.5, margin_alpha_2=0.25)
    tensor(0.7500)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, positives, negatives = triplets.T
        d_ap = distances(batch, anchors, positives)
        first = F.relu(d_ap - distances(batch, anchors, negatives) + margin_alpha_1)
        has_fourth = fourths >= 0
        d_nf = distances(batch, negatives, fourths.clamp(min=0))
        second = F.relu(d_ap - d_nf + margin_alpha_2) * has_fourth
        return first.sum() / max(len(triplets), 1) + second.sum() / has_fourth.sum().clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_quadruplet_margin_alpha_1, _2. batchminer: (batch [B, D], labels [B]) -> triplets [T, 3]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margins = opt.loss_quadruplet_margin_alpha_1, opt.loss_quadruplet_margin_alpha_2
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        triplets = torch.as_tensor(self.batchminer(batch, labels), device=batch.device).long().reshape(-1, 3)
        self.log = {'tuples': len(triplets)}
        return quadruplet_loss(batch, triplets, draw_fourths(labels, triplets), *self.margins)
