# SPDX-License-Identifier: MIT
"""
Proxy losses with separate parameters for positives and negatives, the baselines of NIR. Roth et al., Non-isotropy
Regularization for Proxy-based Deep Metric Learning, CVPR 2022, https://arxiv.org/abs/2203.08547.

Differs: The term of the positives is averaged over the samples of the batch; in proxyanchor it is averaged over the
classes of the batch. Both are equal if all classes have the same number of samples.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'mode': {'choices': ['anchor', 'nca']},
    'pos_alpha': {'above': 0},
    'neg_alpha': {'above': 0},
    'pos_delta': {},
    'neg_delta': {},
    'lrmulti': {'default': 2000.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}


def log_one_plus_sum_exp(exponents, mask):
    """log(1 + Σ_j e^{exponents_ij}) over the j in the mask: [B]."""
    exponents = exponents.masked_fill(~mask, -torch.inf)
    # logsumexp takes up to 14 times as long on the CPU where exponentials underflow, as in trained networks
    return -torch.cat([exponents.new_zeros(len(exponents), 1), exponents], dim=1).log_softmax(dim=1)[:, 0]


def proxy_alignment(cosines, labels, pos_alpha=32.0, neg_alpha=32.0, pos_delta=0.1, neg_delta=-0.1):
    """
    Loss of the cosines s [C, B] of proxies and samples, the sum of two means. Pull, averaged over the samples:
    log(1 + Σ e^{−α⁺ (s − δ⁺)}), summed over all samples of the sample's class, with its proxy. Push, averaged over all
    classes: log(1 + Σ e^{α⁻ (s − δ⁻)}), summed over the samples of other classes, with the proxy of the class.
    """
    # scatter_ asserts on a GPU that the classes exist
    own = torch.zeros_like(cosines, dtype=torch.bool).scatter_(0, labels[None], True)
    pull = log_one_plus_sum_exp(-pos_alpha * (cosines - pos_delta), own)[labels].mean()
    return pull + log_one_plus_sum_exp(neg_alpha * (cosines - neg_delta), ~own).mean()


def oproxy_loss(batch, labels, proxies, mode='anchor', pos_alpha=32.0, neg_alpha=32.0, pos_delta=0.1, neg_delta=-0.1):
    """
    Args:
        batch:     [B, D] embeddings, normalised here.
        labels:    [B] int64 below C.
        proxies:   [C, D], one per class, normalised here.
        mode:      terms of the sums in the logarithms: anchor, the samples of the batch, or nca, the proxies.
        pos_alpha: α⁺, scale of the cosines of positive pairs.
        neg_alpha: α⁻, scale of the cosines of negative pairs.
        pos_delta: δ⁺, cosine that positives should have at least.
        neg_delta: δ⁻, cosine that negatives should have at most.

    Returns: scalar; in mode nca, the mean over the samples of
    log(1 + m e^{−α⁺ (s_own − δ⁺)}) + log(1 + Σ e^{α⁻ (s − δ⁻)}), where m samples of the batch have the same class, and
    the sum is over the proxies of other classes.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> oproxy_loss(batch, torch.tensor([0, 1]), proxies, pos_alpha=2., neg_alpha=2.)
    tensor(1.3960)
    """
    if labels.device.type == 'cpu' and len(labels) and not 0 <= labels.min() <= labels.max() < len(proxies):
        raise ValueError(f'expected labels from 0 to {len(proxies) - 1}, not {labels.min()} to {labels.max()}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        cosines = F.normalize(proxies.to(batch.dtype), dim=1) @ F.normalize(batch, dim=1).T      # [C, B]
        if mode == 'anchor':
            return proxy_alignment(cosines, labels, pos_alpha, neg_alpha, pos_delta, neg_delta)
        own = torch.arange(len(cosines), device=labels.device) == labels[:, None]                # [B, C]
        n_own = (labels[:, None] == labels).sum(dim=1).to(batch.dtype)
        exponents = n_own.log() - pos_alpha * (cosines.gather(0, labels[None])[0] - pos_delta)
        push = log_one_plus_sum_exp(neg_alpha * (cosines.T - neg_delta), ~own)
        # above the default threshold, 20, softplus is the identity: an error that float64 shows
        return (F.softplus(exponents, threshold=40) + push).mean()


class Criterion(torch.nn.Module):
    """opt: loss_oproxy_mode, _pos_alpha, _neg_alpha, _pos_delta, _neg_delta, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        names = ('mode', 'pos_alpha', 'neg_alpha', 'pos_delta', 'neg_delta')
        self.arguments = [getattr(opt, f'loss_oproxy_{name}') for name in names]
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim) / 8)
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_oproxy_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return oproxy_loss(batch, labels, self.proxies, *self.arguments)
