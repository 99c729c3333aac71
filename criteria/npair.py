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
        is_anchor, anchors, others = positives.any(dim=1), batch, batch
        if batch.device.type == 'cpu' and is_anchor.any():      # elsewhere the host would wait for how many there are
            rows = is_anchor.nonzero()[:, 0]
            is_anchor, positives, negatives = (mask.index_select(0, rows) for mask in (is_anchor, positives, negatives))
            columns = (positives | negatives).any(dim=0).nonzero()[:, 0]
            positives, negatives = positives.index_select(1, columns), negatives.index_select(1, columns)
            anchors, others = batch.index_select(0, rows), batch.index_select(0, columns)
        products = anchors @ others.T
        # finite, since −inf would make the gradient of a row without positive and negatives nan
        logits = products.masked_fill(~(positives | negatives), torch.finfo(batch.dtype).min / 2)
        terms = F.cross_entropy(logits, positives.to(torch.uint8).argmax(dim=1), reduction='none').where(is_anchor, 0)
        loss = terms.sum() / is_anchor.sum().clamp(min=1)
        return loss + l2 * torch.linalg.vector_norm(batch, dim=1).mean() if l2 else loss


class Criterion(torch.nn.Module):
    """opt: loss_npair_l2. batchminer: (batch [B, D], labels [B]) -> masks of positives and negatives, two [B, B]."""

    def __init__(self, opt, batchminer):
        super().__init__()
        self.l2, self.batchminer = opt.loss_npair_l2, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return npair_loss(batch, *self.batchminer(batch, labels), self.l2)
