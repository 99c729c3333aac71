# SPDX-License-Identifier: MIT
"""
Supervised contrastive loss, in the form with the sum outside the logarithm. Khosla et al., NeurIPS 2020,
https://arxiv.org/abs/2004.11362, Eq. 2.

Differs: The authors' code multiplies by temperature / 0.07, and anchors without a positive count as 0 in its mean. In a
batch of one class, the loss is that of its positive pairs; in pytorch-metric-learning it is 0.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'temperature': {'above': 0}}


def supcon_loss(batch, labels, temperature=0.1, references=None, reference_labels=None, own=None, reduction='mean'):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64.
        temperature: temperature; the cosines are divided by it.
        references, reference_labels, own: [R, D] embeddings to compare each sample with, their labels [R], and the
                     index [B] of each sample among them, None if it is not; by default the batch.
        reduction:   mean; or none: the values [B] and a bool mask [B] of the samples that have one.

    Returns: scalar, the mean over anchors i with a positive of log Σ_k e^{s_ik} − mean_p s_ip, where k are all samples
    except i, and p are the positives of i; a differentiable zero without such an anchor.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> supcon_loss(batch, torch.tensor([0, 0, 1]), temperature=1.0)
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
        positives = (labels[:, None] == reference_labels).scatter(1, own, False)
        # finite: −inf would make the gradient of a lone anchor nan
        others = similarities.scatter(1, own, torch.finfo(batch.dtype).min / 2).logsumexp(dim=1)
        n_positives = positives.sum(dim=1, dtype=torch.int32)     # a tenth of the time of int64
        terms = others - similarities.where(positives, 0).sum(dim=1) / n_positives.clamp(min=1)
        if reduction == 'none':
            return terms, n_positives > 0
        return terms.where(n_positives > 0, 0).sum() / (n_positives > 0).sum().clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_supcon_temperature."""

    def __init__(self, opt):
        super().__init__()
        self.temperature = opt.loss_supcon_temperature

    def forward(self, batch, labels, references=None, reference_labels=None, own=None, reduction='mean', **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar; references: see supcon_loss."""
        return supcon_loss(batch, labels, self.temperature, references, reference_labels, own, reduction)
