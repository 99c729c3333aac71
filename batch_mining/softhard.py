"""Soft-hard mining: random among positives and negatives that are out of order. Roth et al., ICML 2020, appendix."""
import torch


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
    different = labels.unsqueeze(1) != labels
    positives = (~different).fill_diagonal_(False)
    nearness = nearer(batch)
    farthest_positive = nearness.masked_fill(~positives, torch.inf).amin(dim=1, keepdim=True)
    nearest_negative = nearness.masked_fill(~different, -torch.inf).amax(dim=1, keepdim=True)
    positive, n_positives = uniform((nearness < nearest_negative).logical_and_(positives), otherwise=positives)
    negative, n_negatives = uniform((nearness > farthest_positive).logical_and_(different), otherwise=different)
    anchor = (n_positives * n_negatives).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def nearer(batch):
    """x_i·x_j − ½‖x_j‖²: [B, B], in a row half the negative squared distance up to a constant."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay; smaller norms leave them more digits
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        return gram.sub_(gram.diagonal() / 2)


def uniform(mask, otherwise=None):
    """
    One column of each row's mask [B, N], uniformly, or of `otherwise` where the mask is empty, or N where both are:
    [B, 1]; and of how many: [B, 1].
    """
    count = mask.cumsum(dim=1, dtype=torch.int32)
    if otherwise is not None:
        count = torch.where(count[:, -1:] > 0, count, otherwise.cumsum(dim=1, dtype=torch.int32))
    total = count[:, -1:]
    k = (torch.rand(len(mask), 1, device=mask.device) * total).int()                 # 0 ... total − 1
    return torch.searchsorted(count, k, right=True), total


class BatchMiner:
    def __init__(self, opt):
        pass

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return softhard_triplets(batch, labels)
