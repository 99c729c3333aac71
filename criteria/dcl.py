# SPDX-License-Identifier: MIT
"""
Decoupled contrastive loss: normalised temperature-scaled cross entropy (ntxent) without the positive pair in the
denominator. Yeh et al., ECCV 2022, https://arxiv.org/abs/2110.06848; `weighted` is their DCLW.

Differs: The paper is on two views of each image; here labels give the positives, over which the terms of an anchor are
averaged. With two images per class, the value is that of public code (not the authors') that averages both directions.
That code masks pairs by adding ln 1e-45, which is too little for temperatures below 0.01.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'temperature': {'above': 0}, 'weighted': {}, 'sigma': {'above': 0}}


def dcl_loss(batch, labels, temperature=0.1, weighted=False, sigma=0.5, reduction='mean'):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64.
        temperature: temperature τ; the cosines are divided by it.
        weighted:    give positive pairs with small cosines larger weights (DCLW).
        sigma:       σ, temperature of the softmax over the cosines of all positive pairs that gives the weights.
        reduction:   mean; or none: the values [B] and a bool mask [B] of the samples that have one.

    Returns: scalar, the mean over the anchors i with a positive of log Σ_n e^{s_in / τ} − mean_p w_ip s_ip / τ, where n
    are the negatives of i and p its positives. w is 1, or if weighted 2 − M softmax(s_ip / σ) over all M positive
    pairs. The value can be negative. A differentiable zero without a positive pair or with one class only.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> dcl_loss(batch, torch.tensor([0, 0, 1]), temperature=1.0)
    tensor(-0.2000)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        cosines = batch @ batch.T
        same = labels[:, None] == labels
        positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device) & ~same.all()
        # finite: −inf would make the gradient of an anchor without negatives nan
        lowest = torch.finfo(batch.dtype).min / 2
        push = (cosines / temperature).masked_fill(same, lowest).logsumexp(dim=1)
        pull = cosines / temperature
        if weighted:
            shares = (cosines / sigma).masked_fill(~positives, lowest).flatten().softmax(dim=0).view_as(cosines)
            pull = pull * (2 - positives.count_nonzero() * shares)
        n_positives = positives.sum(dim=1, dtype=torch.int32)     # a tenth of the time of int64
        terms = push - pull.where(positives, 0).sum(dim=1) / n_positives.clamp(min=1)
        if reduction == 'none':
            return terms, n_positives > 0
        return terms.where(n_positives > 0, 0).sum() / (n_positives > 0).sum().clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_dcl_temperature, _weighted, _sigma."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_dcl_temperature, opt.loss_dcl_weighted, opt.loss_dcl_sigma

    def forward(self, batch, labels, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return dcl_loss(batch, labels, *self.arguments, reduction)
