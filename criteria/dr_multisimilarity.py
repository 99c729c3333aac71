# SPDX-License-Identifier: MIT
"""
Multi-similarity loss with direction regularisation. Mohan et al., Moving in the Right Direction, CVPR 2020, Eq. 15.
With gamma 0 it is the multi-similarity loss.

Differs: The authors have published no code; the defaults follow a public reproduction.
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
    'gamma': {'at_least': 0},
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


def cosines_at_anchors(batch, hardest):
    """cos(x_n − x_i, x_h − x_i) of anchors i, their hardest positives h and every n: [B, B]; 0 if x_n or x_h is x_i."""
    batch = batch - batch.detach().mean(dim=0)           # differences stay the same; their rounding errors shrink
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    apart = squared > 8 * torch.finfo(batch.dtype).eps * norms
    distances = squared.where(apart, 1).sqrt()
    towards = hardest[:, None]
    side = gram[hardest] - gram - gram.gather(1, towards) + norms[:, None]
    return side / (distances * distances.gather(1, towards)) * (apart & apart.gather(1, towards))


def log_one_plus_sum_exp(exponents, mask):
    """log(1 + Σ_j e^{exponents_ij}) over the j in the mask: [B]."""
    exponents = exponents.masked_fill(~mask, -torch.inf)
    # logsumexp takes up to 14 times as long on the CPU where exponentials underflow, as in trained networks
    return -torch.cat([exponents.new_zeros(len(exponents), 1), exponents], dim=1).log_softmax(dim=1)[:, 0]


def dr_multisimilarity_loss(batch, labels, pos_weight=2.0, neg_weight=50.0, margin=0.1, thresh=0.6, gamma=0.28):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64.
        pos_weight: α, the sharpness of the pull on positive pairs.
        neg_weight: β, the sharpness of the push on negative pairs.
        margin:     ε of the pair mining, a cosine; 2 or more means no mining.
        thresh:     λ, the cosine that separates positive from negative pairs.
        gamma:      weight γ of cos(x_n − x_i, x_h − x_i), subtracted from a negative's similarity; h: hardest positive.

    Returns: scalar, the mean over all B anchors; an anchor without a positive or a negative adds 0.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> dr_multisimilarity_loss(batch, torch.tensor([0, 0, 1]), gamma=0.5)
    tensor(0.3000)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        similarities = batch @ batch.T
        same = labels[:, None] == labels
        every_positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positives, negatives = mine_pairs(similarities.detach(), every_positive, ~same, margin)
        pull = log_one_plus_sum_exp(-pos_weight * (similarities - thresh), positives) / pos_weight
        if gamma:
            hardest = similarities.detach().masked_fill(~every_positive, torch.inf).argmin(dim=1)
            similarities = similarities - gamma * cosines_at_anchors(batch, hardest)
        push = log_one_plus_sum_exp(neg_weight * (similarities - thresh), negatives) / neg_weight
        return (pull + push).mean()


class Criterion(torch.nn.Module):
    """opt: loss_dr_multisimilarity_pos_weight, _neg_weight, _margin, _thresh, _gamma."""

    def __init__(self, opt):
        super().__init__()
        names = ('pos_weight', 'neg_weight', 'margin', 'thresh', 'gamma')
        self.arguments = [getattr(opt, f'loss_dr_multisimilarity_{name}') for name in names]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return dr_multisimilarity_loss(batch, labels, *self.arguments)
