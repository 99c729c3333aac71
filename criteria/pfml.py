# SPDX-License-Identifier: MIT
"""
Potential field of samples and proxies. Bhatnagar & Ahuja, Potential Field Based Deep Metric Learning, CVPR 2025,
https://arxiv.org/abs/2405.18560.

Differs: The authors' code is not public; the formula and the settings follow public reproductions. These average
over pairs, or leave out the potentials of the proxies; this code sums over all ordered pairs of samples and proxies, as
the paper does. Every pair of different classes with a distance above δ adds the constant δ^−α (625 with the defaults),
so that the value of the loss hardly changes during training. Distances below 0.001 count as 0.001, since float32 cannot
resolve them. The number of pairs grows with the square of the number of proxies: for the 11,318 classes of Stanford
Online Products, the authors use 2 proxies per class.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'n_proxies': {'default': 15, 'at_least': 1, 'help': 'number of proxies per class'},
    'alpha': {'at_least': 0},
    'delta': {'above': 0},
    'lrmulti': {'default': 100.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}

NEAREST = 1e-3                  # distance below which the potential is constant: float32 cannot tell it from 0


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


def potential_energy(points, labels, alpha=4.0, delta=0.2):
    """
    The sum of the potentials of all ordered pairs of different points [N, D] with labels [N]: −1 / max(d, δ)^α for two
    points of one class, 1 / min(d, δ)^α for points of different classes, where d is their Euclidean distance.
    """
    centre = points.detach().mean(dim=0)       # distances stay the same; their rounding errors shrink
    points = points - centre
    others = points.detach()
    norms = others.square().sum(dim=1)

    def twice(part, rows):
        squared = part.square().sum(dim=1, keepdim=True) + norms - 2 * part @ others.T
        halves = 0.5 * squared.clamp(min=NEAREST ** 2).log()                               # log d
        same = labels[rows, None] == labels
        limit = math.log(delta)
        pull, push = -(-alpha * halves.clamp(min=limit)).exp(), (-alpha * halves.clamp(max=limit)).exp()
        return 2 * torch.where(same, pull, push).scatter(1, rows[:, None], 0).sum()

    # A chunk gives the gradient with respect to its own points only. The sum is symmetric, so the gradient with respect
    # to the other points of the pairs is as large: twice the terms give the whole gradient.
    total = SumOverRows.apply(points, twice, max(1, 2 ** 24 // len(points)))
    return total - total.detach() / 2


def pfml_loss(batch, labels, proxies, alpha=4.0, delta=0.2):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        proxies: [C, M, D], M per class, normalised here.
        alpha:   α, exponent of the potentials, which are proportional to 1 / distance^α.
        delta:   δ, Euclidean distance below which positives do not attract, and above which negatives do not repel.

    Returns: scalar, the potential energy of the samples and the proxies of all classes; see potential_energy. Distances
    below 0.001 count as 0.001.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[[1., 0.]], [[0., 1.]]])
    >>> pfml_loss(batch, torch.tensor([0, 1]), proxies, alpha=2., delta=1.)
    tensor(5.)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    if labels.device.type == 'cpu' and len(labels) and not 0 <= labels.min() <= labels.max() < len(proxies):
        raise ValueError(f'expected labels from 0 to {len(proxies) - 1}, not {labels.min()} to {labels.max()}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        n_classes, n_proxies = proxies.shape[:2]
        points = torch.cat([F.normalize(batch, dim=1), F.normalize(proxies.to(batch.dtype), dim=2).flatten(0, 1)])
        classes = torch.arange(n_classes, device=labels.device).repeat_interleave(n_proxies)
        own = classes[labels * n_proxies]                      # the labels; on a GPU, asserts that the classes exist
        return potential_energy(points, torch.cat([own, classes]), alpha, delta)


class Criterion(torch.nn.Module):
    """opt: loss_pfml_n_proxies, _alpha, _delta, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_pfml_alpha, opt.loss_pfml_delta
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.loss_pfml_n_proxies, opt.embed_dim))
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_pfml_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return pfml_loss(batch, labels, self.proxies, *self.arguments)
