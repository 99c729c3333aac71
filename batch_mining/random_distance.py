"""
A control: distance-weighted mining for labels in random order, so that positives and negatives mean nothing. Roth et
al., ICML 2020. The weights: Wu et al., ICCV 2017, https://arxiv.org/abs/1706.07567, section 4.1.
"""
import torch


@torch.no_grad()
def random_distance_triplets(batch, labels, lower_cutoff=0.5):
    """
    The labels are shuffled; then, for each anchor, a random positive, and a negative n with probability in proportion
    to 1 / q(d_an), q the density of distances between random points of the unit sphere.

    Args:
        batch:        [B, D] embeddings of norm 1.
        labels:       [B].
        lower_cutoff: smaller distances weigh as much as this one.

    Returns: [T, 3] int64 (anchor, positive, negative), right for the shuffled labels; anchors without a positive or a
    negative among these are left out.

    >>> batch = torch.nn.functional.normalize(torch.tensor([[1., 0., 0.], [1., 1., 0.], [0., 0., 1.]]))
    >>> random_distance_triplets(batch, torch.tensor([0, 0, 1])).shape
    torch.Size([2, 3])
    """
    labels = labels[torch.randperm(len(labels), device=labels.device)]
    same = labels[:, None] == labels
    negative = draw(negative_weights(batch, same, lower_cutoff))
    positive, n_positives = uniform(same.fill_diagonal_(False))
    anchor = (n_positives * (len(labels) - 1 - n_positives)).nonzero()[:, :1]
    return torch.cat([anchor, positive[anchor[:, 0]], negative[anchor[:, 0]]], dim=1)


def negative_weights(batch, same, lower_cutoff=0.5):
    """
    [B, B], each row in proportion to the probabilities of its negatives, the largest between ½ and 2; 0 where `same`.

    log 1/q(d) = (2 − D) log d − (D − 3)/2 log(1 − d²/4), up to a constant: with s = d² and u = s (1 − s/4), 1/q is
    u^(−(D − 3)/2) / √s.
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    squared = batch.new_empty(len(batch), len(batch))
    squared.addmm_(batch, batch.T, beta=0, alpha=-2)                # in place, where autocast has no effect
    norms = squared.diagonal() / -2
    squared.add_(norms).add_(norms[:, None]).clamp_(max(lower_cutoff, 1e-6) ** 2, (2 - 1e-3) ** 2)
    weights = torch.addcmul(squared, squared, squared, value=-0.25).log_().mul_((3 - batch.shape[1]) / 2)
    weights.masked_fill_(same, -torch.inf)
    weights.sub_(weights.amax(dim=1, keepdim=True).nan_to_num_(neginf=0)).exp_()
    return weights.mul_(squared.rsqrt_())


def draw(weights):
    """
    A column of each row of `weights` [B, N] with probability in proportion to it: [B, 1]; any one of a row of zeros.

    In float64, so that rounding makes no weight of 0 a chance.
    """
    exact = torch.float32 if weights.device.type == 'mps' else torch.float64                # mps has no other
    cumulated = weights.cumsum(dim=1, dtype=exact)
    drawn = (1 - torch.rand(len(weights), 1, device=weights.device, dtype=exact)) * cumulated[:, -1:]     # never 0
    return torch.searchsorted(cumulated, drawn).clamp_(max=weights.shape[1] - 1)


def uniform(mask):
    """One column of each row's mask [B, N], uniformly, or N where it is empty: [B, 1]; and of how many: [B, 1]."""
    count = mask.cumsum(dim=1, dtype=torch.int32)
    total = count[:, -1:]
    k = (torch.rand(len(mask), 1, device=mask.device) * total).int() + 1             # 1 ... total
    return torch.searchsorted(count, k), total


class BatchMiner:
    """opt: miner_distance_lower_cutoff."""

    def __init__(self, opt):
        self.lower_cutoff = opt.miner_distance_lower_cutoff

    def __call__(self, batch, labels):
        """batch [B, D] of norm 1, labels [B], on one device -> triplets [T, 3]."""
        return random_distance_triplets(batch, labels, self.lower_cutoff)
