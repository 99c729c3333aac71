# SPDX-License-Identifier: MIT
"""Batch hard: the farthest positive and the nearest negative. Hermans et al., 2017, https://arxiv.org/abs/1703.07737."""
import torch


@torch.no_grad()
def hard_triplets(batch, labels):
    """
    Args:
        batch:  [B, D] embeddings.
        labels: [B].

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0.], [1.], [3.], [5.], [4.]])
    >>> hard_triplets(batch, torch.tensor([0, 0, 0, 1, 1]))
    tensor([[0, 2, 4],
            [1, 2, 4],
            [2, 0, 4],
            [3, 4, 2],
            [4, 3, 2]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    similarities = similarities_in_rows(batch)
    positive = similarities.masked_fill(~positives, torch.inf).argmin(dim=1)
    negative = similarities.masked_fill(same, -torch.inf).argmax(dim=1)
    anchor = (positives.any(dim=1) & ~same.all(dim=1)).nonzero()[:, 0]
    return torch.stack([anchor, positive[anchor], negative[anchor]], dim=1)


def similarities_in_rows(batch):
    """x_i·x_j − ½‖x_j‖²: [B, B], which is −½‖x_i − x_j‖² plus a constant for each row."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        return gram - gram.diagonal() / 2


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return hard_triplets(batch, labels)
