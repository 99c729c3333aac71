# SPDX-License-Identifier: MIT
"""
SoftTriple: several centres per class with soft assignments. Qian et al., ICCV 2019, https://arxiv.org/abs/1909.05235.

Differs: `gamma` is a divisor, as in the authors' code; Roth et al. multiply by it. Before June 2020
pytorch-metric-learning divided the regulariser by half as much; double the weights that were tuned with it. The authors
use 10 centres and λ 20.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'n_centroids': {'default': 2, 'at_least': 1, 'help': 'number of centres per class'},
    'margin_delta': {},
    'gamma': {'above': 0},
    'lambda': {'argument': 'scale'},
    'reg_weight': {'at_least': 0},
    'lrmulti': {'default': 1.0, 'at_least': 0, 'help': 'learning rate of the centres, as a multiple of --lr'},
}


def softtriplet_loss(batch, labels, centroids, margin_delta=0.01, gamma=0.1, scale=8.0, reg_weight=0.2):
    """
    Args:
        batch:        [B, D] embeddings, normalised here.
        labels:       [B] int64 below C.
        centroids:    [C, K, D], K per class, normalised here.
        margin_delta: δ, a cosine, subtracted from the similarity to the own class.
        gamma:        γ, temperature of the soft assignment to the centres of a class.
        scale:        λ, factor of the similarities.
        reg_weight:   τ, weight of the regulariser that pulls the centres of a class together.

    Returns: scalar, the mean cross entropy plus the weighted mean distance.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8]])
    >>> centroids = torch.tensor([[[1., 0.], [0., -1.]], [[0., 1.], [-1., 0.]]])
    >>> softtriplet_loss(batch, torch.tensor([0, 1]), centroids, scale=2.0, reg_weight=0.0)
    tensor(0.3252)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        n_classes, n_centroids, dim = centroids.shape
        # classes last: twice as fast at 512 x 128 as a softmax over the short dimension of centres
        centroids = F.normalize(centroids.to(batch.dtype).transpose(0, 1).reshape(-1, dim), dim=1)      # [K C, D]
        cosines = (F.normalize(batch, dim=1) @ centroids.T).view(len(batch), n_centroids, n_classes)
        similarities = ((cosines / gamma).softmax(dim=1) * cosines).sum(dim=1)
        margins = similarities.new_full((len(batch), 1), -margin_delta)
        loss = F.cross_entropy(scale * similarities.scatter_add(1, labels[:, None], margins), labels)
        if reg_weight and n_centroids > 1:
            first, second = torch.triu_indices(n_centroids, n_centroids, offset=1, device=batch.device)
            centroids = centroids.view(n_centroids, n_classes, dim)
            between = (centroids[first] * centroids[second]).sum(dim=2)                        # [K (K − 1) / 2, C]
            distances = (2 + 1e-5 - 2 * between).sqrt()
            loss = loss + reg_weight * distances.sum() / (n_classes * n_centroids * (n_centroids - 1))
        return loss


class Criterion(torch.nn.Module):
    """
    opt: loss_softtriplet_n_centroids, _margin_delta, _gamma, _lambda, _reg_weight, _lrmulti, lr, n_classes, embed_dim.
    """

    def __init__(self, opt):
        super().__init__()
        self.arguments = (opt.loss_softtriplet_margin_delta, opt.loss_softtriplet_gamma, opt.loss_softtriplet_lambda,
                          opt.loss_softtriplet_reg_weight)
        shape = opt.n_classes, opt.loss_softtriplet_n_centroids, opt.embed_dim
        limit = (shape[0] * shape[1]) ** -0.5               # as kaiming_uniform_ of the authors' [D, C K] matrix
        self.centroids = torch.nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
        self.optim_dict_list = [{'params': [self.centroids], 'lr': opt.lr * opt.loss_softtriplet_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return softtriplet_loss(batch, labels, self.centroids, *self.arguments)
