# SPDX-License-Identifier: MIT
"""
Smooth-AP: average precision with sigmoids for comparisons. Brown et al., ECCV 2020, https://arxiv.org/abs/2007.12163.

Differs: The query itself counts among the retrieved samples and the positives, as in the authors' code but not in their
text. pytorch-metric-learning 2.9 swaps the number of classes and the images per class, and agrees only where both
are equal.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'temperature': {'above': 0}}


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


def class_members(labels):
    """
    [B, M] indices of all samples of each sample's class, itself included, padded if the class has fewer than M samples;
    and a mask [B, M], False for padding.
    """
    order = labels.argsort()
    same = labels[:, None] == labels
    size = same.sum(dim=1, dtype=torch.int32)
    start = (labels[:, None] > labels).sum(dim=1, dtype=torch.int32)
    slots = torch.arange(int(size.max()), device=labels.device)
    is_member = slots < size[:, None]
    return order[(start[:, None] + slots).where(is_member, 0)], is_member


def smoothap_loss(batch, labels, temperature=0.01):
    """
    Args:
        batch:       [B, D] embeddings, normalised here.
        labels:      [B] int64.
        temperature: τ, temperature of the sigmoids σ(t / τ) that replace the comparisons of cosines.

    Returns: scalar, the mean of 1 − AP over queries with a positive; as in the authors' code, the query itself counts
    among the retrieved samples and among the positives. A differentiable zero where no query has a positive.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> smoothap_loss(batch, torch.tensor([0, 0, 1]), temperature=0.1)
    tensor(0.1034)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        # memory: comparisons with the M samples of a class are B x M x B, and not B x B x B
        members, is_member = class_members(labels)
        size = is_member.sum(dim=1)
        weight = (size > 1).to(batch.dtype) / size            # weight per precision; 0 without positives

        def rank(scores, own):
            """Soft ranks of `own` [q, M] among `scores` [q, N]: ½ plus all comparisons; a score's with itself is ½."""
            return 0.5 + torch.sigmoid((scores[:, None, :] - own[:, :, None]) / temperature).sum(dim=2)

        def average_precisions(scores, rows):
            own = scores.gather(1, members[rows])
            among_positives = rank(own.masked_fill(~is_member[rows], -torch.inf), own)
            precisions = among_positives / rank(scores, own)
            return ((precisions * is_member[rows]).sum(dim=1) * weight[rows]).sum()

        n_rows = max(1, 2 ** 20 // members.numel())
        total = SumOverRows.apply(batch @ batch.T, average_precisions, n_rows)
        n_queries = (size > 1).sum()
        return (n_queries - total) / n_queries.clamp(min=1)


class Criterion(torch.nn.Module):
    """opt: loss_smoothap_temperature."""

    def __init__(self, opt):
        super().__init__()
        self.temperature = opt.loss_smoothap_temperature

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return smoothap_loss(batch, labels, self.temperature)
