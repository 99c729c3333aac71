"""Circle loss, per anchor. Sun et al., CVPR 2020, https://arxiv.org/abs/2002.10857, Eq. 5 to 8."""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
SUPPORTS_MEMORY = True          # of earlier batches: references


def logsumexp(exponents):
    """log Σ_j e^{exponents_ij}: [B]. torch.logsumexp is ten times slower on the CPU where exponentials underflow."""
    largest, place = exponents.max(dim=1)
    return largest + F.cross_entropy(exponents, place, reduction='none')


def circle_loss(batch, labels, margin=0.4, gamma=80.0, references=None, reference_labels=None, own=None):
    """
    Args:
        batch:  [B, D] embeddings, normalised here.
        labels: [B] int64.
        margin: m; positives should be nearer than 1 − m, negatives farther than m, in cosines.
        gamma:  scale.
        references, reference_labels, own: [R, D], [R] and [B], where positives and negatives come from, and which of
                them is the anchor itself; by default the batch.

    Returns: scalar, the mean over anchors that have positives and negatives; 0, with a graph, where there are none.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> circle_loss(batch, torch.tensor([0, 0, 1]), margin=0.25, gamma=1.0)
    tensor(0.8987)
    """
    dtype = torch.promote_types(batch.dtype, torch.float32)
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch.to(dtype), dim=1)
        if references is None:
            references, reference_labels, own = batch, labels, torch.arange(len(labels), device=labels.device)
        else:
            references = F.normalize(references.to(dtype), dim=1)
        similarities = batch @ references.T
        same = labels[:, None] == reference_labels
        positives, negatives = same.scatter(1, own[:, None], False), ~same
        push = gamma * F.relu(similarities + margin).detach() * (similarities - margin)
        pull = -gamma * F.relu(1 + margin - similarities).detach() * (similarities - 1 + margin)
        least = torch.finfo(dtype).min / 2                   # finite: two of them are still a number
        exponent = logsumexp(push.masked_fill(~negatives, least)) + logsumexp(pull.masked_fill(~positives, least))
        has_both = positives.any(dim=1) & negatives.any(dim=1)
        # the default threshold, 20, would leave out what float64 and a sum over pairs can show
        return F.softplus(exponent, threshold=40).where(has_both, 0).sum() / has_both.sum().clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_circle_margin, _gamma."""

    def __init__(self, opt):
        super().__init__()
        self.margin, self.gamma = opt.loss_circle_margin, opt.loss_circle_gamma

    def forward(self, batch, labels, references=None, reference_labels=None, own=None, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar; references: see circle_loss."""
        return circle_loss(batch, labels, self.margin, self.gamma, references, reference_labels, own)
