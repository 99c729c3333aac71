# SPDX-License-Identifier: MIT
"""
Threshold-consistent margin, a regulariser to add to any loss. Zhang et al., Threshold-Consistent Margin Loss for
Open-World Deep Metric Learning, ICLR 2024, https://arxiv.org/abs/2307.04047.

Differs: The authors' code is not public; pytorch-metric-learning's `ThresholdConsistentMarginLoss` gives the same
values. With the margins 0.9 and 0.6 it equals the calibration term of roadmap, except that roadmap leaves out pairs
exactly on a margin.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {
    'margin_pos': {},
    'margin_neg': {},
    'weight_pos': {'at_least': 0},
    'weight_neg': {'at_least': 0},
}


def tcm_loss(batch, labels, margin_pos=0.9, margin_neg=0.5, weight_pos=1.0, weight_neg=1.0):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64.
        margin_pos: m⁺, margin of positive pairs; those with a cosine up to it are hard and add to the loss.
        margin_neg: m⁻, margin of negative pairs; those with at least this cosine are hard and add to the loss.
        weight_pos: λ⁺, weight of the term of the positive pairs.
        weight_neg: λ⁻, weight of the term of the negative pairs.

    Returns: scalar, λ⁺ times the mean of m⁺ − s over the hard positive pairs plus λ⁻ times the mean of s − m⁻ over the
    hard negative pairs; a term without hard pairs is a differentiable zero.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> tcm_loss(batch, torch.tensor([0, 0, 1]))
    tensor(0.6000)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        cosines = batch @ batch.T
        same = labels[:, None] == labels
        positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        pull = positives & ~(cosines > margin_pos)             # NaN stays NaN
        push = ~same & ~(cosines < margin_neg)
        too_far = (margin_pos - cosines).where(pull, 0).sum() / pull.sum().clamp(min=1)
        too_near = (cosines - margin_neg).where(push, 0).sum() / push.sum().clamp(min=1)
        return weight_pos * too_far + weight_neg * too_near


class Criterion(torch.nn.Module):
    """opt: loss_tcm_margin_pos, _margin_neg, _weight_pos, _weight_neg."""

    def __init__(self, opt):
        super().__init__()
        names = ('margin_pos', 'margin_neg', 'weight_pos', 'weight_neg')
        self.arguments = [getattr(opt, f'loss_tcm_{name}') for name in names]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return tcm_loss(batch, labels, *self.arguments)
