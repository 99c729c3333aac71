# SPDX-License-Identifier: MIT
"""
Contrastive loss of signal-to-noise ratio distances. Yuan et al., CVPR 2019, https://arxiv.org/abs/1904.02616.

Differs: The mean is over the violated terms. The regulariser is the mean over the batch.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'pos_margin': {}, 'neg_margin': {}, 'reg_lambda': {'at_least': 0}}


def snr_contrastive_loss(batch, labels, pos_margin=0.0, neg_margin=1.0, reg_lambda=0.0):
    """
    Args:
        batch:      [B, D] embeddings, used as they are.
        labels:     [B] int64.
        pos_margin: m⁺, the ratio of variances S below which positive pairs add no loss.
        neg_margin: m⁻, the ratio of variances S above which negative pairs add no loss.
        reg_lambda: weight of the mean of |Σ_k x_ik|, which pulls the mean of each embedding to zero; 0 means none.

    Returns: scalar, the mean non-zero [ S − m⁺ ]₊ of the ordered positive pairs, plus the mean non-zero [ m⁻ − S ]₊ of
    the ordered negative pairs, plus the regulariser, where S_ij = var(x_i − x_j) / var(x_i).

    >>> batch = torch.tensor([[1., -1.], [0.5, -0.5], [1., 0.]])
    >>> snr_contrastive_loss(batch, torch.tensor([0, 0, 1]), reg_lambda=0.3)
    tensor(1.6417)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        centred = batch - batch.mean(dim=1, keepdim=True)
        signal = centred.square().sum(dim=1)
        eps = torch.finfo(batch.dtype).eps
        centred = centred - centred.detach().mean(dim=0)       # the noise stays the same; its rounding errors shrink
        gram = centred @ centred.T
        norms = gram.diagonal()
        noise = norms[:, None] + norms - 2 * gram
        noise = noise.where(noise > 8 * eps * norms, 0)                # duplicates: a rounding error
        ratios = noise / signal.clamp(min=eps ** 2)[:, None]           # finite also where the signal is 0
        same = labels[:, None] == labels
        positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        pull = F.relu(ratios - pos_margin).where(positives, 0)
        push = F.relu(neg_margin - ratios).where(~same, 0)
        loss = pull.sum() / pull.count_nonzero().clamp(min=1) + push.sum() / push.count_nonzero().clamp(min=1)
        return loss + reg_lambda * batch.sum(dim=1).abs().mean()


class Criterion(torch.nn.Module):
    """opt: loss_snr_contrastive_pos_margin, _neg_margin, _reg_lambda."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = (opt.loss_snr_contrastive_pos_margin, opt.loss_snr_contrastive_neg_margin,
                          opt.loss_snr_contrastive_reg_lambda)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return snr_contrastive_loss(batch, labels, *self.arguments)
