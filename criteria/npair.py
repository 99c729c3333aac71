# SPDX-License-Identifier: MIT
"""
N-pair loss. Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016, section 3.

Differs: By default all samples of other classes are negatives, as in Roth et al., ICML 2020;
`--loss_npair_negatives pairs` takes the paper's. The regulariser is the mean norm, the paper's the mean squared norm.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = ['npair']
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
FLAGS = {
    'negatives': {'default': 'all', 'help': 'negatives of an anchor', 'choices': {
        'all': 'all samples of other classes', 'pairs': 'the positives of other pairs, one pair per class'}},
    'l2': {'at_least': 0},
}


def npair_loss(batch, positives, negatives, l2=0.005):
    """
    Args:
        batch:     [B, D] embeddings, not normalised.
        positives: [B, B] bool, the positives of each anchor (row), a term for each; rows of other samples are empty.
        negatives: [B, B] bool, the negatives of each anchor.
        l2:        weight of the mean norm of the embeddings.

    Returns: scalar, the mean over positive pairs of log(1 + Σ_n e^{x_a·x_n − x_a·x_p}), plus l2 times the mean norm.

    >>> batch = torch.tensor([[1., 0.], [0.5, 1.], [0., 1.]])
    >>> positives = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    >>> npair_loss(batch, positives, torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]]).bool(), l2=0.0)
    tensor(0.7241)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        # a term is the cross entropy of the inner products with the negatives and the positive, which is the target
        anchors, target = positives.nonzero().T
        kept = negatives[anchors].scatter(1, target[:, None], True)
        logits = (batch[anchors] @ batch.T).masked_fill(~kept, -torch.inf)
        loss = F.cross_entropy(logits, target, reduction='sum') / max(len(anchors), 1)
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean()


class Criterion(torch.nn.Module):
    """opt: loss_npair_l2. batchminer: (batch [B, D], labels [B]) -> masks of positives and negatives, two [B, B]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.l2 = opt.loss_npair_l2
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return npair_loss(batch, *self.batchminer(batch, labels), self.l2)
