# SPDX-License-Identifier: MIT
"""
Mean-field contrastive loss: each sample is compared with a trained mean field of each class instead of with other
samples. Furusawa, Mean Field Theory in Deep Metric Learning, ICLR 2024, https://arxiv.org/abs/2306.15368.

Differs: The authors' code has no default for `reg_weight` and `lrmulti`, and they publish no command with this loss.
Their mean fields have the weight decay of the network, which is `--loss_decay` here.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'pos_margin': {},
    'neg_margin': {},
    'reg_weight': {'at_least': 0},
    'lrmulti': {'default': 2000.0, 'at_least': 0, 'help': 'learning rate of the mean fields, as a multiple of --lr'},
}


def mfcont_loss(batch, labels, proxies, pos_margin=0.02, neg_margin=0.3, reg_weight=0.0):
    """
    Args:
        batch:      [B, D] embeddings, normalised here.
        labels:     [B] int64 below C.
        proxies:    [C, D], the mean field of each class, normalised here.
        pos_margin: m⁺, a cosine distance 1 − s, beyond which a sample is pulled to the mean field of its class.
        neg_margin: m⁻, a cosine distance, below which a sample and mean fields of other classes are pushed apart.
        reg_weight: λ, weight of the regulariser that pushes mean fields apart.

    Returns: scalar, the mean over the samples of [d_own − m⁺]₊ + Σ_other [m⁻ − d_other]₊, plus λ times the mean over
    the classes of Σ_other [m⁻ − d]₊², where d are distances between mean fields.

    >>> batch, proxies = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[1., 0.], [0., 1.]])
    >>> mfcont_loss(batch, torch.tensor([0, 1]), proxies, pos_margin=0.1, neg_margin=0.5)
    tensor(0.1000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        proxies = F.normalize(proxies.to(batch.dtype), dim=1)
        distances = 1 - F.normalize(batch, dim=1) @ proxies.T                                        # [B, C]
        pull = F.relu(distances.gather(1, labels[:, None]) - pos_margin).sum()
        push = F.relu(neg_margin - distances).scatter(1, labels[:, None], 0).sum()
        loss = (pull + push) / len(batch)
        if reg_weight:
            others = ~torch.eye(len(proxies), dtype=torch.bool, device=proxies.device)
            near = F.relu(neg_margin - (1 - proxies @ proxies.T)).where(others, 0)
            loss = loss + reg_weight * near.square().sum() / len(proxies)
        return loss


class Criterion(torch.nn.Module):
    """opt: loss_mfcont_pos_margin, _neg_margin, _reg_weight, _lrmulti, lr, n_classes, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_mfcont_pos_margin, opt.loss_mfcont_neg_margin, opt.loss_mfcont_reg_weight
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim))
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_mfcont_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        return mfcont_loss(batch, labels, self.proxies, *self.arguments)
