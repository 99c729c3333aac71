"""
Triplet loss. Schroff et al., FaceNet, CVPR 2015, https://arxiv.org/abs/1503.03832, section 3.1.

With power 1 and active_only, over all triplets, it is the triplet loss of Musgrave et al., ECCV 2020.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = False
ACCEPTS_MASKS = True            # of pairs, as the miner `all` gives them: every triplet that they make


def distances(batch, triplets, power=2):
    """‖x_a − x_p‖^power and ‖x_a − x_n‖^power of triplets [T, 3]: two [T]. The gradient of a zero distance is zero."""
    anchors, positives, negatives = triplets.T
    if len(triplets) > 4 * len(batch):
        matrix = distance_matrix(batch, power)                     # cheaper than T x D differences
        return matrix[anchors, positives], matrix[anchors, negatives]
    own = batch.index_select(0, anchors)
    return [root((own - batch.index_select(0, others)).square().sum(dim=1), power) for others in (positives, negatives)]


def distance_matrix(batch, power=2):
    """‖x_i − x_j‖^power: [B, B]. What is within rounding of 0 is 0, and there the gradient is 0."""
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return root(squared.where(squared > 8 * torch.finfo(batch.dtype).eps * norms, 0), power)


def root(squared, power):
    """squared^(power / 2), with gradient 0 at 0."""
    if power == 2:
        return squared
    apart = squared > 0
    return squared.where(apart, 1).pow(power / 2).where(apart, 0)


def triplet_violations(batch, triplets, margin=0.2, power=2):
    """[ d_ap^power − d_an^power + margin ]₊ of each triplet: [T]. Arguments as in triplet_loss."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        d_ap, d_an = distances(batch, triplets, power)
        return F.relu(d_ap - d_an + margin)


def pair_violations(batch, positives, negatives, margin=0.2, power=2):
    """
    [ d_ap^power − d_an^power + margin ]₊ of every triplet of a positive pair (a, p) and a negative pair (a, n), given
    as masks [B, B]: [P, B] for the P positive pairs, 0 where there is no triplet; and the number of triplets.
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        distances = distance_matrix(batch, power)
        anchors, partners = positives.nonzero().T
        nearness = (-distances).masked_fill(~negatives, -torch.inf)
        # in place: [P, B] is the largest by far
        gaps = nearness.index_select(0, anchors).add_((distances[anchors, partners] + margin)[:, None])
        n_triplets = positives.sum(dim=1, dtype=torch.int32) * negatives.sum(dim=1, dtype=torch.int32)
        return F.relu(gaps, inplace=True), n_triplets.sum()


def triplet_loss(batch, triplets, margin=0.2, power=2, active_only=False):
    """
    Args:
        batch:       [B, D] embeddings, used as they are.
        triplets:    [T, 3] int64 indices (anchor, positive, negative).
        margin:      in units of distance^power.
        power:       2, squared distances (FaceNet, Roth et al.); 1, plain ones (Musgrave et al.).
        active_only: mean over the triplets that violate the margin instead of over all.

    Returns: scalar; 0, with a graph, where there are no triplets.

    >>> batch = torch.tensor([[0., 0.], [1., 0.], [0., 2.]])
    >>> triplet_loss(batch, torch.tensor([[0, 1, 2]]), margin=3.5)
    tensor(0.5000)
    """
    return mean(triplet_violations(batch, triplets, margin, power), len(triplets), active_only)


def mean(violations, n_triplets, active_only):
    count = violations.count_nonzero() if active_only else torch.as_tensor(n_triplets)
    return violations.sum() / count.clamp(min=1)


class Criterion(torch.nn.Module):
    """
    opt: loss_triplet_margin, _power, _active_only.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3], or masks of positive and negative pairs, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margin, self.power = opt.loss_triplet_margin, opt.loss_triplet_power
        self.active_only, self.batchminer = opt.loss_triplet_active_only, batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        mined = self.batchminer(batch, labels)
        if isinstance(mined, tuple):
            violations, n_triplets = pair_violations(batch, *mined, self.margin, self.power)
        else:
            triplets = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3)
            violations, n_triplets = triplet_violations(batch, triplets, self.margin, self.power), len(triplets)
        self.log = {'tuples': n_triplets, 'active_tuples': violations.count_nonzero()}
        return mean(violations, n_triplets, self.active_only)
