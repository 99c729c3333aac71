# SPDX-License-Identifier: MIT
"""
Contrastive loss. Hadsell et al., CVPR 2006.

Differs: Hadsell et al. square both terms; Roth et al., ICML 2020, Musgrave et al., ECCV 2020, and this code do not.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
ACCEPTS_MASKS = True            # it has a formula for masks of pairs, too, as `all` gives them
ACCEPTS_COUNTS = True           # masks may also say how often each pair counts
FLAGS = {'pos_margin': {}, 'neg_margin': {}, 'active_only': {}}


def contrastive_loss(distances, positives, negatives, pos_margin=0.0, neg_margin=1.0, active_only=False, log=None):
    """
    Args:
        distances:   distances of pairs, a tensor of any shape.
        positives:   bool of the same shape, the positive pairs; or int64, how often each counts as one.
        negatives:   likewise, the negative pairs; a pair that is neither is left out.
        pos_margin:  m⁺, the distance below which positive pairs add no loss.
        neg_margin:  m⁻, the distance above which negative pairs add no loss.
        active_only: average over the pairs with a non-zero loss only (Musgrave et al.), instead of over all pairs.
        log:         a dict that receives `violating_positives` and `violating_negatives`, the numbers of pairs that
                     violate their margin.

    Returns: scalar, the mean of [ d − m⁺ ]₊ over the positive pairs plus the mean of [ m⁻ − d ]₊ over the negative
    pairs; a mean over no pair is a differentiable zero.

    >>> d = torch.tensor([0.5, 1.5, 0.25, 2.0])
    >>> contrastive_loss(d, torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True]))
    tensor(1.3750)
    """
    too_far, too_near = F.relu(distances - pos_margin), F.relu(neg_margin - distances)
    if log is not None:
        log.update(violating_positives=(positives.bool() & (too_far > 0)).count_nonzero(),
                   violating_negatives=(negatives.bool() & (too_near > 0)).count_nonzero())
    return masked_mean(too_far, positives, active_only) + masked_mean(too_near, negatives, active_only)


def masked_mean(terms, mask, active_only):
    if mask.dtype != torch.bool:
        counts = mask * (terms != 0) if active_only else mask
        return (terms * counts).sum() / counts.sum().clamp(min=1)
    if active_only:
        mask = mask & (terms != 0)
    return terms.where(mask, 0).sum() / mask.count_nonzero().clamp(min=1)


def distances_between(batch, references):
    """‖x_i − y_j‖ of two sets of points: [B, R]; 0 with gradient 0 if it is within the rounding error of 0."""
    centre = references.detach().mean(dim=0)             # distances stay the same; their rounding errors shrink
    batch, references = batch - centre, references - centre
    x, y = batch.pow(2).sum(dim=1, keepdim=True), references.pow(2).sum(dim=1)
    squared = x + y - 2 * batch @ references.T
    apart = ~(squared <= 16 * torch.finfo(batch.dtype).eps * y)              # NaN stays NaN
    return squared.where(apart, 1).sqrt().where(apart, 0)


class Criterion(torch.nn.Module):
    """
    opt: loss_contrastive_pos_margin, _neg_margin, _active_only.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3], or masks of positive and negative pairs, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.arguments = (opt.loss_contrastive_pos_margin, opt.loss_contrastive_neg_margin,
                          opt.loss_contrastive_active_only)
        self.batchminer = batchminer
        self.counts = getattr(opt, 'tuple_statistics', False)

    def forward(self, batch, labels, references=None, reference_labels=None, own=None, **kwargs):
        """
        batch [B, D] embeddings, labels [B] int64, on one device -> scalar.

        With references [R, D] and their labels [R], the pairs are all samples with all references; own [B] is the index
        of each sample among the references, None where they are others.
        """
        batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
        with torch.autocast(batch.device.type, enabled=False):
            if references is not None:
                same = labels[:, None] == reference_labels
                own = labels.new_zeros(len(labels), 0) if own is None else own[:, None]
                pairs = same.scatter(1, own, False), ~same
                return contrastive_loss(distances_between(batch, references.to(batch.dtype)), *pairs, *self.arguments)
            mined = self.batchminer(batch, labels)
            if isinstance(mined, tuple):
                pairs = mined
                self.log = {'tuples': (mined[0] | mined[1]).count_nonzero()}
                distances = distances_between(batch, batch)
            else:
                anchors, positives, negatives = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3).T
                self.log = {'tuples': len(anchors)}
                differences = batch[anchors.repeat(2)] - batch[torch.cat([positives, negatives])]
                distances = torch.linalg.vector_norm(differences, dim=1)           # where it is 0 its gradient is 0
                is_positive = torch.arange(len(distances), device=batch.device) < len(anchors)
                pairs = is_positive, ~is_positive
            return contrastive_loss(distances, *pairs, *self.arguments, log=self.log if self.counts else None)
