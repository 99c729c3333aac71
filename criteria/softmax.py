# SPDX-License-Identifier: MIT
"""
Normalised softmax. Zhai & Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019,
https://arxiv.org/abs/1811.12649.

Differs: The paper also applies layer normalisation to the features, which is part of the network here. The class
weights start uniform in ±1/√D, pytorch-metric-learning's standard normal. With Adam, its learning rate η is η / √(3 D)
here. On grocery photos, the rate 0.01 changes R@1 by +0.35 ± 0.22 and MAP@R by -0.23 ± 0.06 against 0.00051, its 0.01
(docs/equality.md). The class weights start uniform in ±1/√D, pytorch-metric-learning's standard normal. With Adam, its
learning rate η is η / √(3 D) here. On grocery photos, the rate 0.01 instead of 0.00051, to which the library's 0.01
corresponds, changes R@1 by +0.33 ± 0.15 and MAP@R by -0.21 ± 0.04 points (docs/equality.md).
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
SAMPLES_CLASSES = True          # works with --class_sample_rate


class SampledRows(torch.autograd.Function):
    """Rows [S, ...] of weights [C, ...]. The gradient of the weights is a sparse tensor of these rows."""

    @staticmethod
    def forward(ctx, weights, rows):
        ctx.save_for_backward(rows)
        ctx.shape = weights.shape
        return weights.index_select(0, rows)

    @staticmethod
    def backward(ctx, gradient):
        rows, = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], gradient, ctx.shape, is_coalesced=True, check_invariants=False), None


def sample_classes(weights, labels, rate=1.0):
    """
    Partial softmax (An et al., 2020, https://arxiv.org/abs/2010.05222): the weights of the classes in the batch and of
    further classes, sampled uniformly, up to the fraction `rate` of the C classes; and the labels [B] as indices of
    these weights. With rate 1, the weights [C, ...] and labels themselves.
    """
    if rate == 1:
        return weights, labels
    n_sampled = int(rate * len(weights))
    if n_sampled < len(labels):
        n_sampled = max(n_sampled, len(labels.unique()))
    priority = torch.rand(len(weights), device=labels.device).index_fill(0, labels, 2)
    rows = priority.topk(n_sampled, sorted=False).indices.sort().values
    return SampledRows.apply(weights, rows), torch.searchsorted(rows, labels)


def softmax_loss(batch, labels, weights, temperature=0.05):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64 below C.
        weights:     [C, D], the class weights, normalised here.
        temperature: the cosines are divided by it.

    Returns: scalar, the mean cross entropy.

    >>> batch, weights = torch.tensor([[3., 4.], [1., 0.]]), torch.tensor([[1., 0.], [0., 2.]])
    >>> softmax_loss(batch, torch.tensor([1, 0]), weights, temperature=1.0)
    tensor(0.4557)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(weights.to(batch.dtype), dim=1).T
        return F.cross_entropy(cosines / temperature, labels)


class Criterion(torch.nn.Module):
    """opt: loss_softmax_temperature, loss_softmax_lr, class_sample_rate, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.rate = opt.class_sample_rate
        self.temperature, self.lr = opt.loss_softmax_temperature, opt.loss_softmax_lr
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        weights, labels = sample_classes(self.weights, labels, self.rate)
        return softmax_loss(batch, labels, weights, self.temperature)
