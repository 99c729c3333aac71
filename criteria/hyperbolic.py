"""
Pairwise cross entropy in hyperbolic space. Ermolov et al., Hyperbolic Vision Transformers, CVPR 2022,
https://arxiv.org/abs/2203.10833.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False


def to_ball(batch, c=0.1, clip_r=2.3):
    """Euclidean points [B, D], cut to norm clip_r (0: not), -> the Poincaré ball of curvature −c, within its rim."""
    norms = torch.linalg.vector_norm(batch, dim=1, keepdim=True).clamp(min=torch.finfo(batch.dtype).tiny)
    cut = norms.clamp(max=clip_r) if clip_r else norms
    radius = (torch.tanh(c ** 0.5 * cut) / c ** 0.5).clamp(max=(1 - 1e-3) / c ** 0.5)
    return batch * (radius / norms)


def ball_distances(points, c=0.1):
    """(2/√c) artanh(√c ‖−z ⊕ w‖) of all pairs of points of the ball: [B, B]."""
    gram = points @ points.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms - 2 * gram
    apart = squared > 8 * torch.finfo(points.dtype).eps * norms
    # ‖−z ⊕ w‖² = ‖z − w‖² / (1 − 2c z·w + c² ‖z‖² ‖w‖²)
    ratio = squared.where(apart, 1) / (1 - 2 * c * gram + c ** 2 * norms[:, None] * norms)
    return 2 / c ** 0.5 * torch.atanh((c * ratio).sqrt().clamp(max=1 - 1e-5)) * apart


def hyperboloid(batch, c=0.1, clip_r=2.3):
    """
    The points [B, D] on the hyperboloid, [B, D + 1], with the first coordinate negated and as it is: the inner product
    of one of each is −cosh(√c D), D their distance.
    """
    points = to_ball(batch, c, clip_r)
    norms = c * points.square().sum(dim=1, keepdim=True)
    time, space = (1 + norms) / (1 - norms), 2 * c ** 0.5 / (1 - norms) * points
    return torch.cat([-time, space], dim=1), torch.cat([time, space], dim=1)


def hyperbolic_logits(batch, c=0.1, temperature=0.2, clip_r=2.3):
    """−D / temperature of all pairs [B, B]; for c = 0 cosines / temperature."""
    if c == 0:
        batch = F.normalize(batch, dim=1)
        return batch @ batch.T / temperature
    return -ball_distances(to_ball(batch, c, clip_r), c) / temperature


def slots(labels):
    """Numbers the samples of each class from 0 in the order of the batch: [B]; and the sizes of their classes: [B]."""
    same = labels[:, None] == labels
    return same.tril(diagonal=-1).sum(dim=1, dtype=torch.int32), same.sum(dim=1, dtype=torch.int32)


def hyperbolic_loss(batch, labels, c=0.1, temperature=0.2, clip_r=2.3):
    """
    Args:
        batch:       [B, D] embeddings, not normalised.
        labels:      [B] int64.
        c:           curvature of the ball; 0: the sphere, with cosines (the authors then use temperature 0.1).
        temperature: τ.
        clip_r:      norm to which embeddings are cut before they are mapped; 0: not.

    Returns: scalar. Each class has its samples in slots 1 to m. For every ordered pair of slots (a, b), the mean over
    the classes that have both of the cross entropy of −D(z_a, z_b) / τ against the other such classes' points in slots
    a and b; then the mean over the pairs of slots. 0, with a graph, for fewer than two slots.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.], [-1., 0.]])
    >>> hyperbolic_loss(batch, torch.tensor([0, 0, 1, 1]))
    tensor(2.6726)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        logits = hyperbolic_logits(batch, c, temperature, clip_r)
        slot, size = slots(labels)
        n_slots = int(size.max())
        if n_slots < 2:
            return batch.sum() * 0
        same = labels[:, None] == labels
        largest = logits.detach().masked_fill(same, -torch.inf).amax(dim=1, keepdim=True).nan_to_num(neginf=0)
        # float64 where there is any: near the rim, logits differ by more than float32's exponents hold
        wide = logits.dtype if logits.device.type == 'mps' else torch.float64
        shares = (logits - largest).masked_fill(same, -torch.inf).to(wide).exp()

        # summed[i, s, t]: over the points of other classes in slot s whose class has more than t samples
        place = slot * (n_slots + 1) + size
        summed = shares.new_zeros(len(batch), n_slots * (n_slots + 1)).index_add(1, place, shares)
        summed = summed.view(len(batch), n_slots, n_slots + 1).flip(2).cumsum(dim=2).flip(2)[:, :, 1:]

        # of anchor i in slot a and every slot b: both slots are there where the class has more than max(a, b) samples
        other = torch.arange(n_slots, device=batch.device).expand(len(batch), -1)                    # [B, n_slots]: b
        both = torch.maximum(slot[:, None], other)
        in_own = summed.gather(1, slot[:, None, None].expand(-1, 1, n_slots))[:, 0].gather(1, both)
        in_other = summed.gather(2, both[:, :, None])[:, :, 0]
        rivals = in_own + in_other
        order = labels.argsort(stable=True)
        start = (labels[:, None] > labels).sum(dim=1, dtype=torch.int32)
        valid = (other < size[:, None]) & (other != slot[:, None])
        partner = order[(start[:, None] + other).where(valid, 0)]
        target = logits.gather(1, partner) - largest
        log_rivals = rivals.where(rivals > 0, 1).log().to(logits.dtype)
        # the default threshold, 20, would leave out what float64 and a sum over pairs can show
        terms = F.softplus(log_rivals - target, threshold=40) .where(valid & (rivals > 0), 0)

        pair = slot[:, None] * n_slots + other
        sums = terms.new_zeros(n_slots ** 2).index_add(0, pair.flatten(), terms.flatten())
        counts = terms.new_zeros(n_slots ** 2).index_add(0, pair.flatten(), valid.flatten().to(terms.dtype))
        return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum()


class Criterion(torch.nn.Module):
    """opt: loss_hyperbolic_c, _temperature, _clip_r."""

    def __init__(self, opt):
        super().__init__()
        self.arguments = opt.loss_hyperbolic_c, opt.loss_hyperbolic_temperature, opt.loss_hyperbolic_clip_r

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, not normalised, labels [B] int64, on one device -> scalar."""
        return hyperbolic_loss(batch, labels, *self.arguments)

    def ranking_embeddings(self, embeddings):
        """
        Queries and gallery [N, D + 1] of embeddings [N, D], float64: the larger the inner product of two, the nearer
        they are by the loss's own distance, which evaluation ranks by.
        """
        c, _, clip_r = self.arguments
        return hyperboloid(embeddings.double(), c, clip_r) if c else (F.normalize(embeddings, dim=1),) * 2
