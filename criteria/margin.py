"""
Margin loss, with a boundary per class that is learned. Wu et al., Sampling Matters in Deep Embedding Learning,
ICCV 2017, https://arxiv.org/abs/1706.07567, section 4.2.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = True
ACCEPTS_MASKS = True            # of pairs, as the miner `all` gives them: every triplet that they make


def distances(batch, triplets):
    """‖x_a − x_p‖ and ‖x_a − x_n‖ of triplets [T, 3]: two [T]. The gradient of a zero distance is zero."""
    anchors, positives, negatives = triplets.T
    if len(triplets) > 4 * len(batch):
        matrix = distance_matrix(batch)                            # cheaper than T x D differences
        return matrix[anchors, positives], matrix[anchors, negatives]
    own = batch.index_select(0, anchors)
    return [torch.linalg.vector_norm(own - batch.index_select(0, others), dim=1) for others in (positives, negatives)]


def distance_matrix(batch):
    """‖x_i − x_j‖: [B, B]. What is within rounding of 0 is 0, and there the gradient is 0."""
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    apart = squared > 8 * torch.finfo(batch.dtype).eps * norms
    return squared.where(apart, 1).sqrt().where(apart, 0)


def margin_violations(batch, triplets, beta, margin=0.2):
    """u = [ d_ap − β + margin ]₊ and v = [ β − d_an + margin ]₊ of each triplet: two [T]."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        d_ap, d_an = distances(batch, triplets)
        return F.relu(d_ap - beta + margin), F.relu(beta - d_an + margin)


def margin_loss_of_pairs(batch, positives, negatives, beta, margin=0.2, nu=0.0):
    """
    margin_loss over every triplet of a positive pair (a, p) and a negative pair (a, n), given as masks [B, B], in B²: a
    pair counts as often as the anchor has pairs of the other kind. beta: scalar or [B], of each sample.
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        distances, beta = distance_matrix(batch), beta.expand(len(batch))[:, None]
        n_positives, n_negatives = (mask.sum(dim=1, keepdim=True, dtype=torch.int32).to(batch.dtype)
                                    for mask in (positives, negatives))
        with torch.no_grad():
            # In how many triplets a pair is too far apart, or too near, which is negative: the sum is linear in the
            # distances then, and needs fewer passes over [B, B] than two hinges.
            weights = ((distances > beta - margin) & positives) * n_negatives
            weights -= ((distances < beta + margin) & negatives) * n_positives
            count = weights.abs().sum()
        total = (weights * (distances - beta)).sum() + margin * count + nu * (beta * n_positives * n_negatives).sum()
        return total / count.clamp(min=1) * (count > 0)


def margin_loss(batch, triplets, beta, margin=0.2, nu=0.0):
    """
    Args:
        batch:    [B, D] embeddings, of norm 1.
        triplets: [T, 3] int64 indices (anchor, positive, negative).
        beta:     scalar or [T], the boundary β of each triplet's anchor, in units of distance.
        margin:   half the width of the band around the boundary.
        nu:       weight of the boundaries' sum, against ever larger ones.

    Returns: scalar, the sum of violations over their number; 0, with a graph, where there are none.

    >>> batch = torch.tensor([[1., 0.], [0., 1.], [0., -1.]])
    >>> margin_loss(batch, torch.tensor([[0, 1, 2]]), beta=torch.tensor(1.2), margin=0.2)
    tensor(0.4142)
    """
    return mean(*margin_violations(batch, triplets, beta, margin), beta, nu)


def mean(too_far, too_near, beta, nu):
    total = (too_far + too_near).sum()
    if nu:
        total = total + nu * beta.expand_as(too_far).sum()
    count = too_far.count_nonzero() + too_near.count_nonzero()
    return total / count.clamp(min=1) * (count > 0)


class Criterion(torch.nn.Module):
    """
    opt: loss_margin_margin, _beta, _beta_lr, _beta_constant, _beta_shared, _nu, n_classes.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3], or masks of positive and negative pairs, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margin, self.nu, self.lr = opt.loss_margin_margin, opt.loss_margin_nu, opt.loss_margin_beta_lr
        self.batchminer = batchminer
        beta = torch.full((1 if opt.loss_margin_beta_shared else opt.n_classes,), float(opt.loss_margin_beta))
        self.beta = torch.nn.Parameter(beta, requires_grad=not opt.loss_margin_beta_constant)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings of norm 1, labels [B] int64 below n_classes, on one device -> scalar."""
        mined = self.batchminer(batch, labels)
        if isinstance(mined, tuple):
            beta = self.beta if len(self.beta) == 1 else self.beta[labels]
            return margin_loss_of_pairs(batch, *mined, beta, self.margin, self.nu)
        triplets = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3)
        beta = self.beta.expand(len(triplets)) if len(self.beta) == 1 else self.beta[labels[triplets[:, 0]]]
        too_far, too_near = margin_violations(batch, triplets, beta, self.margin)
        self.log = {'tuples': len(triplets), 'active_tuples': (too_far + too_near).count_nonzero()}
        return mean(too_far, too_near, beta, self.nu)
