# SPDX-License-Identifier: MIT
"""
LDAM: cosine margins that are larger for classes with fewer images. Cao et al., Learning Imbalanced Datasets with
Label-Distribution-Aware Margin Loss, NeurIPS 2019, https://arxiv.org/abs/1906.07413, Eq. 12 to 14.

Differs: The authors weight the classes in the last epochs only: none in 160 of 200 epochs, then those of
`--loss_ldam_weights_beta 0.9999`. Their mean is divided by the sum of the samples' weights, here as there. Their class
weights start uniform in ±1, before they are normalised, and have the learning rate of the network.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'max_margin': {},
    'scale': {'above': 0},
    'weights_beta': {'at_least': 0, 'at_most': 1},
    'weights_delay': {'default': 0, 'at_least': 0,
                      'help': 'number of first epochs with equal weights'},
    'lr': {'default': 0.0005, 'at_least': 0, 'help': 'learning rate of the class weights'},
}


def ldam_loss(batch, labels, weights, class_counts, max_margin=0.5, scale=30.0, weights_beta=0.0):
    """
    Args:
        batch:        [B, D] embeddings, normalised here.
        labels:       [B] int64 below C.
        weights:      [C, D], the class weights, normalised here.
        class_counts: [C], the number of training images n_c of each class.
        max_margin:   the margin of the smallest class, a cosine; others have max_margin (n_c / min n)^(−1/4).
        scale:        s, factor of the cosines.
        weights_beta: β; a class has the weight (1 − β) / (1 − β^n_c); 0 means equal weights.

    Returns: scalar, the cross entropy of s (cos θ − m) for the sample's class and s cos θ for others, averaged with the
    weights of the classes.

    >>> batch, weights = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> ldam_loss(batch, torch.tensor([0, 1]), weights, torch.tensor([16, 1]), scale=2.0)
    tensor(0.6195)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        counts = class_counts.to(batch.dtype)
        counts = counts.where(counts > 0, counts.max())            # a class without images is not the smallest
        margins = max_margin * (counts / counts.min()) ** -0.25
        if 0 < weights_beta < 1:                                   # expm1, since 1 − β^n loses its digits in float32
            importance = (1 - weights_beta) / -torch.expm1(counts * math.log(weights_beta))
        else:                                                      # 0: equal weights; 1: the limit, 1 / n
            importance = 1 / counts ** weights_beta
        cosines = F.normalize(batch, dim=1) @ F.normalize(weights.to(batch.dtype), dim=1).T
        logits = scale * cosines.scatter_add(1, labels[:, None], -margins[labels][:, None])
        return F.cross_entropy(logits, labels, weight=importance)


class Criterion(torch.nn.Module):
    """opt: loss_ldam_max_margin, _scale, _weights_beta, _weights_delay, _lr, n_classes, embed_dim, class_counts."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_ldam_max_margin, opt.loss_ldam_scale
        self.lr = opt.loss_ldam_lr
        self.weights_beta = opt.loss_ldam_weights_beta
        self.weights_delay = opt.loss_ldam_weights_delay if self.weights_beta else 0
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))
        self.register_buffer('class_counts', torch.as_tensor(opt.class_counts))

    def forward(self, batch, labels, epoch=None, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device; epoch, from 1 on -> scalar."""
        beta = 0.0 if epoch is not None and epoch <= self.weights_delay else self.weights_beta
        return ldam_loss(batch, labels, self.weights, self.class_counts, *self.arguments, beta)
