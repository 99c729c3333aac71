# SPDX-License-Identifier: MIT
"""
HAPPIER: hierarchical average precision. Ramzi et al., Hierarchical Average Precision Training for Pertinent Image
Retrieval, ECCV 2022, https://arxiv.org/abs/2207.04873.

Differs: The query itself counts among the positives, the retrieved images and the images of its level, as in the
authors' code. Queries that share no label with another image are left out. As in roadmap, the step function is
continuous at delta; the authors set its value there to 1.44 (`--loss_happier_offset 1.44`), and for iNaturalist they
use 1 and another function between 0 and delta. Their option `with_hrank`, which adds gradients from images of higher
levels, is not implemented. On Stanford Online Products, they train the class weights with a learning rate of 10; on
DyML-Animal, they use λ 0.5.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'alpha': {'at_least': 0},
    'tau': {'above': 0},
    'rho': {'at_least': 0},
    'delta': {'at_least': 0},
    'offset': {},
    'lambda': {'argument': 'weight', 'at_least': 0, 'at_most': 1},
    'temperature': {'above': 0},
    'lr': {'default': 2e-05, 'at_least': 0, 'help': 'learning rate of the class weights'},
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


def relevances(levels, n_levels, alpha=1.0, dtype=torch.float32):
    """
    The relevance of each sample to each query: (l / L)^α divided by the number of samples at the same level l, and 0 at
    level 0.

    levels: [B, B], the number of the query's (row's) L labels that each sample shares; the query itself shares all.
    """
    each = torch.arange(1, n_levels + 1, device=levels.device)
    sizes = (levels[:, :, None] == each).sum(dim=1)                                                  # [B, L]
    values = (each.to(dtype) / n_levels) ** alpha / sizes.clamp(min=1)
    return values.gather(1, (levels - 1).clamp(min=0)) * (levels > 0)


def hierarchical_ap(cosines, levels, n_levels, alpha=1.0, tau=0.01, rho=100.0, delta=0.05, offset=-1.0):
    """
    The mean of 1 − H-AP over the queries that share a label with another sample; arguments as in happier_loss.
    H-AP is Σ_j (hrank / rank)(j) / Σ_j rel(j) over the samples j of level 1 or more, including the query itself. In
    hrank, and in rank for the samples of j's level or above, samples are counted exactly and without gradient. In rank,
    the number of samples k of lower levels that are more similar to the query than j is replaced by its upper bound
    Σ_k H(s_qk − s_qj).
    """
    offset = 1 / (1 + math.exp(-delta / tau)) + 0.5 if offset < 0 else offset
    relevance = relevances(levels, n_levels, alpha, cosines.dtype)
    tie = 8 * torch.finfo(cosines.dtype).eps                        # smaller differences of cosines are rounding errors
    is_query = (levels > 0).sum(dim=1) > 1
    per_relevance = is_query / relevance.sum(dim=1)

    def average_precisions(scores, rows):
        level, rel = levels[rows], relevance[rows]
        gap = scores[:, None, :] - scores[:, :, None]                        # s_qk − s_qj at [q, j, k]
        lower = level[:, None, :] < level[:, :, None]
        before = gap >= -tie                                        # j counts itself
        hrank = (torch.minimum(rel[:, None, :], rel[:, :, None]) * before).sum(dim=2)
        step = torch.sigmoid(gap / tau) + 0.5 * (gap > tie)
        above = torch.where(gap > delta, rho * (gap - delta) + offset, step)
        rank = torch.where(lower, above, before.to(gap.dtype)).sum(dim=2)
        return ((hrank / rank * (rel > 0)).sum(dim=1) * per_relevance[rows]).sum()

    total = SumOverRows.apply(cosines, average_precisions, max(1, 2 ** 20 // len(cosines) ** 2))
    n_queries = is_query.sum()
    return (n_queries - total) / n_queries.clamp(min=1)


def happier_loss(batch, labels, weights, superclasses, alpha=1.0, tau=0.01, rho=100.0, delta=0.05, offset=-1.0,
                 weight=0.1, temperature=0.05):
    """
    Args:
        batch:        [B, D] embeddings, normalised here.
        labels:       [B] int64 below C.
        weights:      [C, D], the class weights, normalised here.
        superclasses: [C, L − 1] int64, the super-class of each class at each of the other levels.
        alpha:        α, the exponent of the relevance of a level.
        tau:          temperature of the sigmoid in H(t), the smooth step function of the difference t of two cosines.
        rho:          slope of the step function H beyond delta.
        delta:        difference of cosines beyond which the step function H is linear.
        offset:       value of the step function H just beyond delta; a negative value makes it continuous.
        weight:       λ, weight of the clustering loss; the hierarchical average precision has the weight 1 − λ.
        temperature:  temperature of the clustering loss; its cosines are divided by it.

    Returns: scalar, (1 − λ) times the mean of 1 − H-AP plus λ times the cross entropy of the classes.

    >>> batch, weights = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]]), torch.tensor([[1., 0.], [0., 1.], [-1., 0.]])
    >>> superclasses = torch.tensor([[0], [1], [0]])
    >>> happier_loss(batch, torch.tensor([0, 1, 2]), weights, superclasses, weight=0.)
    tensor(0.3234)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        every = torch.cat([labels[:, None], superclasses[labels]], dim=1)                            # [B, L]
        levels = (every[:, None] == every).sum(dim=2)
        ranking = hierarchical_ap(batch @ batch.T, levels, every.shape[1], alpha, tau, rho, delta, offset)
        logits = batch @ F.normalize(weights.to(batch.dtype), dim=1).T / temperature
        return (1 - weight) * ranking + weight * F.cross_entropy(logits, labels)


class Criterion(torch.nn.Module):
    """
    opt: loss_happier_alpha, _tau, _rho, _delta, _offset, _lambda, _temperature, _lr, n_classes, embed_dim, and
    superclasses, the index of the super-class of each class at each level: [C, L − 1], a tensor or a list of lists.
    """

    def __init__(self, opt):
        super().__init__()
        if opt.superclasses is None:
            raise ValueError('--loss happier needs the super-classes of the training classes, and there are none here: '
                             'docs/data.md says which data sets have them (with --unsupervised, none has)')
        names = ('alpha', 'tau', 'rho', 'delta', 'offset', 'lambda', 'temperature')
        self.arguments = [getattr(opt, f'loss_happier_{name}') for name in names]
        self.lr = opt.loss_happier_lr
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))
        self.register_buffer('superclasses', torch.as_tensor(opt.superclasses), persistent=False)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return happier_loss(batch, labels, self.weights, self.superclasses, *self.arguments)
