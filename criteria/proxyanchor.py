# SPDX-License-Identifier: MIT
"""
Proxy anchor loss. Kim et al., CVPR 2020, https://arxiv.org/abs/2003.13911, Eq. 4.

Differs: The authors' exponentials overflow in half precision. Their recipe is AdamW, with head and proxies only in the
first epochs (`--warmup`).
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'margin': {},
    'alpha': {'above': 0},
    'lrmulti': {'default': 100.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}


def log_one_plus_sum_exp(exponents, mask):
    """log(1 + Σ_j e^{exponents_ij}) over the j in the mask: [B]."""
    exponents = exponents.masked_fill(~mask, -torch.inf)
    # logsumexp takes up to 14 times as long on the CPU where exponentials underflow, as in trained networks
    return -torch.cat([exponents.new_zeros(len(exponents), 1), exponents], dim=1).log_softmax(dim=1)[:, 0]


def proxyanchor_loss(batch, labels, proxies, margin=0.1, alpha=32.0):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class, normalised here.
        margin:  δ, margin, a cosine.
        alpha:   α, sharpness of the loss on positive and negative pairs.

    Returns: scalar, the mean of log(1 + Σ_own e^{−α (s − δ)}) over the classes in the batch plus the mean of
    log(1 + Σ_other e^{α (s + δ)}) over all classes. Σ_own is over the samples of the class, Σ_other over the rest.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> proxyanchor_loss(batch, torch.tensor([0, 1]), proxies, margin=0.1, alpha=2.)
    tensor(1.3960)
    """
    if labels.device.type == 'cpu' and len(labels) and not 0 <= labels.min() <= labels.max() < len(proxies):
        raise ValueError(f'expected labels from 0 to {len(proxies) - 1}, not {labels.min()} to {labels.max()}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(proxies.to(batch.dtype), dim=1) @ F.normalize(batch, dim=1).T      # [C, B]
        # scatter_ asserts on a GPU that the classes exist
        own = torch.zeros_like(cosines, dtype=torch.bool).scatter_(0, labels[None], True)
        pull = log_one_plus_sum_exp(-alpha * (cosines - margin), own).sum() / own.any(dim=1).sum()
        push = log_one_plus_sum_exp(alpha * (cosines + margin), ~own).mean()
        return pull + push


class Criterion(torch.nn.Module):
    """opt: loss_proxyanchor_margin, _alpha, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.margin = opt.loss_proxyanchor_margin
        self.alpha = opt.loss_proxyanchor_alpha
        self.proxies = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim))
        torch.nn.init.kaiming_normal_(self.proxies, mode='fan_out')
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_proxyanchor_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return proxyanchor_loss(batch, labels, self.proxies, self.margin, self.alpha)
