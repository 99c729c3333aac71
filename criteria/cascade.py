# SPDX-License-Identifier: MIT
"""
Cascaded embeddings: each level of an embedding is trained with the pairs or triplets that the level before it finds
hard. Yuan et al., Hard-Aware Deeply Cascaded Embedding, ICCV 2017, https://arxiv.org/abs/1611.05720.
"""
import copy
import math

import torch

NEEDS = 'it is for losses that take any miner, such as triplet, margin or contrastive'
SET_BY = ('cascade',)
FLAGS = {'cascade_fractions': {
    'default': [0.5, 0.2], 'at_least': 0, 'at_most': 1,
    'help': 'for each number in --cascade, the fraction of hardest pairs or triplets that train its embedding'}}


def hardest_triplets(batch, triplets, n):
    """
    The n triplets with the largest d_ap² − d_an² in the embeddings batch [B, D], in the order of `triplets` [T, 3].

    >>> batch = torch.tensor([[0.], [1.], [2.], [3.]])
    >>> hardest_triplets(batch, torch.tensor([[0, 1, 2], [0, 1, 3], [0, 2, 1]]), 2)
    tensor([[0, 1, 2],
            [0, 2, 1]])
    """
    anchors, positives, negatives = batch[triplets.T]
    gaps = (anchors - positives).square().sum(dim=1) - (anchors - negatives).square().sum(dim=1)
    return triplets[gaps.argsort(descending=True, stable=True)[:n].sort().values]


def hardest_pairs(batch, positives, negatives, n_positives, n_negatives):
    """
    The positive pairs with the largest distances and the negative pairs with the smallest in the embeddings batch
    [B, D]: two masks [B, B], subsets of the masks `positives` and `negatives`. The numbers of pairs may be fractional
    and are rounded up; as tensors, they avoid a wait for the device.

    >>> same = torch.tensor([[0, 0, 1]]) == torch.tensor([[0], [0], [1]])
    >>> hardest_pairs(torch.tensor([[0.], [1.], [3.]]), same, ~same, 5, 2)[1].nonzero().tolist()
    [[1, 2], [2, 1]]
    """
    distances = torch.cdist(batch, batch, compute_mode='donot_use_mm_for_euclid_dist')
    return (keep_largest(distances, positives, n_positives), keep_largest(-distances, negatives, n_negatives))


def hardest(batch, tuples, fraction, mined):
    """The hardest of `tuples` (triplets or masks of pairs), as many as a fraction of the `mined` tuples."""
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    fraction = fraction * (1 - 2e-7)                               # or float32 rounds 0.6 of 25 up to 16
    with torch.autocast(batch.device.type, enabled=False):
        if isinstance(mined, tuple):
            return hardest_pairs(batch, *tuples, *[fraction * mask.count_nonzero() for mask in mined])
        return hardest_triplets(batch, tuples, math.ceil(fraction * len(mined)))


def keep_largest(values, mask, n):
    """The subset of the mask [B, B] with the n largest values."""
    ranks = values.masked_fill(~mask, -torch.inf).flatten().argsort(descending=True, stable=True).argsort()
    return mask & (ranks.view_as(mask) < n)


class Cascade(torch.nn.Module):
    """
    The sum of the losses of the K levels of an embedding. The first level is trained with all T tuples of the miner.
    Level k is trained with the h_k T tuples of level k − 1 that are hardest in the embedding of level k − 1.

    Args:
        levels:    the losses of the levels, from the first; each takes its tuples from its miner in `given`, and
                   gives its parameter_groups().
        given:     the miners of the levels, objects that return their `of_step.tuples`, which forward() sets.
        miner:     (embeddings [B, D / K] of the first level, labels [B]) -> triplets [T, 3], for hardest_triplets, or
                   masks of positive and negative pairs, two [B, B], for hardest_pairs.
        fractions: h_2 to h_K, not increasing.
    """

    def __init__(self, levels, given, miner, fractions):
        super().__init__()
        self.levels = torch.nn.ModuleList(levels)
        self.given = given
        self.miner = miner
        self.fractions = fractions

    def forward(self, batch, labels, **kwargs):
        """batch [B, D], the levels' embeddings side by side, labels [B] int64, on one device -> scalar."""
        parts = batch.chunk(len(self.levels), dim=1)
        mined = self.miner(parts[0], labels)
        tuples = [mined]
        for part, fraction in zip(parts, self.fractions, strict=False):        # the last part selects for no level
            tuples.append(hardest(part.detach(), tuples[-1], fraction, mined))
        values = []
        self.log = {}
        for number, (level, part, given, found) in enumerate(zip(self.levels, parts, self.given, tuples, strict=True),
                                                             start=1):
            given.of_step.tuples = found
            values.append(level(batch=part, labels=labels, **kwargs))
            self.log[f'level_{number}_loss'] = values[-1].detach()
            for name, scalar in getattr(level, 'log', {}).items():
                self.log[f'level_{number}_{name}'] = scalar
        return sum(values)

    def parameter_groups(self):
        return [{'name': f'criterion_level_{number}'} | group for number, level in enumerate(self.levels, start=1)
                for group in level.parameter_groups()]


def around(opt, build, miner):
    """The losses of the levels have parameters and wrappers of their own."""
    if miner is None or miner.use == 'own':
        return build(opt, miner)
    n_levels = len(opt.cascade) + 1
    level = copy.copy(opt)
    level.embed_dim = opt.embed_dim // n_levels
    given = [miner.given() for _ in range(n_levels)]
    levels = [build(level, own) for own in given]
    takes_pairs = miner.use == 'any' or 'references' in levels[0].takes    # a loss of references compares pairs
    return Cascade(levels, given, miner.listing(takes_pairs), opt.cascade_fractions)


def problem(opt):
    blocks = opt.cascade
    fractions = opt.cascade_fractions
    n_levels = len(opt.cascade) + 1
    if blocks != sorted({*blocks}):
        return f'--cascade {joined(blocks)}: give the blocks in ascending order, each once'
    if len(fractions) != len(blocks) or fractions != sorted(fractions, reverse=True):
        return (f'--cascade_fractions {joined(fractions)}: expected one for each block of --cascade ({len(blocks)}), '
                'none greater than the one before it')
    if opt.embed_dim % n_levels:
        return (f'--embed_dim {opt.embed_dim}: expected a multiple of {n_levels}, the number of embeddings with '
                f'--cascade {joined(blocks)}')
    return None


def joined(numbers):
    return ' '.join(map(str, numbers))
