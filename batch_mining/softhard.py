"""Soft-hard mining: random among positives and negatives that are out of order. Roth et al., ICML 2020, appendix."""
import torch


def uniform(mask):
    """One column of each row's mask [B, N], uniformly; any column where the mask is empty: [B]."""
    return ((1 - torch.rand(mask.shape, device=mask.device)) * mask).argmax(dim=1)       # 1 - rand is never 0


@torch.no_grad()
def softhard_triplets(batch, labels):
    """
    For each anchor a random negative nearer than its farthest positive, and a random positive farther than its
    nearest negative; where there is none, any.

    Args:
        batch:  [B, D] embeddings.
        labels: [B].

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0.], [1.], [5.], [2.]])
    >>> softhard_triplets(batch, torch.tensor([0, 0, 0, 1]))[:2]
    tensor([[0, 2, 3],
            [1, 2, 3]])
    """
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    squared = squared_distances(batch)
    farthest_positive = squared.masked_fill(~positives, -torch.inf).amax(dim=1, keepdim=True)
    nearest_negative = squared.masked_fill(same, torch.inf).amin(dim=1, keepdim=True)
    hard_positives, hard_negatives = positives & (squared > nearest_negative), ~same & (squared < farthest_positive)
    positive = uniform(torch.where(hard_positives.any(dim=1, keepdim=True), hard_positives, positives))
    negative = uniform(torch.where(hard_negatives.any(dim=1, keepdim=True), hard_negatives, ~same))
    anchor = (positives.any(dim=1) & ~same.all(dim=1)).nonzero()[:, 0]
    return torch.stack([anchor, positive[anchor], negative[anchor]], dim=1)


def squared_distances(batch):
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        norms = gram.diagonal()
        return (norms[:, None] + norms - 2 * gram).clamp(min=0)


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return softhard_triplets(batch, labels)
