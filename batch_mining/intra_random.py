# SPDX-License-Identifier: MIT
"""
A control: triplets within one class, so that positives and negatives have no meaning. Roth et al., ICML 2020.
"""
import torch


@torch.no_grad()
def intra_random_triplets(labels, n_triplets):
    """
    Args:
        labels:     [B].
        n_triplets: number of triplets.

    Returns: [n_triplets, 3] int64. Each triplet has three samples of one class: the class is uniform among the classes
    in the batch, the samples are uniform with replacement.

    >>> labels = torch.tensor([3, 3, 7])
    >>> triplets = intra_random_triplets(labels, 100)
    >>> bool((labels[triplets] == labels[triplets[:, :1]]).all())
    True
    """
    ordered, order = labels.sort()
    start = torch.searchsorted(ordered, labels)                     # a class is order[start:start + size]
    size = torch.searchsorted(ordered, labels, right=True) - start
    # weights of 1 / size make the anchor's class uniform
    cumulated = (1 / size).cumsum(dim=0)
    threshold = torch.rand(n_triplets, device=labels.device) * cumulated[-1]
    anchor = torch.searchsorted(cumulated, threshold, right=True)
    size = size[anchor, None]
    index = (torch.rand(n_triplets, 2, device=labels.device) * size).long()
    return torch.cat([anchor[:, None], order[start[anchor, None] + index]], dim=1)


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [B, 3]."""
        return intra_random_triplets(labels, len(labels))
