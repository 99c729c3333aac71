"""One positive and many negatives per anchor. Sohn, NIPS 2016, section 3, and the form of Roth et al., ICML 2020."""
import torch

RETURNS = 'masks'


@torch.no_grad()
def npair_tuples(labels, negatives='all'):
    """
    Args:
        labels:    [B].
        negatives: all: every sample with a positive is an anchor, its positive is random, its negatives are all samples
                   of other classes; pairs: one random (anchor, positive) per class, the negatives are the other
                   classes' positives only, as in the paper.

    Returns: two bool [B, B], row anchor: its one positive and its negatives; none in the rows that are no anchor.

    >>> positives, negatives = npair_tuples(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    same = labels[:, None] == labels
    others = same ^ torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    has_positive = others.any(dim=1, keepdim=True)
    keys = torch.rand(len(labels), device=labels.device)           # the larger of two keys is drawn first
    positive = (others * (1 + keys)).argmax(dim=1, keepdim=True) if negatives == 'pairs' else uniform(others)
    chosen = torch.zeros_like(same).scatter(1, positive, True) & has_positive
    if negatives == 'all':
        return chosen, ~same & has_positive
    first = (same * (1 + keys)).argmax(dim=1) == torch.arange(len(labels), device=labels.device)
    is_anchor = has_positive & first[:, None]
    chosen = chosen & is_anchor
    return chosen, ~same & chosen.any(dim=0) & is_anchor


def uniform(mask):
    """One column of each row's mask [B, N], uniformly: [B, 1]; any column where the mask is empty."""
    count = mask.cumsum(dim=1, dtype=torch.int32)
    drawn = (torch.rand(len(mask), 1, device=mask.device) * count[:, -1:]).to(torch.int32)
    return torch.searchsorted(count, drawn.minimum(count[:, -1:] - 1) + 1).clamp(max=mask.shape[1] - 1)


class BatchMiner:
    """opt: loss_npair_negatives, for the loss `npair`; for others `all`."""

    def __init__(self, opt):
        self.negatives = opt.loss_npair_negatives if opt.loss == 'npair' else 'all'

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return npair_tuples(labels, self.negatives)
