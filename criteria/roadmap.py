# SPDX-License-Identifier: MIT
"""
ROADMAP: a robust and decomposable average precision. Ramzi et al., NeurIPS 2021, https://arxiv.org/abs/2110.01445.

Differs: The step function is continuous at delta; with the authors' offset 1.44 it jumps down there
(`--loss_roadmap_offset 1.44`). The authors add SupAP and calibration with weight 1 each; with the default weights of ½
the loss here is half of theirs. The two means of the calibration are over the pairs that violate their margin.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {
    'tau': {'above': 0},
    'rho': {'at_least': 0},
    'delta': {'at_least': 0},
    'offset': {},
    'lambda': {'argument': 'weight', 'at_least': 0, 'at_most': 1},
    'pos_margin': {},
    'neg_margin': {},
}


class SumOverRows(torch.autograd.Function):
    """
    The sum of term(rows of a matrix, their indices) over chunks of n_rows rows. The forward pass also computes the
    gradient, chunk by chunk, so that no tensor larger than the matrix is kept. It has no second derivatives.
    """

    @staticmethod
    def forward(ctx, matrix, term, n_rows):
        needs_gradient = ctx.needs_input_grad[0]                    # inference mode allows none
        total = matrix.new_zeros(())
        gradient = torch.zeros_like(matrix)
        for rows in torch.arange(len(matrix), device=matrix.device).split(n_rows):
            part = matrix[rows]
            with torch.set_grad_enabled(needs_gradient):
                value = term(part.requires_grad_(needs_gradient), rows)
            if needs_gradient:
                gradient[rows] = torch.autograd.grad(value, part)[0]
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():                                # called with create_graph=True
            raise RuntimeError('this loss has no second derivatives: call backward without create_graph=True')
        return grad_output * ctx.saved_tensors[0], None, None


def class_members(labels):
    """
    [B, M] indices of all samples of each sample's class, itself included, padded if the class has fewer than M samples;
    and a mask [B, M], False for padding.
    """
    order = labels.argsort()
    same = labels[:, None] == labels
    size = same.sum(dim=1, dtype=torch.int32)
    start = (labels[:, None] > labels).sum(dim=1, dtype=torch.int32)
    slots = torch.arange(int(size.max()), device=labels.device)
    is_member = slots < size[:, None]
    return order[(start[:, None] + slots).where(is_member, 0)], is_member


def supap(cosines, labels, tau=0.01, rho=100.0, delta=0.05, offset=-1.0):
    """
    SupAP of cosines [B, B]: the mean of 1 − AP over queries q with a positive. AP is the mean of ρ⁺ / (ρ⁺ + ρ⁻) over
    the positives j, including the query itself: ρ⁺ is the exact rank of j among the positives, without gradient, and
    ρ⁻ = Σ_n H(s_qn − s_qj) is an upper bound of the number of negatives that are more similar than j.
    """
    if offset < 0:
        offset = 1 / (1 + math.exp(-delta / tau)) + 0.5             # the value of `step` below at delta: no jump
    # memory: comparisons with the M samples of a class are B x M x B, and not B x B x B
    members, is_member = class_members(labels)
    size = is_member.sum(dim=1)
    tie = 8 * torch.finfo(cosines.dtype).eps                        # smaller differences of cosines are rounding errors
    weight = (size > 1).to(cosines.dtype) / size            # weight per precision; 0 without positives

    def average_precisions(scores, rows):
        own = scores.gather(1, members[rows])
        before = (own[:, None, :] >= own[:, :, None] - tie) & is_member[rows, None, :]
        rank = before.sum(dim=2)                                    # each counts itself
        gap = scores[:, None, :] - own[:, :, None]
        step = torch.sigmoid(gap / tau) + 0.5 * (gap > tie)
        above = torch.where(gap > delta, rho * (gap - delta) + offset, step)
        negatives = labels[rows, None] != labels
        precisions = rank / (rank + (above * negatives[:, None, :]).sum(dim=2))
        return ((precisions * is_member[rows]).sum(dim=1) * weight[rows]).sum()

    n_rows = max(1, 2 ** 20 // members.numel())
    if n_rows < len(labels):
        total = SumOverRows.apply(cosines, average_precisions, n_rows)
    else:
        total = average_precisions(cosines, torch.arange(len(labels), device=labels.device))
    n_queries = (size > 1).sum()
    return (n_queries - total) / n_queries.clamp(min=1)


def calibration(cosines, labels, pos_margin=0.9, neg_margin=0.6):
    """Mean non-zero [ pos_margin − s ]₊ of positive pairs plus mean non-zero [ s − neg_margin ]₊ of negative pairs."""
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    pull = F.relu(pos_margin - cosines).where(positives, 0)
    push = F.relu(cosines - neg_margin).where(~same, 0)
    return pull.sum() / pull.count_nonzero().clamp(min=1) + push.sum() / push.count_nonzero().clamp(min=1)


def roadmap_loss(batch, labels, tau=0.01, rho=100.0, delta=0.05, offset=-1.0, weight=0.5, pos_margin=0.9,
                 neg_margin=0.6):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64.
        tau:        temperature of the sigmoid in H(t), the smooth step function of the difference t of two cosines.
        rho:        slope of the step function H beyond delta.
        delta:      difference of cosines beyond which the step function H is linear.
        offset:     value of the step function H just beyond delta; a negative value makes it continuous.
        weight:     λ, weight of the calibration loss; the ranking loss, SupAP, has the weight 1 − λ.
        pos_margin: calibration loss: cosine that positives should have at least.
        neg_margin: calibration loss: cosine that negatives should have at most.

    Returns: scalar, (1 − λ) SupAP + λ calibration.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> roadmap_loss(batch, torch.tensor([0, 0, 1]), weight=0.25)
    tensor(0.2922)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        cosines = batch @ batch.T
        ranking = supap(cosines, labels, tau, rho, delta, offset)
        return (1 - weight) * ranking + weight * calibration(cosines, labels, pos_margin, neg_margin)


class Criterion(torch.nn.Module):
    """opt: loss_roadmap_tau, _rho, _delta, _offset, _lambda, _pos_margin, _neg_margin."""

    def __init__(self, opt):
        super().__init__()
        names = ('tau', 'rho', 'delta', 'offset', 'lambda', 'pos_margin', 'neg_margin')
        self.arguments = [getattr(opt, f'loss_roadmap_{name}') for name in names]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return roadmap_loss(batch, labels, *self.arguments)
