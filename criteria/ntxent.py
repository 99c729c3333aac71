"""
Normalised temperature-scaled cross entropy (SimCLR's loss), over labels. Chen et al., ICML 2020,
https://arxiv.org/abs/2002.05709, Eq. 1; other positives of an anchor are in no part of a pair's term.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
SUPPORTS_MEMORY = True          # of earlier batches: references


def pairs(labels, reference_labels=None, own=None):
    """Masks of the positive and the negative references of each anchor, itself left out by its index: two [B, R]."""
    if reference_labels is None:
        reference_labels, own = labels, torch.arange(len(labels), device=labels.device)
    same = labels[:, None] == reference_labels
    return same.scatter(1, own[:, None], False), ~same


def logsumexp(exponents):
    """log Σ_j e^{exponents_ij}: [B]. torch.logsumexp is ten times slower on the CPU where exponentials underflow."""
    largest, place = exponents.max(dim=1)
    return largest + F.cross_entropy(exponents, place, reduction='none')


def ntxent_loss(batch, labels, temperature=0.07, references=None, reference_labels=None, own=None):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64.
        temperature: the cosines are divided by it.
        references, reference_labels, own: [R, D], [R] and [B], where positives and negatives come from, and which of
                     them is the anchor itself; by default the batch.

    Returns: scalar, the mean over ordered positive pairs (i, j) of −log(e^{s_ij} / (e^{s_ij} + Σ_n e^{s_in})); 0, with
    a graph, where there are none.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> ntxent_loss(batch, torch.tensor([0, 0, 1]), temperature=1.0)
    tensor(0.6178)
    """
    dtype = torch.promote_types(batch.dtype, torch.float32)
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch.to(dtype), dim=1)
        references = batch if references is None else F.normalize(references.to(dtype), dim=1)
        positives, negatives = pairs(labels, reference_labels, own)
        similarities = batch @ references.T / temperature
        # finite, since −inf would make the gradient of an anchor without negatives nan
        all_negatives = logsumexp(similarities.masked_fill(~negatives, torch.finfo(dtype).min / 2))
        # the default threshold, 20, would leave out what float64 and a sum over pairs can show
        terms = F.softplus(all_negatives[:, None] - similarities, threshold=40)
        return terms.where(positives, 0).sum() / positives.count_nonzero().clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_ntxent_temperature."""

    def __init__(self, opt):
        super().__init__()
        self.temperature = opt.loss_ntxent_temperature

    def forward(self, batch, labels, references=None, reference_labels=None, own=None, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar; references: see ntxent_loss."""
        return ntxent_loss(batch, labels, self.temperature, references, reference_labels, own)
