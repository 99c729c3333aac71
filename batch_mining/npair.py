"""One positive and many negatives per anchor. Sohn, NIPS 2016, section 3, and the form of Roth et al., ICML 2020."""
import torch
import torch.nn.functional as F

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
    order = torch.randperm(len(labels), device=labels.device)
    ordered, place = labels[order].sort(stable=True)
    order = order[place]                                           # a class stands together, in random order
    chosen = torch.zeros(len(labels), len(labels), dtype=torch.bool, device=labels.device)
    if negatives == 'pairs':
        followed = F.pad(ordered[1:] == ordered[:-1], (1, 1))      # by one of its class: the place before, each place
        chosen[order, order.roll(-1)] = followed[1:] & ~followed[:-1]              # the first two of a class
        ones = chosen.view(torch.uint8)                            # any() and & are many times slower on bool
        return chosen, (ones.amax(dim=1, keepdim=True) & ones.amax(dim=0)).view(torch.bool) ^ chosen
    start = torch.searchsorted(ordered, ordered)
    size = torch.searchsorted(ordered, ordered, right=True) - start
    step = torch.arange(len(labels), device=labels.device) - start
    further = 1 + (torch.rand(len(labels), device=labels.device) * (size - 1)).long().minimum((size - 2).clamp(min=0))
    chosen[order, order[start + (step + further) % size]] = size > 1               # itself where it is alone
    return chosen, (labels[:, None] != labels) & chosen.any(dim=1, keepdim=True)


class BatchMiner:
    """opt: loss_npair_negatives, for the loss `npair`; for others `all`."""

    def __init__(self, opt):
        self.negatives = opt.loss_npair_negatives if opt.loss == 'npair' else 'all'

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> masks of positive and negative pairs, two [B, B]."""
        return npair_tuples(labels, self.negatives)
