# SPDX-License-Identifier: MIT
"""
ProxyNCA with direction regularisation. Mohan et al., Moving in the Right Direction, CVPR 2020; by default with plain
distances to proxies that are not normalised, as in the public reproduction.

Differs: The authors have published no code; the defaults follow a public reproduction. With gamma 0 and
`--loss_dr_proxynca_scale 3` it is proxynca.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'gamma': {'at_least': 0},
    'scale': {'at_least': 0},
    'lrmulti': {'default': 50.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}


def dr_proxynca_loss(batch, labels, proxies, gamma=0.3, scale=0.0):
    """
    Args:
        batch:   [B, D] embeddings.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class.
        gamma:   γ, weight of cos(w_n − x, w_own − x), added to the distance of a negative proxy w_n; 0: none.
        scale:   k, norm of embeddings and proxies, with squared distances; 0: no scaling, plain distances, as in
                 the public reproduction.

    Returns: scalar, the mean of d_own + log Σ_n e^{−d_n − γ C_n}; a differentiable zero for one class.

    >>> batch, proxies = torch.tensor([[1., 0.], [0., 0.]]), torch.tensor([[1., 1.], [0., 2.]])
    >>> dr_proxynca_loss(batch, torch.tensor([0, 1]), proxies, gamma=0.5)
    tensor(-0.7255)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        proxies = proxies.to(batch.dtype)
        if len(proxies) == 1:
            return batch.sum() * 0
        if scale:
            batch, proxies = scale * F.normalize(batch, dim=1), scale * F.normalize(proxies, dim=1)
        centre = proxies.detach().mean(dim=0)            # distances stay the same; their rounding errors shrink
        batch, proxies = batch - centre, proxies - centre
        # everything comes from inner products, so that no tensor has the shape [B, C, D]
        x, w = batch.square().sum(dim=1, keepdim=True), proxies.square().sum(dim=1)
        products = batch @ proxies.T
        squared = x + w - 2 * products
        apart = ~(squared <= 8 * torch.finfo(batch.dtype).eps * (x + w))       # NaN stays NaN
        distances = squared.where(apart, 1).sqrt()                              # [B, C]
        similarities = -(squared if scale else distances) * apart
        own = labels[:, None]
        others = similarities
        if gamma:
            of_own = proxies[labels] @ proxies.T                                # w_n·w_own
            side = of_own - products - products.gather(1, own) + x              # (w_n − x)·(w_own − x)
            direction = side / (distances * distances.gather(1, own)) * (apart & apart.gather(1, own))
            others = others - gamma * direction
        return (others.scatter(1, own, -torch.inf).logsumexp(dim=1) - similarities.gather(1, own)[:, 0]).mean()


class Criterion(torch.nn.Module):
    """opt: loss_dr_proxynca_gamma, _scale, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_dr_proxynca_gamma, opt.loss_dr_proxynca_scale
        self.proxies = torch.nn.Parameter(F.normalize(torch.randn(opt.n_classes, opt.embed_dim), dim=1))
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_dr_proxynca_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return dr_proxynca_loss(batch, labels, self.proxies, *self.arguments)
