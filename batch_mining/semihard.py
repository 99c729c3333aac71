"""Semi-hard negatives: farther than the positive, within the margin. Schroff et al., FaceNet, CVPR 2015, sec. 3.2."""
import torch


def uniform(mask):
    """One column of each row's mask [B, N], uniformly; any column where the mask is empty: [B]."""
    return ((1 - torch.rand(mask.shape, device=mask.device)) * mask).argmax(dim=1)       # 1 - rand is never 0


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
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    squared = squared_distances(batch)
    positive = uniform(positives)
    d_ap = squared.gather(1, positive[:, None])
    window = ~same & (squared > d_ap) & (squared < d_ap + margin)
    negative = uniform(torch.where(window.any(dim=1, keepdim=True), window, ~same))
    anchor = (positives.any(dim=1) & ~same.all(dim=1)).nonzero()[:, 0]
    return torch.stack([anchor, positive[anchor], negative[anchor]], dim=1)


def squared_distances(batch):
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        norms = gram.diagonal()
        return (norms[:, None] + norms - 2 * gram).clamp(min=0)


class BatchMiner:
    """opt: miner_semihard_margin; where it is None, the margin of the loss, or 0.2 for a loss without one."""

    def __init__(self, opt):
        self.margin = opt.miner_semihard_margin
        if self.margin is None:
            self.margin = getattr(opt, f'loss_{opt.loss}_margin', 0.2)

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return semihard_triplets(batch, labels, self.margin)
