# SPDX-License-Identifier: MIT
"""
Contextual similarity: samples should have the same neighbours in the batch as the samples of their class. Liao,
Tsiligkaridis & Kulis, Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization, ICML
2023, https://arxiv.org/abs/2210.01908.

Differs: The authors have two programs, whose λ mean opposite things. In terms of them, `context_weight`,
`contrastive_weight` and `reg_weight` are λ, 1 − λ − γ and γ in the one for images of 256 pixels (the defaults here are
its λ = 0.4 and γ = 0.1), and 1 − λ, λ and γ in the one for 224 pixels. In both, k is the number of images per class. A
term whose denominator is 0, because all samples of the batch are neighbours, is 0 here and not a number there. As in
the authors' code, the gradient takes the distances to the k-th neighbours and the numbers of neighbours as constant.
"""
import torch
import torch.nn.functional as F

ALLOWED_MINING_OPS = None
REQUIRES_BATCHMINER = False
REQUIRES_OPTIM = False
FLAGS = {
    'k': {'at_least': 2},
    'eps': {'at_least': 0},
    'context_weight': {'at_least': 0},
    'contrastive_weight': {'at_least': 0},
    'reg_weight': {'at_least': 0},
    'pos_margin': {},
    'neg_margin': {},
    'reg_similarity': {},
}


class Step(torch.autograd.Function):
    """1 for values of at least 0, else 0, with the gradient of 10 times the values. It has no second derivatives."""

    @staticmethod
    def forward(ctx, values):
        return (values >= 0).to(values.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():                                # called with create_graph=True
            raise RuntimeError('this loss has no second derivatives: call backward without create_graph=True')
        return 10 * grad_output


def contextual_similarities(cosines, k=4, eps=0.05):
    """
    [B, B] in [0, 1], from the cosines [B, B]. Neighbours of a sample are those as near as its k-th nearest, itself
    included, or farther by at most eps in squared distance. The similarity of a sample to a neighbour is half the
    fraction of its neighbours, plus half the fraction of other samples, that the two have in common; to others it is 0.
    This is averaged over the mutual ones among the nearest k // 2 of the first sample, then over both orders.
    """
    distances = (2 - 2 * cosines).fill_diagonal_(0)

    def neighbours(k):
        limit = distances.detach().kthvalue(min(k, len(cosines)), dim=1, keepdim=True).values
        return Step.apply(limit + eps - distances)

    near, nearest = neighbours(k), neighbours(k // 2)
    far = 1 - near
    shared = near @ near.T / near.detach().sum(dim=1, keepdim=True)
    shared_far = far @ far.T / far.detach().sum(dim=1, keepdim=True).clamp(min=1)
    context = near * (shared + shared_far) / 2
    mutual = nearest * nearest.T
    expanded = mutual @ context / mutual.sum(dim=1, keepdim=True)
    return (expanded + expanded.T) / 2


def contextual_loss(batch, labels, k=4, eps=0.05, context_weight=0.4, contrastive_weight=0.5, reg_weight=0.1,
                    pos_margin=0.75, neg_margin=0.6, reg_similarity=0.25):
    """
    Args:
        batch:              [B, D] embeddings, normalised here.
        labels:             [B] int64.
        k:                  number of neighbours of a sample, itself included; should be the images per class.
        eps:                ε, squared distance beyond the k-th nearest sample up to which others are neighbours, too.
        context_weight:     weight of the term of contextual similarities.
        contrastive_weight: weight of the contrastive term.
        reg_weight:         γ, weight of the regulariser, the square of the mean cosine − reg_similarity.
        pos_margin:         cosine of positive pairs below which the contrastive term pulls.
        neg_margin:         cosine of negative pairs above which the contrastive term pushes.
        reg_similarity:     r, cosine that the regulariser aims at.

    Returns: scalar, the weighted sum of three terms. Contextual: the sum over the pairs of (1 − J)² if positive and J²
    if negative, divided by B², where J is their contextual similarity. Contrastive: the mean of the non-zero terms
    [m⁺ − s]₊ of positive pairs plus that of [s − m⁻]₊ of negative pairs. The regulariser, on all B² cosines.

    >>> batch = torch.tensor([[1., 0.], [0.6, 0.8], [0., 1.]])
    >>> contextual_loss(batch, torch.tensor([0, 0, 1]), k=2)
    tensor(0.3475)
    """
    if labels.shape != batch.shape[:1]:
        raise ValueError(f'expected labels [B] for embeddings [B, D], not {[*labels.shape]} for {[*batch.shape]}')
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        batch = F.normalize(batch, dim=1)
        cosines = batch @ batch.T
        same = labels[:, None] == labels
        is_self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        wrong = same.to(batch.dtype) - contextual_similarities(cosines, k, eps)
        context = wrong.masked_fill(is_self, 0).square().sum() / len(batch) ** 2
        pull, push = F.relu(pos_margin - cosines), F.relu(cosines - neg_margin)
        contrastive = 0
        for terms, pairs in ((pull, same & ~is_self), (push, ~same)):
            terms = terms.where(pairs, 0)
            contrastive = contrastive + terms.sum() / terms.count_nonzero().clamp(min=1)
        regulariser = (cosines.mean() - reg_similarity).square()
        return context_weight * context + contrastive_weight * contrastive + reg_weight * regulariser


class Criterion(torch.nn.Module):
    """
    opt: loss_contextual_k, _eps, _context_weight, _contrastive_weight, _reg_weight, _pos_margin, _neg_margin,
    _reg_similarity.
    """

    def __init__(self, opt):
        super().__init__()
        names = ('k', 'eps', 'context_weight', 'contrastive_weight', 'reg_weight', 'pos_margin', 'neg_margin',
                 'reg_similarity')
        self.arguments = [getattr(opt, f'loss_contextual_{name}') for name in names]

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        return contextual_loss(batch, labels, *self.arguments)
