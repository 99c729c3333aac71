# SPDX-License-Identifier: MIT
"""
Triplet loss of signal-to-noise ratio distances. Yuan et al., CVPR 2019, https://arxiv.org/abs/1904.02616.

Differs: The mean is over the violated terms. The regulariser is the mean over the batch; in Roth et al. it is the mean
over the anchors.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
FLAGS = {'margin': {}, 'reg_lambda': {'at_least': 0}}


def snr_loss(batch, triplets, margin=0.2, reg_lambda=0.005):
    """
    Args:
        batch:      [B, D] embeddings, used as they are.
        triplets:   [T, 3] int64 indices (anchor, positive, negative).
        margin:     margin, a ratio of noise variance to signal variance.
        reg_lambda: weight of the mean of |Σ_k x_ik|, which pulls the mean of each embedding to zero.

    Returns: scalar, the mean of [ S_ap − S_an + margin ]₊ over the triplets that violate the margin, plus the
    regulariser, where S_ij = var(x_i − x_j) / var(x_i).

    >>> batch = torch.tensor([[1., -1.], [0.5, -0.5], [1., 0.]])
    >>> snr_loss(batch, torch.tensor([[0, 1, 2]]), margin=0.2, reg_lambda=0.3)
    tensor(0.3000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        centred = batch - batch.mean(dim=1, keepdim=True)
        signal = centred.square().sum(dim=1).clamp(min=torch.finfo(batch.dtype).eps ** 2)    # keeps the ratio finite
        a, p, n = triplets.T
        if len(triplets) > len(batch) ** 2 // 64:                  # each pair once: 50 times as fast for all triplets
            points = centred - centred.detach().mean(dim=0)        # smaller norms have smaller rounding errors
            gram = points @ points.T
            norms = gram.diagonal()
            noise = norms[:, None] + norms - 2 * gram
            noise = noise.where(noise > 8 * torch.finfo(batch.dtype).eps * norms, 0)   # duplicates: a rounding error
            noise_p, noise_n = noise[a, p], noise[a, n]
        else:
            anchors, positives, negatives = centred[triplets.T]
            noise_p, noise_n = [(anchors - others).square().sum(dim=1) for others in (positives, negatives)]
        violations = F.relu((noise_p - noise_n) / signal[a] + margin)
        loss = violations.sum() / violations.count_nonzero().clamp(min=1)
        return loss + reg_lambda * batch.sum(dim=1).abs().mean()


class Criterion(torch.nn.Module):
    """opt: loss_snr_margin, _reg_lambda. batchminer: (batch [B, D], labels [B]) -> triplets [T, 3]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.arguments = opt.loss_snr_margin, opt.loss_snr_reg_lambda
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        triplets = torch.as_tensor(self.batchminer(batch, labels), device=batch.device).long().reshape(-1, 3)
        self.log = {'tuples': len(triplets)}
        return snr_loss(batch, triplets, *self.arguments)
