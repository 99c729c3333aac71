# SPDX-License-Identifier: MIT
"""
Pairwise cross entropy in hyperbolic space. Ermolov et al., Hyperbolic Vision Transformers, CVPR 2022,
https://arxiv.org/abs/2203.10833.

Differs: The images of each class in the batch are numbered in their order. Each ordered pair of different numbers (a,
b) has a loss: the images with number a are the anchors, those with number b their positives, and the images with these
numbers in other classes that have both the negatives. This code takes the mean over the pairs of numbers; the authors
take the sum, which is m (m − 1) times as large for m images per class. Evaluation ranks by the distance of the loss.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {'c': {'at_least': 0}, 'temperature': {'above': 0}, 'clip_r': {'at_least': 0}}


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


def hyperboloid(batch, c=0.1, clip_r=2.3):
    """
    Maps embeddings [B, D] to points on the hyperboloid; returns them twice: [B, D + 1] with the first coordinate
    negated, and [B, D + 1]. A row of one and a row of the other have the inner product −cosh(√c D), where D is the
    points' distance.
    """
    points = to_ball(batch, c, clip_r)
    norms = c * points.square().sum(dim=1, keepdim=True)
    time, space = (1 + norms) / (1 - norms), 2 * c ** 0.5 / (1 - norms) * points
    return torch.cat([-time, space], dim=1), torch.cat([time, space], dim=1)


def hyperbolic_loss(batch, labels, c=0.1, temperature=0.2, clip_r=2.3):
    """
    Args:
        batch:       [B, D] embeddings, not normalised.
        labels:      [B] int64.
        c:           curvature of the hyperbolic space; 0 means the sphere, with cosines (there, the authors use
                     temperature 0.1).
        temperature: τ, temperature; distances are divided by it.
        clip_r:      norm to which longer embeddings are clipped before they are mapped to the ball; 0 means no limit.

    The samples of each class have the slots 0, 1, ... in the order of the batch. For every ordered pair of different
    slots (a, b), every class that has both gives one term: the cross entropy of −D(z_a, z_b) / τ against the rivals of
    z_a, which are the samples in slots a and b of the other classes that have both.

    Example: four images of the classes x, x, y, y have the slots 0, 1, 0, 1. The pair of slots (0, 1) has two terms:
    anchor 0 with positive 1 and the rivals 2 and 3, and anchor 2 with positive 3 and the rivals 0 and 1. The pair
    (1, 0) has the terms of anchors 1 and 3.

    Returns: scalar, the mean term of each pair of slots, averaged over the pairs of slots; a differentiable zero if all
    classes have one sample.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.], [-1., 0.]])
    >>> hyperbolic_loss(batch, torch.tensor([0, 0, 1, 1]))
    tensor(2.6726)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        same = labels[:, None] == labels
        slot = same.tril(diagonal=-1).sum(dim=1)
        size = same.sum(dim=1)
        n_slots = int(size.max())
        if c == 0:
            batch = F.normalize(batch, dim=1)
            logits = batch @ batch.T / temperature
        else:
            logits = -ball_distances(to_ball(batch, c, clip_r), c) / temperature
        least = torch.finfo(batch.dtype).min / 2
        total = batch.sum() * 0
        n_pairs = 0
        for other in range(n_slots):                           # the positives' slot; the anchors have the others
            both = size > slot[:, None].clamp(min=other)           # [B, B], whether a column's class has both slots
            in_slots = ((slot == slot[:, None]) | (slot == other)) & both
            positive = same & (slot == other)
            # finite: −inf would make the gradient of a row without a positive nan
            candidates = logits.masked_fill(~(in_slots & ~same | positive), least)
            terms = F.cross_entropy(candidates, positive.int().argmax(dim=1), reduction='none')
            valid = (size > other) & (slot != other)
            sums, counts = (part.new_zeros(n_slots).index_add(0, slot, part)
                            for part in (terms.where(valid, 0), valid.to(terms.dtype)))
            total = total + (sums / counts.clamp(min=1)).sum()
            n_pairs = n_pairs + (counts > 0).sum()
        return total / n_pairs.clamp(min=1)


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
        Embeddings [N, D] -> (queries, gallery), two float64 [N, D + 1]. Evaluation ranks by their inner products, which
        fall as the distance of the loss grows.
        """
        c, _, clip_r = self.arguments
        if embeddings.is_mps:                                  # Apple GPUs lack float64
            embeddings = embeddings.cpu()
        return hyperboloid(embeddings.double(), c, clip_r) if c else (F.normalize(embeddings, dim=1),) * 2
