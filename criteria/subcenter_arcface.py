# SPDX-License-Identifier: MIT
"""
Sub-centre ArcFace: several centres per class, of which the nearest counts. Deng et al., ECCV 2020.

Differs: Where θ + m exceeds π, cos θ − m sin m replaces cos(θ + m). insightface changes the logits without gradient, so
that the gradient of the target logit lacks a factor. Roth et al. clamp negative cosines to 0, and before February 2021
their margin had no effect. The paper has scale 64. The centres start uniform in ±1/√D, pytorch-metric-learning's
standard normal. With Adam, its learning rate η is η / √(3 D) here.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'n_centers': {'default': 3, 'at_least': 1, 'help': 'number of centres per class'},
    'angular_margin': {'at_least': 0},
    'feature_scale': {'above': 0},
    'lr': {'default': 0.0005, 'at_least': 0, 'help': 'learning rate of the centres'},
}


def subcenter_arcface_loss(batch, labels, centers, angular_margin=0.5, feature_scale=64.0, reduction='mean'):
    """
    Args:
        batch:          [B, D] embeddings, normalised here.
        labels:         [B] int64 below C.
        centers:        [C, K, D], K per class, normalised here; only the nearest centre of a class counts.
        angular_margin: m, in radians, added to the angle θ between a sample and its own class.
        feature_scale:  s, factor of the cosines.
        reduction:      mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy; where θ + m exceeds π, cos θ − m sin m replaces cos(θ + m).

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8]])
    >>> centers = torch.tensor([[[1., 0.], [-1., 0.]], [[0., -1.], [0., 1.]]])
    >>> subcenter_arcface_loss(batch, torch.tensor([0, 1]), centers, angular_margin=0.5, feature_scale=2.0)
    tensor(0.5277)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        n_classes, n_centers = centers.shape[:2]
        cosines = F.normalize(batch, dim=1) @ F.normalize(centers.to(batch.dtype), dim=2).flatten(0, 1).T
        cosines = cosines.view(len(batch), n_classes, n_centers).max(dim=2).values
        own = cosines.gather(1, labels[:, None])
        sine = (1 - own.square()).clamp(min=torch.finfo(batch.dtype).eps).sqrt()
        within = own * math.cos(angular_margin) - sine * math.sin(angular_margin)
        beyond = own - angular_margin * math.sin(angular_margin)
        own = torch.where(own >= -math.cos(angular_margin), within, beyond)
        logits = feature_scale * cosines.scatter(1, labels[:, None], own)
        return F.cross_entropy(logits, labels, reduction=reduction)


class Criterion(torch.nn.Module):
    """opt: loss_subcenter_arcface_n_centers, _angular_margin, _feature_scale, _lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_subcenter_arcface_angular_margin, opt.loss_subcenter_arcface_feature_scale
        self.lr = opt.loss_subcenter_arcface_lr
        limit = opt.embed_dim ** -0.5
        shape = opt.n_classes, opt.loss_subcenter_arcface_n_centers, opt.embed_dim
        self.centers = torch.nn.Parameter(torch.empty(shape).uniform_(-limit, limit))

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return subcenter_arcface_loss(batch, labels, self.centers, *self.arguments, reduction)
