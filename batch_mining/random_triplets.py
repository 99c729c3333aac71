# SPDX-License-Identifier: MIT
"""Random triplets: as many as the batch has samples, uniform among all valid triplets, without replacement."""
import torch


@torch.no_grad()
def random_triplets(labels, n_triplets):
    """
    Args:
        labels:     [B].
        n_triplets: number of triplets.

    Returns: [T, 3] int64 (anchor, positive, negative), all distinct; T is n_triplets, or the number of valid triplets
    if that is smaller.

    >>> torch.manual_seed(0) and random_triplets(torch.tensor([0, 0, 1]), 5).sort(dim=0).values
    tensor([[0, 0, 2],
            [1, 1, 2]])
    """
    ordered, order = labels.sort(stable=True)
    rank = order.argsort()
    start = torch.searchsorted(ordered, labels)                     # a class is order[start:start + size]
    size = torch.searchsorted(ordered, labels, right=True) - start
    n_valid = (size - 1) * (len(labels) - size)                     # number of triplets per anchor
    ends = n_valid.cumsum(0)
    # valid triplets are numbered anchor by anchor
    chosen = sample_numbers(int(ends[-1]), n_triplets, labels.device)

    anchor = torch.searchsorted(ends, chosen, right=True)
    size, start, rank = size[anchor], start[anchor], rank[anchor]
    number = chosen - ends[anchor] + n_valid[anchor]                # among the triplets of its anchor
    positive, negative = start + number // (len(labels) - size), number % (len(labels) - size)
    positive = positive + (positive >= rank)                        # skip the anchor itself
    negative = negative + size * (negative >= start)                # skip its class
    return torch.stack([anchor, order[positive], order[negative]], dim=1)


def sample_numbers(n, k, device):
    """k distinct random numbers below n in random order, all equally likely; all n numbers if k is at least n."""
    if n <= max(16 * k, 4096):
        return torch.randperm(n, device=device)[:k]
    # a permutation of all triplets takes 11 ms for 512 samples, and 0.4 GB for 4,000
    numbers = torch.randint(n, (2 * k,), device=device).sort().values
    repeated = torch.cat([numbers.new_zeros(1, dtype=torch.bool), numbers[1:] == numbers[:-1]])
    keys = torch.rand(2 * k, device=device) + 2 * repeated          # at most about k / 8 of the 2 k numbers repeat
    return numbers[keys.topk(k, largest=False).indices]


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3], T at most B."""
        return random_triplets(labels, len(labels))
