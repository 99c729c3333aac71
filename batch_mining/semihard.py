"""Semi-hard negatives: farther than the positive, within the margin. Schroff et al., FaceNet, CVPR 2015, sec. 3.2."""
import torch


@torch.no_grad()
def semihard_triplets(batch, labels, margin=0.2):
    """
    For each anchor a random positive, and a random negative n with d_ap² < d_an² < d_ap² + margin; where there is
    none, any negative.

    Args:
        batch:  [B, D] embeddings.
        labels: [B].
        margin: in units of squared distance.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 1.1], [0., 9.]])
    >>> semihard_triplets(batch, torch.tensor([0, 0, 1, 2]), margin=1.5)
    tensor([[0, 1, 2],
            [1, 0, 2]])
    """
    different = labels.unsqueeze(1) != labels
    positive, n_positives = uniform((~different).fill_diagonal_(False))
    gap = farther(batch)
    gap.sub_(gap.gather(1, positive.clamp(max=len(labels) - 1)))                        # d_an² − d_ap²
    window = (gap > 0).logical_and_(gap < margin).logical_and_(different)
    negative, n_negatives = uniform(window, otherwise=different)
    anchor = (n_positives * n_negatives).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def farther(batch):
    """‖x_j‖² − 2 x_i·x_j: [B, B], in a row the squared distance up to a constant."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    gram = torch.mm(batch, batch.T, out=batch.new_empty(len(batch), len(batch)))       # `out` is exempt from autocast
    norms = gram.diagonal().clone()                          # strided, it would take six times as long to add
    return torch.add(norms, gram, alpha=-2, out=gram)


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
    """opt: miner_semihard_margin; where it is None, the margin of the loss, or 0.2 for a loss without one."""

    def __init__(self, opt):
        self.margin = opt.miner_semihard_margin
        if self.margin is None:
            self.margin = getattr(opt, f'loss_{opt.loss}_margin', 0.2)

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return semihard_triplets(batch, labels, self.margin)
