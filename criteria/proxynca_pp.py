# SPDX-License-Identifier: MIT
"""
ProxyNCA++, without its pooling and layer norm, which belong to the network. Teh et al., ECCV 2020,
https://arxiv.org/abs/2004.01113. Musgrave et al., ECCV 2020, call this form ProxyNCA.

Differs: The authors' learning rates are for Adam with eps 1. Their gain also needs max pooling, layer normalisation and
class-balanced batches. The proxies start as standard normal numbers over 8, pytorch-metric-learning's as standard
normal numbers. With Adam, its learning rate η is η / 8 here.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'scale': {'above': 0},
    'lrmulti': {'default': 50.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}


def proxynca_pp_loss(batch, labels, proxies, scale=3.0, reduction='mean'):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class, normalised here.
        scale:   k, the norm to which embeddings and proxies are scaled; the distances are δ = ‖k x − k w‖².
        reduction: mean, or none for the value of each sample.

    Returns: scalar, the mean cross entropy of the logits −δ.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> proxynca_pp_loss(batch, torch.tensor([0, 1]), proxies, scale=1.0)
    tensor(0.3200)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(proxies.to(batch.dtype), dim=1).T
        return F.cross_entropy(2 * scale ** 2 * cosines, labels, reduction=reduction)    # −δ = 2 k² (cos − 1)


class Criterion(torch.nn.Module):
    """opt: loss_proxynca_pp_scale, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.scale = opt.loss_proxynca_pp_scale
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim) / 8)
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_proxynca_pp_lrmulti}]

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return proxynca_pp_loss(batch, labels, self.proxies, self.scale, reduction)
