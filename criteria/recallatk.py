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


class SumOverRows(torch.autograd.Function):
    """
    The sum of term(rows of a matrix, their indices) over chunks of n_rows rows. The forward pass also computes the
    gradient, chunk by chunk, so that no tensor larger than the matrix is kept. It has no second derivatives.
    """

    @staticmethod
    def forward(ctx, matrix, term, n_rows):
        total, gradient = matrix.new_zeros(()), torch.zeros_like(matrix)
        for rows in torch.arange(len(matrix), device=matrix.device).split(n_rows):
            with torch.enable_grad():
                part = matrix[rows].requires_grad_()
                value = term(part, rows)
                gradient[rows] = torch.autograd.grad(value, part)[0]
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():                                # called with create_graph=True
            raise RuntimeError('this loss has no second derivatives: call backward without create_graph=True')
        return grad_output * ctx.saved_tensors[0], None, None


def class_members(labels):
    """
    [B, M] indices of all samples of each sample's class, itself included, padded if the class has fewer than M samples;
    and a mask [B, M], False for padding.
    """
    order = labels.argsort()
    same = labels[:, None] == labels
    size, start = (mask.sum(dim=1, dtype=torch.int32) for mask in (same, labels[:, None] > labels))
    slots = torch.arange(int(size.max()), device=labels.device)
    is_member = slots < size[:, None]
    return order[(start[:, None] + slots).where(is_member, 0)], is_member


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
        k:                the numbers of retrieved samples, a sequence or a tensor; numbers above B become B.
        k_temperature:    temperature of the sigmoid that compares a rank with k.
        rank_temperature: temperature of the sigmoids that compare cosines.
        simix:            whether random points between the samples of a class are added to queries and gallery.

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
        # memory: comparisons with the M samples of a class are B x M x B, and not B x B x B
        members, is_member = class_members(labels)
        is_positive = is_member & (members != torch.arange(len(labels), device=labels.device)[:, None])
        n_positives = is_positive.sum(dim=1)
        cuts = torch.as_tensor(k, device=batch.device).to(batch.dtype).clamp(max=len(labels))[:, None]         # [K, 1]

        def recalls(scores, rows):
            scores = scores.scatter(1, rows[:, None], -torch.inf)                        # leaves out the query itself
            own = scores.gather(1, members[rows]).where(is_positive[rows], 0)
            ranks = 0.5 + torch.sigmoid((scores[:, None, :] - own[:, :, None]) / rank_temperature).sum(dim=2)
            found = (torch.sigmoid((cuts - ranks[:, None, :]) / k_temperature) * is_positive[rows, None, :]).sum(dim=2)
            most = torch.minimum(cuts[:, 0], n_positives[rows, None].clamp(min=1))
            return (torch.minimum(found, cuts[:, 0]) / most).mean(dim=1).sum()

        n_rows = max(1, 2 ** 20 // members.numel())
        total = SumOverRows.apply(batch @ batch.T, recalls, n_rows)
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
