# SPDX-License-Identifier: MIT
"""
Easy positives with hard or semi-hard negatives. Xuan et al., Improved Embeddings with Easy Positive Triplet Mining,
WACV 2020, https://arxiv.org/abs/1904.04370.

Differs: A negative as far as the positive is not semi-hard, since d_an > d_ap is strict.
"""
import torch

FLAGS = {
    'pos': {'choices': ['easy', 'hard']},
    'neg': {'choices': ['semihard', 'hard']},
}


@torch.no_grad()
def easyhard_triplets(batch, labels, pos='easy', neg='semihard'):
    """
    Args:
        batch:  [B, D] embeddings.
        labels: [B].
        pos:    positive to choose: easy, the nearest, or hard, the farthest.
        neg:    negative to choose: hard, the nearest, or semihard, the nearest that is farther than the positive.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without such a positive or negative are left out.

    >>> batch = torch.tensor([[0.], [1.], [4.], [0.5], [2.]])
    >>> easyhard_triplets(batch, torch.tensor([0, 0, 0, 1, 1]))
    tensor([[0, 1, 4],
            [2, 1, 3],
            [3, 4, 2],
            [4, 3, 0]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    similarities = similarities_in_rows(batch)
    if pos == 'easy':
        of_positive, positive = similarities.masked_fill(~positives, -torch.inf).max(dim=1, keepdim=True)
    else:
        of_positive, positive = similarities.masked_fill(~positives, torch.inf).min(dim=1, keepdim=True)
    negatives = ~same if neg == 'hard' else ~same & (similarities < of_positive)
    negative = similarities.masked_fill(~negatives, -torch.inf).argmax(dim=1)
    anchor = (positives.any(dim=1) & negatives.any(dim=1)).nonzero()[:, 0]
    return torch.stack([anchor, positive[anchor, 0], negative[anchor]], dim=1)


def similarities_in_rows(batch):
    """x_i·x_j − ½‖x_j‖²: [B, B], which is −½‖x_i − x_j‖² plus a constant for each row."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        return gram - gram.diagonal() / 2


class BatchMiner:
    """opt: miner_easyhard_pos, miner_easyhard_neg."""

    def __init__(self, opt):
        self.pos = opt.miner_easyhard_pos
        self.neg = opt.miner_easyhard_neg

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return easyhard_triplets(batch, labels, self.pos, self.neg)
