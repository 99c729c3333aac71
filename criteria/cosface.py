# SPDX-License-Identifier: MIT
"""
CosFace: an additive cosine margin. Wang et al., CVPR 2018, https://arxiv.org/abs/1801.09414, Eq. 4.

Differs: The class weights start uniform in ±1/√D, pytorch-metric-learning's standard normal. With Adam, its learning
rate η is η / √(3 D) here.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'margin': {},
    'scale': {'above': 0},
    'lr': {'default': 0.0005, 'at_least': 0, 'help': 'learning rate of the class weights'},
}


def cosface_loss(batch, labels, weights, margin=0.35, scale=64.0, reduction='mean'):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        weights: [C, D], the class weights, normalised here.
        margin:  a cosine, subtracted from the cosine between a sample and its own class.
        scale:   factor of the cosines.
        reduction: mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy.

    >>> batch, weights = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> cosface_loss(batch, torch.tensor([0, 1]), weights, margin=0.25, scale=2.0)
    tensor(0.4729)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(weights.to(batch.dtype), dim=1).T
        margins = cosines.new_full((len(batch), 1), -margin)
        logits = scale * cosines.scatter_add(1, labels[:, None], margins)
        return F.cross_entropy(logits, labels, reduction=reduction)


class Criterion(torch.nn.Module):
    """opt: loss_cosface_margin, _scale, _lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_cosface_margin, opt.loss_cosface_scale
        self.lr = opt.loss_cosface_lr
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return cosface_loss(batch, labels, self.weights, *self.arguments, reduction)
