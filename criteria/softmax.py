# SPDX-License-Identifier: MIT
"""
Normalised softmax. Zhai & Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019,
https://arxiv.org/abs/1811.12649.

Differs: The paper also applies layer normalisation to the features, which is part of the network here. The class
weights start uniform in ±1/√D, pytorch-metric-learning's standard normal. With Adam, its rate η is η / √(3 D) here.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'lr': {'default': 1e-05, 'at_least': 0, 'help': 'learning rate of the class weights'},
    'temperature': {'above': 0},
}


def softmax_loss(batch, labels, weights, temperature=0.05, reduction='mean'):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64 below C.
        weights:     [C, D], the class weights, normalised here.
        temperature: temperature; the cosines are divided by it.
        reduction:   mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy.

    >>> batch, weights = torch.tensor([[3., 4.], [1., 0.]]), torch.tensor([[1., 0.], [0., 2.]])
    >>> softmax_loss(batch, torch.tensor([1, 0]), weights, temperature=1.0)
    tensor(0.4557)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(weights.to(batch.dtype), dim=1).T
        return F.cross_entropy(cosines / temperature, labels, reduction=reduction)


class Criterion(torch.nn.Module):
    """opt: loss_softmax_temperature, loss_softmax_lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.temperature = opt.loss_softmax_temperature
        self.lr = opt.loss_softmax_lr
        limit = opt.embed_dim ** -0.5
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return softmax_loss(batch, labels, self.weights, self.temperature, reduction)
