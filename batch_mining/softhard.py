# SPDX-License-Identifier: MIT
"""Soft-hard mining: random positives and negatives among those in the wrong order. Roth et al., ICML 2020, appendix."""
import torch


@torch.no_grad()
def softhard_triplets(batch, labels):
    """
    Samples for each anchor a random positive that is farther than its nearest negative, and a random negative that is
    nearer than its farthest positive; if there is none, any positive or negative.

    Args:
        batch:  [B, D] embeddings.
        labels: [B].

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0.], [1.], [5.], [2.]])
    >>> softhard_triplets(batch, torch.tensor([0, 0, 0, 1]))[:2]
    tensor([[0, 2, 3],
            [1, 2, 3]])
    """
    different = labels.unsqueeze(1) != labels
    positives = (~different).fill_diagonal_(False)
    similarity = similarities_in_rows(batch)
    farthest_positive = similarity.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
    nearest_negative = similarity.masked_fill(~different, -torch.inf).amax(dim=1, keepdim=True)
    farther = positives & (similarity < nearest_negative)
    nearer = different & (similarity > farthest_positive)
    farther = torch.where(farther.any(dim=1, keepdim=True), farther, positives)
    nearer = torch.where(nearer.any(dim=1, keepdim=True), nearer, different)
    positive, n_positives = sample_uniform(farther)
    negative, n_negatives = sample_uniform(nearer)
    anchor = (n_positives * n_negatives).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def similarities_in_rows(batch):
    """x_i·x_j − ½‖x_j‖²: [B, B], which is −½‖x_i − x_j‖² plus a constant for each row."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        return gram - gram.diagonal() / 2


def sample_uniform(mask):
    """
    Samples a column from each row of the mask [B, N], uniformly; in an empty row, the column is N. Returns the columns
    and the numbers of candidates, two [B, 1].
    """
    count = mask.cumsum(dim=1, dtype=torch.int32)
    total = count[:, -1:]
    k = (torch.rand(len(mask), 1, device=mask.device) * total).int()                 # 0 ... total − 1
    return torch.searchsorted(count, k, right=True), total


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return softhard_triplets(batch, labels)
