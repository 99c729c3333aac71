"""
N-pair loss. Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016, section 3; by
default with every other-class sample as negative, as Roth et al., ICML 2020, use it.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = ['npair']
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
ACCEPTS_MASKS = True


def npair_loss(batch, positives, negatives, l2=0.005):
    """
    Args:
        batch:     [B, D] embeddings, not normalised.
        positives: [B, B] bool, one positive of each anchor (row), none in the rows that are no anchor.
        negatives: [B, B] bool, its negatives.
        l2:        weight of the mean norm of the embeddings.

    Returns: scalar, the mean over anchors of log(1 + Σ_n e^{x_a·x_n − x_a·x_p}), plus the norms' term.

    >>> batch = torch.tensor([[1., 0.], [0.5, 1.], [0., 1.]])
    >>> positives = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    >>> npair_loss(batch, positives, torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]]).bool(), l2=0.0)
    tensor(0.7241)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, others, pairs = batch, batch, positives | negatives
        is_anchor, target = positives.view(torch.uint8).max(dim=1)         # any() of bool takes ten times as long
        if batch.device.type == 'cpu':                         # elsewhere the host would wait for how many there are
            rows = is_anchor.nonzero().squeeze(1)
            columns = pairs.view(torch.uint8).amax(dim=0).nonzero().squeeze(1)
            pairs = pairs.index_select(0, rows).index_select(1, columns)
            anchors, others = batch.index_select(0, rows), batch.index_select(0, columns)
            target, n_anchors = torch.searchsorted(columns, target.index_select(0, rows)), max(len(rows), 1)
        else:
            target, n_anchors = target.where(is_anchor > 0, -100), is_anchor.sum().clamp(min=1)      # −100: left out
        # finite, since −inf would make the gradient of a row without positive and negatives nan
        logits = (anchors @ others.T).masked_fill_(~pairs, torch.finfo(batch.dtype).min / 2)
        loss = F.cross_entropy(logits, target, reduction='sum') / n_anchors
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean() if l2 else loss


class Criterion(torch.nn.Module):
    """opt: loss_npair_l2. batchminer: (batch [B, D], labels [B]) -> masks of positives and negatives, two [B, B]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.l2, self.batchminer = opt.loss_npair_l2, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return npair_loss(batch, *self.batchminer(batch, labels), self.l2)
