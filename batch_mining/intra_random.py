"""A control: triplets within one class, so that positives and negatives mean nothing. Roth et al., ICML 2020."""
import torch


@torch.no_grad()
def intra_random_triplets(labels, n_triplets):
    """
    Args:
        labels:     [B].
        n_triplets: how many.

    Returns: [n_triplets, 3] int64: for each a class, uniform among those in the batch, then three of its samples,
    uniform with replacement.

    >>> labels = torch.tensor([3, 3, 7])
    >>> triplets = intra_random_triplets(labels, 100)
    >>> bool((labels[triplets] == labels[triplets[:, :1]]).all())
    True
    """
    ordered, order = labels.sort()
    start = torch.searchsorted(ordered, labels)                     # the class of each sample stands at
    size = torch.searchsorted(ordered, labels, right=True) - start       # order[start:start + size]
    # a sample of a uniform class is as likely as its class is small
    cumulated = (1 / size).cumsum(dim=0)
    drawn = torch.rand(n_triplets, device=labels.device) * cumulated[-1]
    anchor = torch.searchsorted(cumulated, drawn, right=True).clamp(max=len(labels) - 1)
    size = size[anchor, None]
    place = (torch.rand(n_triplets, 2, device=labels.device) * size).long().minimum(size - 1)
    return torch.cat([anchor[:, None], order[start[anchor, None] + place]], dim=1)


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [B, 3]."""
        return intra_random_triplets(labels, len(labels))
