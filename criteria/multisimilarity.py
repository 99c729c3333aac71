# SPDX-License-Identifier: MIT
"""
Multi-similarity loss with its own pair mining. Wang et al., CVPR 2019, https://arxiv.org/abs/1904.06627,
Eq. 11, 12 and 15.

Differs: The mean is over the whole batch, as in the authors' code; Roth et al. divide by the number of anchors that the
mining keeps. An anchor without a positive or without a negative adds 0; in pytorch-metric-learning, its other
pairs count. The authors' code leaves out positives with a similarity of 1, and so duplicates. The paper: β 50, λ 1.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {
    'pos_weight': {'above': 0},
    'neg_weight': {'above': 0},
    'margin': {},
    'thresh': {},
}


def mine_pairs(similarities, positives, negatives, margin=0.1):
    """
    The informative pairs: positives with s_ip − margin < max_n s_in, and negatives with s_in + margin > min_p s_ip.

    Args:
        similarities: [B, R] cosines.
        positives:    bool [B, R], the positive pairs.
        negatives:    bool [B, R], the negative pairs.
        margin:       ε, a cosine; 2 or more keeps every pair of the anchors that have positives and negatives.

    Returns: two bool [B, R], the positive and the negative pairs that are kept.
    """
    if margin >= 2:
        return positives & negatives.any(dim=1, keepdim=True), negatives & positives.any(dim=1, keepdim=True)
    hardest_negative = similarities.masked_fill(~negatives, -torch.inf).amax(dim=1, keepdim=True)
    hardest_positive = similarities.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
    # negated comparisons keep pairs whose similarity is NaN, so that the loss is NaN, too
    return (positives & ~(similarities - margin >= hardest_negative),
            negatives & ~(similarities + margin <= hardest_positive))


def log_one_plus_sum_exp(exponents, mask):
    """log(1 + Σ_j e^{exponents_ij}) over the j in the mask: [B]."""
    exponents = exponents.masked_fill(~mask, -torch.inf)
    # logsumexp takes up to 14 times as long on the CPU where exponentials underflow, as in trained networks
    return -torch.cat([exponents.new_zeros(len(exponents), 1), exponents], dim=1).log_softmax(dim=1)[:, 0]


def multisimilarity_loss(batch, labels, pos_weight=2.0, neg_weight=40.0, margin=0.1, thresh=0.5, references=None,
                         reference_labels=None, own=None, log=None, reduction='mean'):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64.
        pos_weight: α, the sharpness of the pull on positive pairs.
        neg_weight: β, the sharpness of the push on negative pairs.
        margin:     ε of the pair mining, a cosine; 2 or more means no mining.
        thresh:     λ, the cosine that separates positive from negative pairs.
        references, reference_labels, own: [R, D] embeddings to compare each sample with, their labels [R], and the
                    index [B] of each sample among them, None if it is not; by default the batch.
        log:        a dict that receives `tuples`, the number of pairs that the mining keeps, and how many of them are
                    positive and negative, `violating_positives` and `violating_negatives`.
        reduction:  mean, or none for the value of each sample.

    Returns: scalar, the mean over all B anchors of log(1 + Σ_p e^{−α (s_ip − λ)}) / α + log(1 + Σ_n e^{β (s_in − λ)}) /
    β; anchors without a positive or a negative add 0.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> multisimilarity_loss(batch, torch.tensor([0, 0, 1]), neg_weight=50.)
    tensor(0.1997)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        if references is None:
            references = batch
            reference_labels = labels
            own = torch.arange(len(labels), device=labels.device)
        else:
            references = F.normalize(references.to(batch.dtype), dim=1)
        own = labels.new_zeros(len(labels), 0) if own is None else own[:, None]
        similarities = batch @ references.T
        same = labels[:, None] == reference_labels
        positives, negatives = mine_pairs(similarities.detach(), same.scatter(1, own, False), ~same, margin)
        if log is not None:
            n_positives, n_negatives = positives.count_nonzero(), negatives.count_nonzero()
            log.update(tuples=n_positives + n_negatives, violating_positives=n_positives,
                       violating_negatives=n_negatives)
        pull = log_one_plus_sum_exp(-pos_weight * (similarities - thresh), positives) / pos_weight
        push = log_one_plus_sum_exp(neg_weight * (similarities - thresh), negatives) / neg_weight
        return pull + push if reduction == 'none' else (pull + push).mean()


class Criterion(torch.nn.Module):
    """opt: loss_multisimilarity_pos_weight, _neg_weight, _margin, _thresh."""

    def __init__(self, opt):
        super().__init__()
        names = ('pos_weight', 'neg_weight', 'margin', 'thresh')
        self.arguments = [getattr(opt, f'loss_multisimilarity_{name}') for name in names]

    def forward(self, batch, labels, references=None, reference_labels=None, own=None, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar. references: see multisimilarity_loss."""
        self.log = {}
        return multisimilarity_loss(batch, labels, *self.arguments, references, reference_labels, own, self.log,
                                    reduction)
