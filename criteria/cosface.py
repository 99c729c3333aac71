# SPDX-License-Identifier: MIT
"""
CosFace: an additive cosine margin. Wang et al., CVPR 2018, https://arxiv.org/abs/1801.09414, Eq. 4.

Differs:

Differs:

Differs:

Differs: The class weights start uniform in ±1/√D, pytorch-metric-learning's standard normal. With Adam, its learning
rate η is η / √(3 D) here. On grocery photos, the rate 0.01 instead of 0.00051, to which the library's 0.01 corresponds,
changes R@1 by -0.13 ± 0.16 and MAP@R by -0.30 ± 0.05 points (docs/equality.md).
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
SAMPLES_CLASSES = True          # works with --class_sample_rate
MARGIN_UNIT = 'cosine'


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


def cosface_loss(batch, labels, weights, margin=0.35, scale=64.0):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        weights: [C, D], the class weights, normalised here.
        margin:  a cosine, subtracted from the cosine between a sample and its own class.
        scale:   multiplies the cosines.

    Returns: scalar, the mean cross entropy.

    >>> batch, weights = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> cosface_loss(batch, torch.tensor([0, 1]), weights, margin=0.25, scale=2.0)
    tensor(0.4729)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(weights.to(batch.dtype), dim=1).T
        margins = cosines.new_full((len(batch), 1), -margin)
        return F.cross_entropy(scale * cosines.scatter_add(1, labels[:, None], margins), labels)


class Criterion(torch.nn.Module):
    """opt: loss_cosface_margin, _scale, _lr, class_sample_rate, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.rate = opt.class_sample_rate
        self.margin, self.scale, self.lr = opt.loss_cosface_margin, opt.loss_cosface_scale, opt.loss_cosface_lr
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        weights, labels = sample_classes(self.weights, labels, self.rate)
        return cosface_loss(batch, labels, weights, self.margin, self.scale)
