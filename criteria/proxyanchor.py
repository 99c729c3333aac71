"""Proxy anchor loss. Kim et al., CVPR 2020, https://arxiv.org/abs/2003.13911, Eq. 4."""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True


def log_one_plus_sum_exp(exponents, mask):
    """log(1 + Σ_i e^{exponents_ic}) over the i in the mask: [C]."""
    exponents = exponents.masked_fill(~mask, -torch.inf)
    # ten times faster on the CPU than logsumexp, which is slow where exponentials underflow
    return -torch.cat([exponents.new_zeros(1, exponents.shape[1]), exponents]).log_softmax(dim=0)[0]


def proxyanchor_loss(batch, labels, proxies, margin=0.1, alpha=32.0):
    """
    Args:
        batch:   [B, D] embeddings, normalised here.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class, normalised here.
        margin:  δ, in units of cosine.
        alpha:   the sharpness of pull and push.

    Returns: scalar: the pull's mean over the classes in the batch plus the push's mean over all classes.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> proxyanchor_loss(batch, torch.tensor([0, 1]), proxies, margin=0.1, alpha=2.)
    tensor(1.3960)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(batch, dim=1) @ F.normalize(proxies.to(batch.dtype), dim=1).T      # [B, C]
        own = labels[:, None] == torch.arange(len(proxies), device=labels.device)
        pull = log_one_plus_sum_exp(-alpha * (cosines - margin), own).sum() / own.any(dim=0).sum()
        push = log_one_plus_sum_exp(alpha * (cosines + margin), ~own).mean()
        return pull + push


class Criterion(torch.nn.Module):
    """opt: loss_proxyanchor_margin, _alpha, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.margin, self.alpha = opt.loss_proxyanchor_margin, opt.loss_proxyanchor_alpha
        self.proxies = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim))
        torch.nn.init.kaiming_normal_(self.proxies, mode='fan_out')
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_proxyanchor_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return proxyanchor_loss(batch, labels, self.proxies, self.margin, self.alpha)
