# SPDX-License-Identifier: MIT
"""
N-pair loss. Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016, section 3; by
default with all samples of other classes as negatives, as Roth et al., ICML 2020, use it.

Differs: By default all samples of other classes are negatives, as in Roth et al.; `--loss_npair_negatives pairs` takes
those of the paper. The regulariser is the mean norm; in the paper it is the mean squared norm.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = ['npair']
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
ACCEPTS_MASKS = True


def used_part(batch, pairs, rows, target):
    """
    What the loss needs of the [B, B] matrix of pairs: the anchors [A, D], which are its `rows`, the samples [C, D]
    paired with any of them, which are its columns, the mask of pairs [A, C], and the column of each positive [A].

    Example: with `--loss_npair_negatives pairs`, four images of the classes x, x, y, y may give the anchors 0 and 2
    with the positives 1 and 3. Then rows 0 and 2 and columns 1 and 3 are used, a quarter of the matrix.
    """
    pairs = pairs.index_select(0, rows)
    columns = pairs.view(torch.uint8).amax(dim=0).nonzero()[:, 0]
    target = torch.searchsorted(columns, target.index_select(0, rows))
    return batch.index_select(0, rows), batch.index_select(0, columns), pairs.index_select(1, columns), target


def npair_loss(batch, positives, negatives, l2=0.005):
    """
    Args:
        batch:     [B, D] embeddings, not normalised.
        positives: [B, B] bool, one positive of each anchor (row), none in rows of samples that are no anchor.
        negatives: [B, B] bool, the negatives of each anchor.
        l2:        weight of the mean norm of the embeddings.

    Returns: scalar, the mean over anchors of log(1 + Σ_n e^{x_a·x_n − x_a·x_p}), plus l2 times the mean norm.

    >>> batch = torch.tensor([[1., 0.], [0.5, 1.], [0., 1.]])
    >>> positives = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    >>> npair_loss(batch, positives, torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]]).bool(), l2=0.0)
    tensor(0.7241)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        # as bytes, since torch reduces bool several times slower: of each row 1 if it is an anchor, and its positive
        is_anchor, target = positives.view(torch.uint8).max(dim=1)
        # the term of an anchor is the cross entropy of its products with the pairs, its positive being the target
        anchors, others, pairs = batch, batch, positives | negatives
        # on other devices the host would have to wait for the number of anchors
        rows = is_anchor.nonzero()[:, 0] if batch.device.type == 'cpu' else []
        # below four million multiplications, selecting the rows takes longer than multiplying all of them
        if 0 < 2 * len(rows) <= len(batch) and batch.numel() * len(batch) > 2 ** 22:
            anchors, others, pairs, target = used_part(batch, pairs, rows, target)
        elif len(rows) < len(batch):
            target = target.where(is_anchor > 0, -100)             # −100: cross_entropy leaves the row out
        logits = anchors @ others.T
        # finite, since −inf would make the gradient of a row without pairs nan
        with torch.no_grad():      # the gradient is zero there without it, since e^{logit} is
            logits.masked_fill_(~pairs, torch.finfo(batch.dtype).min / 2)
        loss = F.cross_entropy(logits, target, reduction='sum')
        loss = loss / (max(len(rows), 1) if batch.device.type == 'cpu' else is_anchor.sum().clamp(min=1))
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean() if l2 else loss


class Criterion(torch.nn.Module):
    """opt: loss_npair_l2. batchminer: (batch [B, D], labels [B]) -> masks of positives and negatives, two [B, B]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.l2, self.batchminer = opt.loss_npair_l2, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return npair_loss(batch, *self.batchminer(batch, labels), self.l2)
