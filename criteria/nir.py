# SPDX-License-Identifier: MIT
"""
NIR: non-isotropy regularisation of a proxy loss by a normalising flow that is conditioned on the proxies. Roth et al.,
Non-isotropy Regularization for Proxy-based Deep Metric Learning, CVPR 2022, https://arxiv.org/abs/2203.08547.

Differs: This code agrees with the authors' code (https://github.com/ExplainableML/NonIsotropicProxyDML). In the paper,
as far as this could be confirmed, the loss is the proxy loss plus ω times the mean of the negative log-likelihood n.
The code weights the proxy loss instead, and takes the mean of e^n, so that badly fitted samples dominate. Above n = 20,
this code replaces e^n by its tangent, since e^n would soon overflow. The permutations of the flow come from torch's
random generator; the authors' come from NumPy's. The authors' commands for Stanford Online Products name the
loss `normflow` and have flags that their parser does not accept; here they are `--loss nir --loss_nir_w_align 0.3
--loss_nir_lrmulti 1`. In issue 6 (https://github.com/ExplainableML/NonIsotropicProxyDML/issues/6) of their repository,
a user reports lower results than the paper, with a batch size of 90, and asks for the settings.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'w_align': {'at_least': 0},
    'proxy_lrmulti': {'default': 4000.0, 'at_least': 0,
                      'help': 'learning rate of the proxies, as a multiple of --lr'},
    'lrmulti': {'default': 50.0, 'at_least': 0, 'help': 'learning rate of the normalising flow, as a multiple of --lr'},
    'noise': {'at_least': 0},
    'nf_cond_mode': {'argument': 'cond_mode', 'choices': {
        'dense': 'all', 'dense_embed': 'all, after one MLP', 'dense_embed_multi': 'all, each after its own MLP',
        'dense_embed_multi_stacked': 'all, each after the MLPs of all blocks up to it', 'start': 'the first',
        'mid': 'the middle', 'end': 'the last'}},
    'nf_fc_depth': {'argument': 'depth', 'at_least': 2},
    'nf_fc_width': {'argument': 'width', 'at_least': 1},
    'nf_cblocks': {'argument': 'n_blocks', 'at_least': 1},
    'nf_clamp_alpha': {'argument': 'clamp', 'above': 0},
    'nf_fc_init': {'argument': 'init', 'choices': {
        'none': "torch's default", 'xavier': 'Xavier, except in the first layer of each MLP'}},
}
USES = ['loss_oproxy_pos_alpha', 'loss_oproxy_neg_alpha', 'loss_oproxy_pos_delta', 'loss_oproxy_neg_delta']

LARGEST = 20.0                  # negative log-likelihood above which the tangent replaces its exponential


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


def mlp(n_in, n_out, width, depth):
    """`depth` linear layers, with ReLU between them."""
    widths = [n_in, *[width] * (depth - 1), n_out]
    layers = [torch.nn.Linear(*pair) for pair in zip(widths, widths[1:], strict=False)]
    return torch.nn.Sequential(*[part for layer in layers for part in (torch.nn.ReLU(), layer)][1:])


class Flow(torch.nn.Module):
    """
    An invertible map of points [B, D], given conditions [B, D]. Returns the latent points [B, D] and the
    log-determinants of the Jacobian, [B]. Each block permutes the coordinates, splits them into two halves, and scales
    and shifts each half by functions of the other half and of the block's condition.

    Args:
        dim:       D.
        n_blocks:  number of blocks of the flow.
        width:     width of the MLPs of the flow.
        depth:     number of linear layers in an MLP of the flow.
        clamp:     limit of the absolute logarithm of the scales in the flow.
        cond_mode: blocks of the flow that get the proxy as a condition.
        init:      initial weights of the MLPs; with xavier, their biases are 0.
    """

    def __init__(self, dim, n_blocks=5, width=128, depth=8, clamp=2.0, cond_mode='dense', init='none'):
        super().__init__()
        self.clamp = clamp
        self.cond_mode = cond_mode
        self.n_first = round(dim / 2)
        only = {'start': 0, 'mid': n_blocks // 2, 'end': n_blocks - 1}.get(cond_mode)        # None: every block
        self.is_conditional = [only is None or only == block for block in range(n_blocks)]
        orders = [torch.randperm(dim, generator=torch.Generator().manual_seed(block)) for block in range(n_blocks)]
        self.register_buffer('orders', torch.stack(orders))
        sizes = (dim - self.n_first, self.n_first), (self.n_first, dim - self.n_first)
        self.nets = torch.nn.ModuleList([
            torch.nn.ModuleList([mlp(n_in + dim * conditional, 2 * n_out, width, depth) for n_in, n_out in sizes])
            for conditional in self.is_conditional])
        if init == 'xavier':
            for net in (net for nets in self.nets for net in nets):
                for layer in list(net)[2::2]:
                    torch.nn.init.xavier_uniform_(layer.weight)
                    torch.nn.init.zeros_(layer.bias)
        n_embedders = 0
        if cond_mode == 'dense_embed':
            n_embedders = 1
        elif cond_mode.startswith('dense_embed'):
            n_embedders = n_blocks
        self.embedders = torch.nn.ModuleList([mlp(dim, dim, dim, 2) for _ in range(n_embedders)])

    def conditions(self, condition):
        """The condition of each block, including blocks that do not use one."""
        if len(self.embedders) < len(self.nets):                                # no embedder, or one for all blocks
            for embedder in self.embedders:
                condition = embedder(condition)
            return [condition] * len(self.nets)
        if self.cond_mode != 'dense_embed_multi_stacked':
            return [embedder(condition) for embedder in self.embedders]
        found = [condition]
        for embedder in self.embedders:
            found.append(embedder(found[-1]))
        return found[1:]

    def forward(self, points, condition):
        log_determinant = 0
        for order, nets, conditional, given in zip(self.orders, self.nets, self.is_conditional,
                                                   self.conditions(condition), strict=True):
            given = [given] if conditional else []
            halves = list(points[:, order].split([self.n_first, len(order) - self.n_first], dim=1))
            for changed, net in zip((0, 1), nets, strict=True):
                scale, shift = net(torch.cat([halves[1 - changed], *given], dim=1)).chunk(2, dim=1)
                scale = 0.636 * self.clamp * scale.atan()
                halves[changed] = scale.exp() * halves[changed] + shift
                log_determinant = log_determinant + scale.sum(dim=1)
            points = torch.cat(halves, dim=1)
        return points, log_determinant


def nir_loss(batch, labels, proxies, flow, w_align=0.01, noise=0.0, pos_alpha=32.0, neg_alpha=32.0, pos_delta=0.1,
             neg_delta=-0.1):
    """
    Args:
        batch:   [B, D] embeddings, used as they are.
        labels:  [B] int64 below C.
        proxies: [C, D], one per class, normalised here.
        flow:    (points [B, D], conditions [B, D]) -> latent points [B, D], log-determinants of the Jacobian [B].
        w_align: ω, weight of the proxy loss; the weight of the non-isotropy regularisation is 1.
        noise:   scale of uniform noise added to the embeddings before the flow, which are then normalised; 0: none.
        pos_alpha, neg_alpha, pos_delta, neg_delta: parameters of the proxy loss; see proxy_alignment.

    Returns: scalar, the mean of e^n over the samples plus ω times the proxy loss. n = ‖z‖² / 2 − log |det J|, where z
    is the latent point of a sample, and the flow is conditioned on the proxy of its class. Above n = 20, the tangent
    replaces e^n.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> nir_loss(batch, torch.tensor([0, 1]), proxies, lambda points, conditions: (points - conditions, 0.), w_align=0.)
    tensor(1.1107)
    """
    if labels.device.type == 'cpu' and len(labels) and not 0 <= labels.min() <= labels.max() < len(proxies):
        raise ValueError(f'expected labels from 0 to {len(proxies) - 1}, not {labels.min()} to {labels.max()}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        proxies = F.normalize(proxies.to(batch.dtype), dim=1)
        alignment = proxy_alignment(proxies @ F.normalize(batch, dim=1).T, labels, pos_alpha, neg_alpha, pos_delta,
                                    neg_delta)
        points = F.normalize(batch + noise * torch.rand_like(batch), dim=1) if noise else batch
        latent, log_determinant = flow(points, proxies[labels])
        surprise = latent.square().sum(dim=1) / 2 - log_determinant
        within = surprise.clamp(max=LARGEST)
        return (within.exp() * (1 + surprise - within)).mean() + w_align * alignment


class Criterion(torch.nn.Module):
    """
    opt: loss_nir_w_align, _noise, _proxy_lrmulti, _lrmulti, _nf_cblocks, _nf_fc_width, _nf_fc_depth, _nf_clamp_alpha,
    _nf_cond_mode, _nf_fc_init, loss_oproxy_pos_alpha, _neg_alpha, _pos_delta, _neg_delta, lr, n_classes, embed_dim.
    """

    def __init__(self, opt):
        super().__init__()
        names = ('pos_alpha', 'neg_alpha', 'pos_delta', 'neg_delta')
        self.arguments = [opt.loss_nir_w_align, opt.loss_nir_noise]
        self.arguments += [getattr(opt, f'loss_oproxy_{name}') for name in names]
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim) / 8)
        names = ('nf_cblocks', 'nf_fc_width', 'nf_fc_depth', 'nf_clamp_alpha', 'nf_cond_mode', 'nf_fc_init')
        self.flow = Flow(opt.embed_dim, *(getattr(opt, f'loss_nir_{name}') for name in names))
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_nir_proxy_lrmulti},
                                {'params': list(self.flow.parameters()), 'lr': opt.lr * opt.loss_nir_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return nir_loss(batch, labels, self.proxies, self.flow, *self.arguments)
