# SPDX-License-Identifier: MIT
"""
Margin loss with a learned beta for each class: the distance that separates its positives from its negatives. Wu et al.,
Sampling Matters in Deep Embedding Learning, ICCV 2017, https://arxiv.org/abs/1706.07567, section 4.2.

Differs: The divisor counts the violated positive pairs and the violated negative pairs. With newer versions
of torch, the code of Roth et al. counts a triplet in which both are violated once. With ν > 0, each triplet adds ν β to
the dividend, with a shared and with a constant β, too; pytorch-metric-learning adds ν β to the loss if β is shared, and
nothing if it is constant.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = True
REQUIRES_OPTIM = True
ACCEPTS_MASKS = True            # it has a formula for masks of pairs, too, as `all` gives them
FLAGS = {
    'margin': {},
    'beta': {'default': 1.2, 'help': 'initial value of beta, the distance that separates positive from negative pairs'},
    'beta_lr': {'default': 0.0005, 'at_least': 0, 'help': 'learning rate of beta'},
    'nu': {},
    'beta_constant': {'default': False, 'help': 'do not train beta'},
    'beta_shared': {'default': False, 'help': 'use one beta for all classes instead of one per class'},
}


def squared_distances(batch):
    """‖x_i − x_j‖² of all pairs, [B, B], and a mask [B, B]: whether it is above the rounding error of 0, or NaN."""
    batch = batch - batch.detach().mean(dim=0)           # distances stay the same; their rounding errors shrink
    gram = batch @ batch.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    return squared, ~(squared <= 8 * torch.finfo(batch.dtype).eps * norms)


def root(squared, apart):
    """√squared; where not `apart` it is 0 and has gradient 0."""
    return squared.where(apart, 1).sqrt().where(apart, 0)


def margin_violations(batch, triplets, beta, margin=0.2):
    """[ d_ap − β + margin ]₊ and [ β − d_an + margin ]₊ of each triplet: two [T]. Arguments as in margin_loss."""
    anchors, positives, negatives = triplets.T
    if len(triplets) > 4 * len(batch):
        distances = root(*squared_distances(batch))                # cheaper than T x D differences
        d_ap, d_an = distances[anchors, positives], distances[anchors, negatives]
    else:
        own = batch.index_select(0, anchors)
        d_ap, d_an = [torch.linalg.vector_norm(own - batch.index_select(0, others), dim=1)
                      for others in (positives, negatives)]
    return F.relu(d_ap - beta + margin), F.relu(beta - d_an + margin)


def margin_loss(batch, triplets, beta, margin=0.2, nu=0.0, log=None):
    """
    Args:
        batch:    [B, D] embeddings, of norm 1.
        triplets: [T, 3] int64 indices (anchor, positive, negative); or two bool masks [B, B], the positives and the
                  negatives of each anchor (row), for every triplet that they make.
        beta:     β, a distance: scalar, or [T], one per triplet (its anchor's); with masks scalar or [B], one per
                  sample.
        margin:   distance from β to either end of the band around it, which no pair should enter.
        nu:       weight of the sum of the betas, which keeps them from growing; 0 means none.
        log:      a dict that receives `tuples`, the number of triplets, and `active_tuples`, the number of triplets
                  that violate the margin, `violating_positives` and `violating_negatives`, the numbers of triplets
                  whose positive or negative does; with masks it receives nothing.

    Returns: scalar, the mean of the non-zero terms among [ d_ap − β + margin ]₊ and [ β − d_an + margin ]₊ of all
    triplets; a differentiable zero if all terms are 0.

    >>> batch = torch.tensor([[1., 0.], [0., 1.], [0., -1.]])
    >>> margin_loss(batch, torch.tensor([[0, 1, 2]]), beta=torch.tensor(1.2), margin=0.2)
    tensor(0.4142)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        if isinstance(triplets, tuple):
            positives, negatives = (mask.to(batch.dtype) for mask in triplets)
            distances = root(*squared_distances(batch))
            beta = beta.expand(len(batch))[:, None]
            too_far, too_near = F.relu(distances - beta + margin), F.relu(beta - distances + margin)
            n_positives, n_negatives = positives.sum(dim=1, keepdim=True), negatives.sum(dim=1, keepdim=True)
            # a pair is in as many triplets as its anchor has pairs of the other kind
            far_weights, near_weights = positives * n_negatives, negatives * n_positives
            n_triplets = n_positives * n_negatives
        else:
            beta = beta.expand(len(triplets))
            far_weights = 1
            near_weights = 1
            n_triplets = 1
            too_far, too_near = margin_violations(batch, triplets, beta, margin)
            if log is not None:
                log.update(tuples=len(triplets), active_tuples=(too_far + too_near).count_nonzero(),
                           violating_positives=too_far.count_nonzero(), violating_negatives=too_near.count_nonzero())
        total = (too_far * far_weights + too_near * near_weights).sum() + nu * (beta * n_triplets).sum()
        count = ((too_far > 0) * far_weights + (too_near > 0) * near_weights).sum()
        return total / count.clamp(min=1) * (count > 0)


class Criterion(torch.nn.Module):
    """
    opt: loss_margin_margin, _beta, _beta_lr, _beta_constant, _beta_shared, _nu, n_classes.
    batchminer: (batch [B, D], labels [B]) -> triplets [T, 3], or masks of positive and negative pairs, two [B, B].
    """

    def __init__(self, opt, batchminer):
        super().__init__()
        self.arguments = opt.loss_margin_margin, opt.loss_margin_nu
        self.lr = opt.loss_margin_beta_lr
        self.batchminer = batchminer
        n_betas = 1 if opt.loss_margin_beta_shared else opt.n_classes
        beta = torch.full((n_betas,), float(opt.loss_margin_beta))
        self.beta = torch.nn.Parameter(beta, requires_grad=not opt.loss_margin_beta_constant)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings of norm 1, labels [B] int64 below n_classes, on one device -> scalar."""
        mined = self.batchminer(batch, labels)
        anchors = slice(None)
        if not isinstance(mined, tuple):
            mined = torch.as_tensor(mined, device=batch.device).long().reshape(-1, 3)
            anchors = mined[:, 0]
        beta = self.beta if len(self.beta) == 1 else self.beta[labels[anchors]]
        self.log = {}
        return margin_loss(batch, mined, beta, *self.arguments, log=self.log)
