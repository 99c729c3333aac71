# SPDX-License-Identifier: MIT
"""
Angular loss, added to the N-pair loss. Wang et al., ICCV 2017, https://arxiv.org/abs/1708.01682; with all samples of
other classes as negatives, as Roth et al., ICML 2020, use it.

Differs: Pytorch-metric-learning normalises anchors and positives but not negatives, and uses every positive pair, where
this code takes one positive per anchor. Its default angle is 40 degrees.
"""
import math

import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = ['npair']
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
FLAGS = {'alpha': {}, 'npair_ang_weight': {}, 'npair_l2': {'at_least': 0}}


def log_terms(logits, negatives, target):
    """
    [B]: for each row i of the logits l [B, B], log(1 + Σ_n e^{l_in − l_it}) over the `negatives` n [B, B] of i, where t
    [B] is its `target`. It is the cross entropy of the logits.
    """
    kept = negatives.scatter(1, target[:, None], True)
    return F.cross_entropy(logits.masked_fill(~kept, -torch.inf), target, reduction='none')


def angular_terms(batch, positives, negatives, alpha=45.0):
    """
    [B]: log(1 + Σ_n e^{f_apn}) of each anchor a, with f_apn = 4 tan²α (x_a + x_p)·x_n − 2 (1 + tan²α) x_a·x_p, from the
    normalised batch.
    """
    batch = F.normalize(batch, dim=1)
    tangent2 = math.tan(math.radians(alpha)) ** 2
    target = positives.int().argmax(dim=1)                                        # arbitrary where there is no positive
    positive = batch[target]
    logits = (4 * tangent2 * (batch + positive)) @ batch.T
    own = 2 * (1 + tangent2) * (batch * positive).sum(dim=1, keepdim=True)
    return log_terms(logits.scatter(1, target[:, None], own), negatives, target)


def npair_terms(batch, positives, negatives):
    """[B]: log(1 + Σ_n e^{x_a·x_n − x_a·x_p}) of each anchor a; nothing is normalised."""
    return log_terms(batch @ batch.T, negatives, positives.int().argmax(dim=1))


def angular_loss(batch, positives, negatives, alpha=45.0, npair_ang_weight=2.0, npair_l2=0.005):
    """
    Args:
        batch:            [B, D] embeddings, not normalised; the angular part normalises them.
        positives:        [B, B] bool, the positive of each anchor (row), or several, of which the first counts; the
                          rows of other samples are empty.
        negatives:        [B, B] bool, the negatives of each anchor.
        alpha:            upper bound of the angle at the negative, in degrees.
        npair_ang_weight: weight of the angular loss, which is added to the N-pair loss.
        npair_l2:         weight of the mean norm of the embeddings.

    Returns: scalar, the mean over anchors of the N-pair term plus the weighted angular term, plus npair_l2 times the
    mean norm.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> positives = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    >>> negatives = torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]]).bool()
    >>> angular_loss(batch, positives, negatives, alpha=30.0, npair_ang_weight=1.0, npair_l2=0.0)
    tensor(1.0794)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        terms = npair_terms(batch, positives, negatives)
        if npair_ang_weight:
            terms = terms + npair_ang_weight * angular_terms(batch, positives, negatives, alpha)
        is_anchor = positives.any(dim=1)
        loss = terms.where(is_anchor, 0).sum() / is_anchor.sum().clamp(min=1)
        return loss + npair_l2 * torch.linalg.vector_norm(batch, dim=1).mean()


class Criterion(torch.nn.Module):
    """
    opt: loss_angular_alpha, _npair_ang_weight, _npair_l2.
    batchminer: (batch [B, D], labels [B]) -> masks of positives and negatives, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.arguments = (opt.loss_angular_alpha, opt.loss_angular_npair_ang_weight, opt.loss_angular_npair_l2)
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return angular_loss(batch, *self.batchminer(batch, labels), *self.arguments)
