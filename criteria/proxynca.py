# SPDX-License-Identifier: MIT
"""
ProxyNCA, without the positive proxy in the denominator, as in the paper. Movshovitz-Attias et al., ICCV 2017,
https://arxiv.org/abs/1703.07464, Eq. 4.

Differs: pytorch-metric-learning's ProxyNCALoss, here `proxynca_pp`, has the positive proxy in the denominator.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'lrmulti': {'default': 50.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
    'scale': {'above': 0},
}


def proxynca_loss(batch, labels, proxies, scale=3.0, reduction='mean'):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class, normalised here.
        scale:   k, the norm to which embeddings and proxies are scaled; the distances are δ = ‖k x − k w‖².
        reduction: mean, or none for the value of each sample.

    Returns: scalar, the mean of δ_own + log Σ_other e^{−δ_other}, which can be negative; a differentiable zero for one
    class.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> proxynca_loss(batch, torch.tensor([0, 1]), proxies, scale=1.0)
    tensor(-1.2000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(proxies.to(batch.dtype), dim=1).T
        if len(proxies) == 1:
            return cosines.sum(dim=1) * 0 if reduction == 'none' else cosines.sum() * 0
        similarities = 2 * scale ** 2 * (cosines - 1)              # −δ
        own = similarities.gather(1, labels[:, None])
        values = similarities.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1) - own[:, 0]
        return values if reduction == 'none' else values.mean()


class Criterion(torch.nn.Module):
    """opt: loss_proxynca_scale, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.scale = opt.loss_proxynca_scale
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim) / 8)
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_proxynca_lrmulti}]

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return proxynca_loss(batch, labels, self.proxies, self.scale, reduction)
