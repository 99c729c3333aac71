"""
Margin loss, with a boundary per class that is learned. Wu et al., Sampling Matters in Deep Embedding Learning,
ICCV 2017, https://arxiv.org/abs/1706.07567, section 4.2.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = True


def distances(batch, first, second):
    """‖x_i − x_j‖ of the pairs (i, j) = (first, second): [T]. The gradient of a zero distance is zero."""
    if len(first) <= len(batch):
        squared = (batch[first] - batch[second]).pow(2).sum(dim=1)
    else:
        gram = batch @ batch.T                                     # one B x B product instead of T x D differences
        norms = gram.diagonal()
        squared = (norms[:, None] + norms - 2 * gram).clamp(min=0)[first, second]
    apart = squared > 0
    return torch.where(apart, squared, 1).sqrt() * apart


def margin_violations(batch, triplets, beta, margin=0.2):
    """u = [ d_ap − β + margin ]₊ and v = [ β − d_an + margin ]₊ of each triplet: two [T]."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        anchors, positives, negatives = triplets.T
        d_ap, d_an = distances(batch, anchors, positives), distances(batch, anchors, negatives)
        return F.relu(d_ap - beta + margin), F.relu(beta - d_an + margin)


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
    total = (too_far + too_near).sum() + nu * beta.expand_as(too_far).sum()
    count = (too_far > 0).sum() + (too_near > 0).sum()
    return total / count.clamp(min=1) * (count > 0)


class Criterion(torch.nn.Module):
    """
    opt: loss_margin_margin, _beta, _beta_lr, _beta_constant, _beta_shared, _nu, n_classes.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.margin, self.nu, self.lr = opt.loss_margin_margin, opt.loss_margin_nu, opt.loss_margin_beta_lr
        self.batchminer = batchminer
        beta = torch.full((1 if opt.loss_margin_beta_shared else opt.n_classes,), float(opt.loss_margin_beta))
        self.beta = torch.nn.Parameter(beta, requires_grad=not opt.loss_margin_beta_constant)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings of norm 1, labels [B] int64 below n_classes, on one device -> scalar."""
        triplets = torch.as_tensor(self.batchminer(batch, labels), device=batch.device).long().reshape(-1, 3)
        beta = self.beta.expand(len(triplets)) if len(self.beta) == 1 else self.beta[labels[triplets[:, 0]]]
        too_far, too_near = margin_violations(batch, triplets, beta, self.margin)
        self.log = {'tuples': len(triplets), 'active_tuples': ((too_far > 0) | (too_near > 0)).sum()}
        return mean(too_far, too_near, beta, self.nu)
