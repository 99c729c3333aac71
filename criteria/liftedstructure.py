"""Lifted structured embedding, the original. Oh Song et al., CVPR 2016, https://arxiv.org/abs/1511.06452, Eq. 4."""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False


def distance_matrix(batch):
    """‖x_i − x_j‖: [B, B]. What is within rounding of 0 is 0, and there the gradient is 0."""
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    apart = squared > 8 * torch.finfo(batch.dtype).eps * norms
    return squared.where(apart, 1).sqrt().where(apart, 0)


def logsumexp(exponents):
    """log Σ_j e^{exponents_ij}: [B]. torch.logsumexp is ten times slower on the CPU where exponentials underflow."""
    largest, place = exponents.max(dim=1)
    return largest + F.cross_entropy(exponents, place, reduction='none')


def liftedstructure_loss(batch, labels, neg_margin=1.0, l2=0.0):
    """
    Args:
        batch:      [B, D] embeddings, not normalised.
        labels:     [B] int64.
        neg_margin: the distance that negatives should have.
        l2:         weight of the mean norm of the embeddings.

    Returns: scalar: with J_ij = d_ij + log(Σ_{k∈N(i)} e^{margin − d_ik} + Σ_{k∈N(j)} e^{margin − d_jk}), half the mean
    of [J]₊² over positive pairs; 0 without a negative. Plus the norms' term.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.]])
    >>> liftedstructure_loss(batch, torch.tensor([0, 0, 1]), neg_margin=2.0)
    tensor(1.2515)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        distances = distance_matrix(batch)
        same = labels[:, None] == labels
        # finite, since −inf would make the gradient of a batch of one class nan; [.]₊ makes 0 of it
        push = logsumexp((neg_margin - distances).masked_fill(same, torch.finfo(batch.dtype).min / 2))
        structured = F.relu(distances + torch.logaddexp(push[:, None], push))
        positives = same ^ torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        loss = structured.where(positives, 0).square().sum() / (2 * positives.count_nonzero()).clamp(min=1)
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean() if l2 else loss


class Criterion(torch.nn.Module):
    """opt: loss_liftedstructure_neg_margin, _l2."""

    def __init__(self, opt):
        super().__init__()
        self.neg_margin, self.l2 = opt.loss_liftedstructure_neg_margin, opt.loss_liftedstructure_l2

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return liftedstructure_loss(batch, labels, self.neg_margin, self.l2)
