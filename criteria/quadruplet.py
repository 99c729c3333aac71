# SPDX-License-Identifier: MIT
"""
Quadruplet loss. Chen et al., Beyond Triplet Loss, CVPR 2017, https://arxiv.org/abs/1704.01719; with Euclidean distances
instead of the paper's learned ones, as Roth et al., ICML 2020, use it.

Differs: Euclidean distances and two fixed margins; the paper learns a score and adapts its margins. The fourth sample
is of a third class; Roth et al. take any sample.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
FLAGS = {'margin_alpha_1': {}, 'margin_alpha_2': {}}


def squared_distances(batch):
    """‖x_i − x_j‖² of all pairs, [B, B], and a mask [B, B]: whether it is above the rounding error of 0, or NaN."""
    batch = batch - batch.detach().mean(dim=0)           # distances stay the same; their rounding errors shrink
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared, ~(squared <= 8 * torch.finfo(batch.dtype).eps * norms)


def root(squared, apart):
    """√squared; where not `apart` it is 0 and has gradient 0."""
    return squared.where(apart, 1).sqrt().where(apart, 0)


def distances_of_pairs(batch, first, second):
    """‖x_i − x_j‖ of the pairs (i, j) = (first, second): [T]. Where it is 0 its gradient is 0."""
    if len(first) > 4 * len(batch):
        return root(*squared_distances(batch))[first, second]      # 7 times as fast for all triplets of 112 samples
    return torch.linalg.vector_norm(batch[first] - batch[second], dim=1)


@torch.no_grad()
def sample_fourths(labels, triplets):
    """
    [T]: for each triplet, a random sample that is neither of the anchor's class nor of the negative's class; −1 if the
    batch has no third class.
    """
    # no mask [T, B], with which the loss takes 1.8 times as long for all triplets of 112 samples
    order = labels.argsort()                                       # a class is order[start:start + size]
    size = (labels[:, None] == labels).sum(dim=1, dtype=torch.int32)
    start = (labels[:, None] > labels).sum(dim=1, dtype=torch.int32)
    anchor, negative = triplets[:, 0], triplets[:, 2]
    lower, upper = torch.where(start[anchor] < start[negative], torch.stack([anchor, negative]),
                               torch.stack([negative, anchor]))
    of_lower = size[lower]
    of_upper = size[upper].where(start[lower] < start[upper], 0)   # 0 if both are one class
    n_choices = len(labels) - of_lower - of_upper
    index = (torch.rand(len(triplets), device=labels.device, dtype=torch.float32) * n_choices).long()
    index = index + of_lower * (index >= start[lower])             # skip the two classes
    index = index + of_upper * (index >= start[upper])
    return order[index.clamp(max=len(labels) - 1)].where(n_choices > 0, -1)


def quadruplet_loss(batch, triplets, fourths, margin_alpha_1=0.2, margin_alpha_2=0.2):
    """
    Args:
        batch:          [B, D] embeddings, used as they are.
        triplets:       [T, 3] int64 indices (anchor, positive, negative).
        fourths:        [T] int64 indices, for each triplet a sample f of a third class; −1: none.
        margin_alpha_1: α₁, margin between the distances of the positive and of the negative pair of a triplet.
        margin_alpha_2: α₂, margin between the distances of the positive pair and of the negative and a sample of a
                        third class.

    Returns: scalar, the mean of [ d_ap − d_an + α₁ ]₊ plus the mean of [ d_ap − d_nf + α₂ ]₊ over the triplets that
    have a fourth sample; a differentiable zero without triplets.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.], [0., 1.]])
    >>> quadruplet_loss(batch, torch.tensor([[0, 1, 2]]), torch.tensor([3]), margin_alpha_1=1.5, margin_alpha_2=0.25)
    tensor(0.7500)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, positives, negatives = triplets.T
        d_ap = distances_of_pairs(batch, anchors, positives)
        first = F.relu(d_ap - distances_of_pairs(batch, anchors, negatives) + margin_alpha_1)
        has_fourth = fourths >= 0
        d_nf = distances_of_pairs(batch, negatives, fourths.clamp(min=0))
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
        return quadruplet_loss(batch, triplets, sample_fourths(labels, triplets), *self.margins)
