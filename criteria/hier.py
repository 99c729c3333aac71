# SPDX-License-Identifier: MIT
"""
HIER: hierarchical proxies in hyperbolic space, a regulariser to add to any loss. Kim et al., HIER: Metric Learning
Beyond Class Labels via Hierarchical Regularization, CVPR 2023, https://arxiv.org/abs/2212.14258.

Differs: The gradient with respect to points of the ball is multiplied by (1 − c ‖z‖²)² / 4, as in the authors' code.
They compute the base loss from these points, too, with weight 1 beside 0.5 for hier, so that its gradient is also
multiplied by this factor. In this code the base loss takes the embeddings, and its gradient is whole. With c 0.1 the
factor is 0.205 at norm 1, and 0.0942 at norms above the clip 2.3, as in the recipes, which therefore have the weights
0.0942 and 0.5; the weight also scales the gradient of the base loss's proxies. On two GPUs, gathering halves the
gradient of the network in the authors' code. In that code, the third point of a triplet can be its anchor, and a k
above the batch size is an error. In this code, such a k makes all samples of the batch related to each other, so that
the batch has no triplets and only the proxies are trained. k is 20 in the authors' scripts and 30 by default in their
code. The learning rate of their base loss, Proxy-Anchor, is 10⁴ times the network's. They rank by the distance in
the ball; this code ranks by the Euclidean distance in evaluation, which gives the same order for embeddings of norm 1.
"""
import torch

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = True
FLAGS = {
    'n_proxies': {'default': 512, 'at_least': 1, 'help': 'number of hierarchical proxies'},
    'k': {'at_least': 1},
    'margin': {},
    'temperature': {'above': 0},
    'c': {'above': 0},
    'clip_r': {'at_least': 0},
    'n_triplets': {'at_least': 1},
    'lrmulti': {'default': 50.0, 'at_least': 0, 'help': 'learning rate of the proxies, as a multiple of --lr'},
}
CHUNK = 2 ** 17         # number of elements of a tensor of triplets x proxies that fits into the cache


def to_ball(batch, c=0.1, clip_r=2.3):
    """
    Maps embeddings [B, D] to points [B, D] of the Poincaré ball of curvature −c, slightly inside its boundary.
    Embeddings with a norm above clip_r are first scaled to norm clip_r; clip_r 0 means no scaling.
    """
    norms = torch.linalg.vector_norm(batch, dim=1, keepdim=True).clamp(min=torch.finfo(batch.dtype).tiny)
    clipped = norms.clamp(max=clip_r) if clip_r else norms
    radius = (torch.tanh(c ** 0.5 * clipped) / c ** 0.5).clamp(max=(1 - 1e-3) / c ** 0.5)
    return batch * (radius / norms)


def ball_distances(points, c=0.1):
    """The distances (2/√c) artanh(√c ‖−z ⊕ w‖) of all pairs of points [B, D] of the ball: [B, B]."""
    room = 1 - c * points.square().sum(dim=1)
    points = points - points.detach().mean(dim=0)  # ‖z − w‖ stays the same; its rounding errors shrink
    gram = points @ points.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    apart = squared > 8 * torch.finfo(points.dtype).eps * norms
    squared = squared.where(apart, 1)
    # ‖−z ⊕ w‖² = ‖z − w‖² / ((1 − c ‖z‖²) (1 − c ‖w‖²) + c ‖z − w‖²)
    ratio = squared / torch.addcmul(c * squared, room[:, None], room)
    return 2 / c ** 0.5 * torch.atanh((c * ratio).sqrt().clamp(max=1 - 1e-5)) * apart


def with_riemannian_gradient(points, c=0.1):
    """Returns the points [N, D] of the ball; in the backward pass, their gradient is scaled by (1 − c ‖z‖²)² / 4."""
    factor = (1 - c * points.detach().square().sum(dim=1, keepdim=True)).square() / 4
    return factor * points + ((1 - factor) * points).detach()


def sample_columns(mask, n):
    """Samples n columns of each row of the mask [N, N], with replacement: [N, n]; arbitrary columns of an empty row."""
    count = mask.cumsum(dim=1, dtype=torch.int32)
    rank = (torch.rand(len(mask), n, device=mask.device) * count[:, -1:]).int()
    return torch.searchsorted(count, rank, right=True).clamp(max=len(mask) - 1)


def sample_triplets(similarities, k=20, n=50):
    """
    Samples n triplets (i, j, k) for each anchor i, given the similarities [N, N]: [N n, 3]; and a mask of the valid
    triplets, [N n]. Two points are related if each is among the `k` most similar points of the other. In a triplet, i
    and j are related, and i and k are not. An anchor with fewer than two related points, or without an unrelated one,
    has no valid triplet.
    """
    nearest = similarities.topk(min(k, len(similarities))).indices
    related = torch.zeros_like(similarities, dtype=torch.bool).scatter_(1, nearest, True)
    related = (related & related.T).fill_diagonal_(False)
    unrelated = (~related).fill_diagonal_(False)
    anchors = torch.arange(len(similarities), device=similarities.device)[:, None].expand(-1, n)
    triplets = torch.stack([anchors, sample_columns(related, n), sample_columns(unrelated, n)], dim=2).flatten(0, 1)
    return triplets, ((related.sum(dim=1) > 1) & unrelated.any(dim=1)).repeat_interleave(n)


def gumbel(*shape, like):
    """Gumbel noise with the dtype and device of the tensor `like`, four times as fast as by exponential_()."""
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device).clamp_(min=torch.finfo(like.dtype).tiny)  # not 0
    return uniform.log_().neg_().log_().neg_()


def ancestor_violations(distances, triplets, weights, noise, margin=0.1, temperature=0.1):
    """
    The hinge losses of HIER, and their gradient. The loss of a triplet (i, j, k) is
    [ D_i,ij − D_i,ijk + m ]₊ + [ D_j,ij − D_j,ijk + m ]₊ + [ D_k,ijk − D_k,ij + m ]₊, or 0 where both ancestors are the
    same proxy. D_i,ij is the distance between point i and the lowest common ancestor of i and j: the proxy p with the
    largest noise_p − max(D_ip, D_jp) / τ. The backward pass uses the gradient of the softmax over p instead of this
    argmax (straight-through Gumbel-softmax).

    Args:
        distances:   [N, P] between points and proxies.
        triplets:    [T, 3] int64.
        weights:     [T], the weights of the triplets in the sum.
        noise:       two tensors [T, P] of Gumbel noise, added to the logits of the ancestors of ij and of ijk.
        margin:      m, a hyperbolic distance.
        temperature: τ, which divides the distances in the logits.

    Returns: the hinge losses [T], and the gradient [N, P] of their weighted sum, in closed form: autograd takes three
    times as long.
    """
    i, j, k = points = [distances.index_select(0, index) for index in triplets.T]
    of_pair = torch.maximum(i, j)
    pair, triple = [(gumbels - maximum / temperature).softmax(dim=1)
                    for gumbels, maximum in zip(noise, (of_pair, torch.maximum(of_pair, k)), strict=True)]
    ancestors = [soft.max(dim=1, keepdim=True).indices for soft in (pair, triple)]
    signs = [1, 1, -1]
    hinges = [margin + sign * (point.gather(1, ancestors[0]) - point.gather(1, ancestors[1]))
              for sign, point in zip(signs, points, strict=True)]
    differ = ancestors[0] != ancestors[1]
    violations = sum(hinge.relu() for hinge in hinges) * differ

    slopes = [sign * weights[:, None] * differ * (hinge > 0) for sign, hinge in zip(signs, hinges, strict=True)]
    of_choice = sum(slope * point for slope, point in zip(slopes, points, strict=True))

    def by_maximum(soft):
        """[T, P]: the gradient by the maxima of distances of which `soft` is the softmax at temperature τ."""
        return soft * (of_choice - (soft * of_choice).sum(dim=1, keepdim=True)) / temperature

    by_max_ij = -by_maximum(pair)
    by_max_ijk = by_maximum(triple)
    by_k = by_max_ijk * (1 + (k - of_pair).sign()) / 2                         # ties share the gradient
    by_max_ij = by_max_ij + by_max_ijk - by_k
    by_i = by_max_ij * (1 + (i - j).sign()) / 2
    gradient = torch.zeros_like(distances)
    for index, part, slope in zip(triplets.T, (by_i, by_max_ij - by_i, by_k), slopes, strict=True):
        part.scatter_add_(1, ancestors[0], slope).scatter_add_(1, ancestors[1], -slope)
        gradient.index_add_(0, index, part)
    return violations[:, 0], gradient


class SumOfViolations(torch.autograd.Function):
    """
    The sum of weights [T] times the hinge losses of ancestor_violations, with new noise. On the CPU, triplets of weight
    0 are skipped, and the others are processed in chunks that fit into the cache. It has no second derivatives.
    """

    @staticmethod
    def forward(ctx, distances, triplets, weights, margin, temperature):
        n_proxies = distances.shape[1]
        size = len(triplets)
        if distances.device.type == 'cpu':                         # a GPU would have to wait for nonzero()
            counted = weights.nonzero()[:, 0]
            size = max(CHUNK // n_proxies, 1)
            triplets, weights = triplets[counted], weights[counted]
        value = distances.new_zeros(())
        gradient = torch.zeros_like(distances)
        for rows, of_rows in zip(triplets.split(size), weights.split(size), strict=True):
            noise = [gumbel(len(rows), n_proxies, like=distances) for _ in range(2)]
            violations, slopes = ancestor_violations(distances, rows, of_rows, noise, margin, temperature)
            value = value + violations @ of_rows
            gradient = gradient + slopes
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():                                # called with create_graph=True
            raise RuntimeError('this loss has no second derivatives: call backward without create_graph=True')
        return grad_output * ctx.saved_tensors[0], None, None, None, None


def hier_loss(batch, labels, proxies, k=20, margin=0.1, temperature=0.1, c=0.1, clip_r=2.3, n_triplets=50):
    """
    Args:
        batch:       [B, D] embeddings, not normalised.
        labels:      [B] int64.
        proxies:     [P, D], the possible common ancestors.
        k:           number of nearest neighbours; mutual ones count as related; should be less than the batch size.
        margin:      m, a hyperbolic distance.
        temperature: τ, temperature in the choice of the nearest common ancestor; distances are divided by it.
        c:           curvature of the hyperbolic space; the ball has curvature −c.
        clip_r:      norm to which longer embeddings and proxies are clipped before they are mapped to the ball; 0 means
                     no limit.
        n_triplets:  number of triplets that are sampled for each anchor.

    Returns: scalar, the mean of ancestor_violations over sampled triplets of the batch plus the mean over sampled
    triplets of the proxies. In the batch, samples of the same class count as more similar than all others. A mean is
    a differentiable zero if no anchor has two related points and an unrelated one.

    >>> batch = torch.tensor([[1., 0.], [.9, 0.], [.8, 0.], [0., 1.]])
    >>> value = hier_loss(batch, torch.tensor([0, 0, 0, 1]), torch.tensor([[.5, 0.], [0., 0.]]), k=3, margin=5.)
    >>> bool(value > 0)
    True
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        points = to_ball(torch.cat([batch, proxies.to(batch.dtype)]), c, clip_r)
        distances = ball_distances(with_riemannian_gradient(points, c), c)
        similarities = (-distances.detach()).exp()
        n = len(batch)
        total = 0
        among_samples = slice(n), labels[:, None] == labels
        among_proxies = slice(n, None), 0                          # they have no classes
        for part, same in (among_samples, among_proxies):
            triplets, is_valid = sample_triplets(similarities[part, part] + same, k, n_triplets)
            weights = is_valid.to(batch.dtype) / is_valid.sum().clamp(min=1)
            total = total + SumOfViolations.apply(distances[part, n:], triplets, weights, margin, temperature)
        return total


class Criterion(torch.nn.Module):
    """opt: loss_hier_n_proxies, _k, _margin, _temperature, _c, _clip_r, _n_triplets, _lrmulti, lr, embed_dim."""

    def __init__(self, opt):
        super().__init__()
        names = ('k', 'margin', 'temperature', 'c', 'clip_r', 'n_triplets')
        self.arguments = [getattr(opt, f'loss_hier_{name}') for name in names]
        spread = 0.9 * (opt.loss_hier_clip_r or 2.3) / opt.embed_dim ** 0.5
        self.proxies = torch.nn.Parameter(torch.randn(opt.loss_hier_n_proxies, opt.embed_dim) * spread)
        self.optim_dict_list = [{'params': [self.proxies], 'lr': opt.lr * opt.loss_hier_lrmulti}]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return hier_loss(batch, labels, self.proxies, *self.arguments)
