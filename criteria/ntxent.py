# SPDX-License-Identifier: MIT
"""
Normalised temperature-scaled cross entropy, SimCLR's loss, with positives given by labels. Chen et al., ICML 2020,
https://arxiv.org/abs/2002.05709, Eq. 1.

Differs: The term of a positive pair leaves out the other positives of its anchor. It is computed as a softplus, which,
unlike pytorch-metric-learning, does not saturate at small temperatures.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'temperature': {'above': 0}}


def ntxent_loss(batch, labels, temperature=0.07, references=None, reference_labels=None, own=None):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64.
        temperature: temperature; the cosines are divided by it.
        references, reference_labels, own: [R, D] embeddings to compare each sample with, their labels [R], and the
                     index [B] of each sample among them, None if it is not; by default the batch.

    Returns: scalar, the mean of −log(e^{s_ij} / (e^{s_ij} + Σ_n e^{s_in})) over the ordered positive pairs (i, j),
    where n are the negatives of i; a differentiable zero without a positive pair.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> ntxent_loss(batch, torch.tensor([0, 0, 1]), temperature=1.0)
    tensor(0.6178)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        if references is None:
            references = batch
            reference_labels = labels
            own = torch.arange(len(labels), device=labels.device)
        else:
            references = F.normalize(references.to(batch.dtype), dim=1)
        own = labels.new_zeros(len(labels), 0) if own is None else own[:, None]
        similarities = batch @ references.T / temperature
        same = labels[:, None] == reference_labels
        positives = same.scatter(1, own, False)
        # finite: −inf would make the gradient of an anchor without negatives nan
        all_negatives = similarities.masked_fill(same, torch.finfo(batch.dtype).min / 2).logsumexp(dim=1)
        # above the default threshold, 20, softplus is the identity: an error that float64 and sums over pairs show
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
