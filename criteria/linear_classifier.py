# SPDX-License-Identifier: MIT
"""
Cross entropy of a linear classifier on the embeddings, usually added to another loss: training with a classifier in
Musgrave et al., https://github.com/KevinMusgrave/powerful-benchmarker.

Differs: Powerful-benchmarker trains the classifier with a weight decay of 5e-5 (`--loss_decay`); by default its
classifier is linear, too.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'lr': {'default': 1e-05, 'at_least': 0, 'help': 'learning rate of the class weights and biases'},
}


def linear_classifier_loss(batch, labels, weights, biases, reduction='mean'):
    """
    Args:
        batch:   [B, D] embeddings, not normalised.
        labels:  [B] int64 below C.
        weights: [C, D], the class weights.
        biases:  [C].
        reduction: mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy of the logits batch weights^T + biases.

    >>> batch, weights = torch.tensor([[3., 4.], [1., 0.]]), torch.tensor([[1., 0.], [0., 2.]])
    >>> linear_classifier_loss(batch, torch.tensor([1, 0]), weights, biases=torch.tensor([1., 0.]))
    tensor(0.0725)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        logits = F.linear(batch, weights.to(batch.dtype), biases.to(batch.dtype))
        return F.cross_entropy(logits, labels, reduction=reduction)


class Criterion(torch.nn.Module):
    """opt: loss_linear_classifier_lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.lr = opt.loss_linear_classifier_lr
        limit = opt.embed_dim ** -0.5                                   # as in torch.nn.Linear
        self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))
        self.biases = torch.nn.Parameter(torch.empty(opt.n_classes).uniform_(-limit, limit))

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return linear_classifier_loss(batch, labels, self.weights, self.biases, reduction)
