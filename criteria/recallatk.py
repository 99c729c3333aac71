# SPDX-License-Identifier: MIT
"""
Recall@k surrogate, with similarity mixup. Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity
Mixup, CVPR 2022, https://arxiv.org/abs/2108.11179.

Differs: The authors' code ranks the query itself first, so that its k acts as k − 1. Here SiMix works with any number
of images per class.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {
    'k': {'at_least': 1},
    'k_temperature': {'above': 0},
    'rank_temperature': {'above': 0},
    'simix': {},
}


class SumOverRows(torch.autograd.Function):
    """
    The sum of term(rows of a matrix, their indices) over chunks of n_rows rows. The forward pass also computes the
    gradient, chunk by chunk, so that no tensor larger than the matrix is kept. It has no second derivatives.
    """

    @staticmethod
    def forward(ctx, matrix, term, n_rows):
        needs_gradient = ctx.needs_input_grad[0]                    # inference mode allows none
        total = matrix.new_zeros(())
        gradient = torch.zeros_like(matrix)
        for rows in torch.arange(len(matrix), device=matrix.device).split(n_rows):
            part = matrix[rows]
            with torch.set_grad_enabled(needs_gradient):
                value = term(part.requires_grad_(needs_gradient), rows)
            if needs_gradient:
                gradient[rows] = torch.autograd.grad(value, part)[0]
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():                                # called with create_graph=True
            raise RuntimeError('this loss has no second derivatives: call backward without create_graph=True')
        return grad_output * ctx.saved_tensors[0], None, None


def mix(batch, labels):
    """The batch and its labels, followed by a random point between every two samples of a class (SiMix)."""
    first, second = (labels[:, None] == labels).triu(diagonal=1).nonzero().T
    fraction = torch.rand(len(first), 1, device=batch.device, dtype=batch.dtype)
    virtual = fraction * batch[first] + (1 - fraction) * batch[second]
    return torch.cat([batch, virtual]), torch.cat([labels, labels[first]])


def recallatk_loss(batch, labels, k=(1, 2, 4, 8, 16), k_temperature=1.0, rank_temperature=0.01, simix=False):
    """
    Args:
        batch:            [B, D] embeddings, normalised here.
        labels:           [B] int64.
        k:                numbers of retrieved samples; numbers above that of all samples, virtual ones
                          included, are replaced by it.
        k_temperature:    temperature of the sigmoids that compare ranks with k.
        rank_temperature: temperature of the sigmoids that compare cosines.
        simix:            add virtual samples, random mixtures of two samples of a class (SiMix), to queries and
                          gallery.

    Returns: scalar, the mean of 1 − R over the queries with a positive. R is the mean over k of
    min(k, Σ_p σ((k − r_p) / k_temperature)) / min(k, |P|), where r_p is the soft rank of the positive p among all
    samples except the query. A differentiable zero if no query has a positive.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> recallatk_loss(batch, torch.tensor([0, 0, 1]), k=(1, 2), rank_temperature=0.1)
    tensor(0.4868)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        if simix:
            batch, labels = mix(batch, labels)
        is_positive = (labels[:, None] == labels).fill_diagonal_(False)
        anchors, positives = is_positive.nonzero().T
        n_positives = is_positive.sum(dim=1)
        cuts = torch.as_tensor(k, device=batch.device).to(batch.dtype).clamp(max=len(labels))[:, None]         # [K, 1]

        def recalls(scores, rows):
            pairs = slice(None) if len(rows) == len(labels) else torch.isin(anchors, rows)
            row, column = anchors[pairs] - rows[0], positives[pairs]
            others = scores.scatter(1, rows[:, None], -torch.inf)                        # leaves out the query itself
            gaps = (others[row] - scores[row, column, None]) / rank_temperature
            ranks = 0.5 + torch.sigmoid(gaps).sum(dim=1)
            hits = torch.sigmoid((cuts - ranks) / k_temperature)
            found = hits.new_zeros(len(cuts), len(rows)).index_add(1, row, hits)
            most = torch.minimum(cuts, n_positives[rows].clamp(min=1))
            return (torch.minimum(found, cuts) / most).mean(dim=0).sum()

        n_rows = max(1, 2 ** 20 // max(1, len(anchors)))           # some 4 MB of comparisons
        cosines = batch @ batch.T
        everyone = torch.arange(len(labels), device=labels.device)
        total = SumOverRows.apply(cosines, recalls, n_rows) if n_rows < len(labels) else recalls(cosines, everyone)
        n_queries = (n_positives > 0).sum()
        return (n_queries - total) / n_queries.clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_recallatk_k, _k_temperature, _rank_temperature, _simix."""

    def __init__(self, opt):
        super().__init__()
        self.register_buffer('k', torch.tensor(opt.loss_recallatk_k), persistent=False)      # copied to the device once
        self.arguments = (opt.loss_recallatk_k_temperature, opt.loss_recallatk_rank_temperature,
                          opt.loss_recallatk_simix)

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return recallatk_loss(batch, labels, self.k, *self.arguments)
