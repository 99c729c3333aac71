# SPDX-License-Identifier: MIT
"""
Anti-collapse loss: a proxy loss with a term that keeps the coding rate of proxies or samples large. Jiang et al.,
Anti-Collapse Loss for Deep Metric Learning Based on Coding Rate Metric, 2024, https://arxiv.org/abs/2407.03106.

Differs: In the coding rate of n points in D dimensions, the Gram matrix has the factor D / (n ε²) in the literature on
it. The authors' code has D / (n ε) for samples, but n / (D ε) for proxies: `rate_scale` has both for proxies. With the
authors' term e^−γ₂R, the gradient fades as R grows; `rate_term linear` is −γ₂R. With proxies, the rate does not train
the network.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'type': {'argument': 'rate_of', 'choices': {'batch_proxy': 'proxies of the classes in the batch',
                                                'all_proxy': 'all proxies', 'pair': 'samples, not normalised'}},
    'w': {'argument': 'rate_weight', 'at_least': 0},
    'gam1': {'argument': 'gamma_1', 'above': 0},
    'gam2': {'argument': 'gamma_2', 'above': 0},
    'eps': {'above': 0},
    'rate_scale': {'choices': {'code': 'n / (D ε)', 'coding_rate': 'D / (n ε)'}},
    'rate_term': {'choices': {'exp': 'e^−γ₂R', 'linear': '−γ₂R'}},
    'w_align': {'argument': 'align_weight', 'at_least': 0},
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


def coding_rate(points, scale):
    """½ log det(I + scale Σ z zᵀ) of points z [n, D]. Points that are 0 do not change it."""
    gram = points @ points.T if len(points) < points.shape[1] else points.T @ points     # both have one determinant
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.slogdet(identity + scale * gram).logabsdet / 2


def antico_loss(batch, labels, proxies, rate_of='batch_proxy', rate_weight=1.0, gamma_1=1.0, gamma_2=1.0, eps=0.5,
                rate_scale='code', rate_term='exp', align_weight=0.01, pos_alpha=64.0, neg_alpha=64.0, pos_delta=0.1,
                neg_delta=-0.1):
    """
    Args:
        batch:        [B, D] embeddings, normalised here, but not for the rate of samples.
        labels:       [B] int64 below C.
        proxies:      [C, D], one per class, normalised here.
        rate_of:      points whose coding rate R should be large.
        rate_weight:  w, weight of the term of the coding rate.
        gamma_1:      γ₁, further factor of the Gram matrix in R.
        gamma_2:      γ₂, factor of R in its term.
        eps:          ε, distortion up to which points are coded.
        rate_scale:   factor of the Gram matrix of n proxies; of samples it is D / (n ε).
        rate_term:    term of the coding rate.
        align_weight: weight of the proxy loss, which is oproxy in mode anchor.
        pos_alpha:    α⁺, scale of the cosines of positive pairs.
        neg_alpha:    α⁻, scale of the cosines of negative pairs.
        pos_delta:    δ⁺, cosine that positives should have at least.
        neg_delta:    δ⁻, cosine that negatives should have at most.

    Returns: scalar, the weighted proxy loss (see proxy_alignment) plus the weighted e^−γ₂R, where
    R = ½ log det(I + γ₁ factor Σ z zᵀ).

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> antico_loss(batch, torch.tensor([0, 1]), proxies, align_weight=0.)
    tensor(0.3333)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    if labels.device.type == 'cpu' and len(labels) and not 0 <= labels.min() <= labels.max() < len(proxies):
        raise ValueError(f'expected labels from 0 to {len(proxies) - 1}, not {labels.min()} to {labels.max()}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        proxies = F.normalize(proxies.to(batch.dtype), dim=1)
        alignment = proxy_alignment(proxies @ F.normalize(batch, dim=1).T, labels, pos_alpha, neg_alpha, pos_delta,
                                    neg_delta)
        if rate_of in ('pair', 'all_proxy'):
            points = batch if rate_of == 'pair' else proxies
            n_points = len(points)
        else:
            # one sample stands for each class; the others' points are 0, so that no shape depends on the data
            first = (labels[:, None] == labels).int().argmax(dim=1)
            is_first = first == torch.arange(len(labels), device=labels.device)
            points = proxies[labels] * is_first[:, None]
            n_points = is_first.sum(dtype=batch.dtype)
        scale = proxies.shape[1] / n_points
        if rate_scale == 'code' and rate_of != 'pair':
            scale = 1 / scale
        rate = gamma_2 * coding_rate(points, gamma_1 / eps * scale)
        diversity = (-rate).exp() if rate_term == 'exp' else -rate
        return align_weight * alignment + rate_weight * diversity


class Criterion(torch.nn.Module):
    """
    opt: loss_antico_type, _w, _gam1, _gam2, _eps, _rate_scale, _rate_term, _w_align, _pos_alpha, _neg_alpha,
    _pos_delta, _neg_delta, _lrmulti, lr, n_classes, embed_dim.
    """

    def __init__(self, opt):
        super().__init__()
        names = ('type', 'w', 'gam1', 'gam2', 'eps', 'rate_scale', 'rate_term', 'w_align', 'pos_alpha', 'neg_alpha',
                 'pos_delta', 'neg_delta')
        self.arguments = [getattr(opt, f'loss_antico_{name}') for name in names]
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim) / 8)
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_antico_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return antico_loss(batch, labels, self.proxies, *self.arguments)
