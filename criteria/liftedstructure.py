# SPDX-License-Identifier: MIT
"""Lifted structured embedding, original form. Oh Song et al., CVPR 2016, https://arxiv.org/abs/1511.06452, Eq. 4."""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'neg_margin': {}, 'l2': {'at_least': 0}}


def squared_distances(batch):
    """‖x_i − x_j‖² of all pairs, [B, B], and a mask [B, B]: whether it is above the rounding error of 0, or NaN."""
    batch = batch - batch.detach().mean(dim=0)           # distances stay the same; their rounding errors shrink
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared, ~(squared <= 8 * torch.finfo(batch.dtype).eps * norms)


def root(squared, apart):
    """√squared; where not `apart` it is 0 and has gradient 0."""
    return squared.where(apart, 1).sqrt().where(apart, 0)


def liftedstructure_loss(batch, labels, neg_margin=1.0, l2=0.0):
    """
    Args:
        batch:      [B, D] embeddings, not normalised.
        labels:     [B] int64.
        neg_margin: distance that negatives should have at least.
        l2:         weight of the mean norm of the embeddings; 0 means none.

    Returns: scalar, half the mean of [J_ij]₊² over the positive pairs, plus l2 times the mean norm, where
    J_ij = d_ij + log(Σ_{k∈N(i)} e^{m − d_ik} + Σ_{k∈N(j)} e^{m − d_jk}) and m is neg_margin; a pair without negatives
    adds 0.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.]])
    >>> liftedstructure_loss(batch, torch.tensor([0, 0, 1]), neg_margin=2.0)
    tensor(1.2515)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        distances = root(*squared_distances(batch))
        same = labels[:, None] == labels
        # finite: −inf would make the gradient of a batch of one class nan; relu makes the term 0
        push = (neg_margin - distances).masked_fill(same, torch.finfo(batch.dtype).min / 2).logsumexp(dim=1)
        structured = F.relu(distances + torch.logaddexp(push[:, None], push))
        positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        loss = structured.where(positives, 0).square().sum() / (2 * positives.count_nonzero()).clamp(min=1)
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean()


class Criterion(torch.nn.Module):
    """opt: loss_liftedstructure_neg_margin, _l2."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_liftedstructure_neg_margin, opt.loss_liftedstructure_l2

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return liftedstructure_loss(batch, labels, *self.arguments)
