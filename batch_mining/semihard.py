# SPDX-License-Identifier: MIT
"""
Semi-hard negatives: farther than the positive, within the margin. Schroff et al., FaceNet, CVPR 2015, sec. 3.2.

Differs: The window of Roth et al. is in Euclidean distances, but the margin of their triplet loss is in squared
distances, so that many of these negatives have no loss. Here both have the same unit.
"""
import torch

FLAGS = {'margin': {'default': None, 'type': 'float', 'above': 0,
                    'help': "width of the window of semi-hard negatives, in squared distance; by default the loss's "
                            'margin, or 0.2'}}

# The power of the distances in each loss's margin, --loss_<loss>_margin, which is a difference of distance^power. For
# triplet it is --loss_triplet_power; for losses that are not listed it is 2, squared distances.
MARGIN_POWERS = {'margin': 1, 'dr_triplet': 1}


@torch.no_grad()
def semihard_triplets(batch, labels, margin=0.2, power=2):
    """
    Samples for each anchor a random positive, and a random negative n with d_ap^power < d_an^power < d_ap^power +
    margin, or any negative if there is none.

    Args:
        batch:  [B, D] embeddings.
        labels: [B].
        margin: in units of distance^power.
        power:  2: a difference of squared distances; 1: of plain distances.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 1.1], [0., 9.]])
    >>> semihard_triplets(batch, torch.tensor([0, 0, 1, 2]), margin=1.5)
    tensor([[0, 1, 2],
            [1, 0, 2]])
    """
    different = labels.unsqueeze(1) != labels
    positive, n_positives = sample_uniform((~different).fill_diagonal_(False))
    distances = distance_powers(batch, power)
    gap = distances - distances.gather(1, positive.clamp(max=len(labels) - 1))          # d_an^power − d_ap^power
    window = (gap > 0) & (gap < margin) & different
    window = torch.where(window.any(dim=1, keepdim=True), window, different)
    negative, n_negatives = sample_uniform(window)
    anchor = (n_positives * n_negatives).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def distance_powers(batch, power):
    """‖x_i − x_j‖^power: [B, B]."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp(min=0).pow(power / 2)


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
    """
    opt: miner_semihard_margin, a difference of squared distances. If it is None, the miner takes the margin and the
    unit of the loss (with loss_triplet_power), or a difference of squared distances of 0.2 if the loss has no margin.
    """

    def __init__(self, opt):
        self.margin = opt.miner_semihard_margin
        self.power = 2
        if self.margin is None:
            self.margin = getattr(opt, f'loss_{opt.loss}_margin', 0.2)
            self.power = opt.loss_triplet_power if opt.loss == 'triplet' else MARGIN_POWERS.get(opt.loss, 2)

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        return semihard_triplets(batch, labels, self.margin, self.power)
