# SPDX-License-Identifier: MIT
"""
Class-wise multi-similarity loss with a trained mean field of each class in place of samples. Furusawa, Mean Field
Theory in Deep Metric Learning, ICLR 2024, https://arxiv.org/abs/2306.15368.

Differs: The authors' exponentials are computed without a log-sum-exp, and overflow in half precision. Their code has no
default for `reg_weight`; their commands have 0. Their mean fields have the weight decay of the network, which is
`--loss_decay` here, and their gradients are not clipped. With α = 0.01 the value is always about ln 2 / α = 69.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'alpha': {'above': 0},
    'beta': {'above': 0},
    'margin': {},
    'reg_weight': {'at_least': 0},
    'lrmulti': {'default': 2000.0, 'at_least': 0, 'help': 'learning rate of the mean fields, as a multiple of --lr'},
}


def log_mean_exp(exponents, same):
    """
    The logarithm of the mean of e^exponents [B, N] over the samples of each sample's class, [B, N]. same [B, B]:
    whether two samples are of one class.
    """
    first = same.int().argmax(dim=1)                                  # stands for the class; equal in all its rows
    index = first[:, None].expand_as(exponents)
    largest = torch.zeros_like(exponents).scatter_reduce(0, index, exponents.detach(), 'amax', include_self=False)
    largest = largest[first]
    means = same.to(exponents.dtype) @ (exponents - largest).exp() / same.sum(dim=1, keepdim=True)
    return means.log() + largest


def mfcwms_loss(batch, labels, proxies, alpha=0.01, beta=80.0, margin=0.8, reg_weight=0.0):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64 below C.
        proxies:    [C, D], the mean field of each class, normalised here.
        alpha:      α, scale of the cosines of samples and the mean fields of their classes.
        beta:       β, scale of the cosines of samples and other mean fields.
        margin:     δ, a cosine, subtracted from all cosines s.
        reg_weight: λ, weight of the regulariser that pushes mean fields apart.

    Returns: scalar. With a_c and n_cc', the means over the samples of class c in the batch of e^{−α (s_c − δ)} and of
    e^{β (s_c' − δ)}, both 0 for other classes: (1/α) Σ_c log(1 + a_c) + (1/2β) Σ_{c≠c'} log(1 + n_cc' + n_c'c), both
    divided by the number of classes in the batch; plus λ times the mean over all classes of Σ_{c'≠c} of the square of
    log(1 + e^{β (s_cc' − δ)}) / β.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> mfcwms_loss(batch, torch.tensor([0, 1]), proxies, alpha=2., beta=2., margin=0.5)
    tensor(0.4255)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        proxies = F.normalize(proxies.to(batch.dtype), dim=1)
        cosines = F.normalize(batch, dim=1) @ proxies.T - margin                                      # [B, C]
        same = labels[:, None] == labels
        share = 1 / same.sum(dim=1).to(batch.dtype)               # the samples of a class have weights that sum to 1
        n_classes = share.sum()
        # above the default threshold, 20, softplus is the identity: an error that float64 shows
        own = log_mean_exp(-alpha * cosines.gather(1, labels[:, None]), same)[:, 0]
        pull = (F.softplus(own, threshold=40) * share).sum() / alpha
        log_n = log_mean_exp(beta * cosines, same)
        of_pairs = log_n[:, labels]                                                                   # [B, B]
        pushes = F.softplus(torch.logaddexp(of_pairs, of_pairs.T), threshold=40) * share
        # a pair of a class of the batch and another one is in the sum over ordered pairs twice
        absent = torch.ones_like(cosines[0], dtype=torch.bool).scatter(0, labels, False)
        push = (pushes.where(~same, 0).sum(dim=1) + 2 * F.softplus(log_n, threshold=40).where(absent, 0).sum(dim=1))
        loss = (pull + (push * share).sum() / (2 * beta)) / n_classes
        if reg_weight:
            others = ~torch.eye(len(proxies), dtype=torch.bool, device=proxies.device)
            near = F.softplus(proxies @ proxies.T - margin, beta=beta, threshold=40).where(others, 0)
            loss = loss + reg_weight * near.square().sum() / len(proxies)
        return loss


class Criterion(torch.nn.Module):
    """opt: loss_mfcwms_alpha, _beta, _margin, _reg_weight, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_mfcwms_alpha, opt.loss_mfcwms_beta, opt.loss_mfcwms_margin, opt.loss_mfcwms_reg_weight
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim))
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_mfcwms_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return mfcwms_loss(batch, labels, self.proxies, *self.arguments)
