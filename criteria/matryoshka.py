# SPDX-License-Identifier: MIT
"""
Matryoshka representation learning: any loss, summed over prefixes of the embedding, so that each prefix is an embedding
of its own. Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022, https://arxiv.org/abs/2205.13147, Eq. 1.

The paper's loss is a softmax. Its variant MRL-E shares the class weights: the classifier of a prefix has the first
components of the class weights of the whole embedding. Here, this holds for the parameters of any loss.
"""
import copy

import torch
import torch.nn.functional as F
from torch.func import functional_call

BESIDE_EMBEDDINGS = ('batch_features', 'f_embed', 'feature_maps', 'images', 'teacher_batch')
SET_BY = ('matryoshka',)
FLAGS = {
    'matryoshka': {'default': [], 'type': 'int', 'at_least': 1, 'metavar': 'D',
                   'help': 'train prefixes of the embedding: the loss is summed over the first D dimensions; the last'
                           ' is --embed_dim'},
    'matryoshka_weights': {'default': [], 'type': 'float', 'at_least': 0,
                           'help': 'weights of the prefixes of --matryoshka; by default 1 each'},
    'matryoshka_mine_prefixes': {'default': False,
                                 'help': '--matryoshka: mine tuples in each prefix, instead of once in the whole '
                                         'embedding'},
}


def embedding_prefix(batch, dim, normalize=True):
    """
    The first `dim` components of the embeddings batch [B, D], with norm 1 if `normalize`.

    >>> embedding_prefix(torch.tensor([[3., 4., 12.]]), 2)
    tensor([[0.6000, 0.8000]])
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        return F.normalize(batch[:, :dim], dim=1) if normalize else batch[:, :dim]


class Matryoshka(torch.nn.Module):
    """
    The weighted sum of the losses of the prefixes of an embedding.

    Args:
        criterion: the loss of the whole embedding, a module called as criterion(batch=, labels=, ...).
        prefixes:  {dim: the same loss, built for embeddings of `dim` dimensions}. Its parameters are not used: it takes
                   those of `criterion`, without the last components where the last axis is longer.
        weights:   the factors of the prefixes in their order, and then of the whole embedding.
        normalize: whether the embeddings have norm 1, so that the prefixes are normalised again.
        given:     None, or the miner of all these losses, an object that returns its `of_step.tuples`, which
                   forward() sets.
        miner:     None, or (batch [B, D], labels [B]) -> the tuples, mined once for all losses.

    Raises ValueError if a parameter of `criterion` cannot be shared with a prefix.
    """

    def __init__(self, criterion, prefixes, weights, normalize=True, given=None, miner=None):
        super().__init__()
        self.criterion = criterion
        self.weights = weights
        self.normalize = normalize
        self.prefixes = torch.nn.ModuleDict({str(dim): loss for dim, loss in prefixes.items()})
        self.given = given
        self.miner = miner
        self.widths = {dim: take_parameters(loss, criterion, dim) for dim, loss in prefixes.items()}

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        if self.miner is not None:
            self.given.of_step.tuples = self.miner(batch, labels)
        shared = dict(self.criterion.named_parameters())
        values = []
        log = {}
        for dim, widths in self.widths.items():
            own = {name: shared[name] if width is None else shared[name][..., :width] for name, width in widths.items()}
            named = {'batch': embedding_prefix(batch, dim, self.normalize), 'labels': labels} | kwargs
            values.append(functional_call(self.prefixes[str(dim)], own, kwargs=named))
            log |= {f'prefix_{dim}_{name}': scalar
                    for name, scalar in getattr(self.prefixes[str(dim)], 'log', {}).items()}
        values.append(self.criterion(batch=batch, labels=labels, **kwargs))
        log |= {f'prefix_{dim}_loss': value.detach()
                for dim, value in zip((*self.widths, batch.shape[1]), values, strict=True)}
        self.log = log
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))


def take_parameters(loss, criterion, dim):
    """
    Removes the parameters of the loss of a prefix. Returns {name: how many components of the last axis of the parameter
    of `criterion` replace it; None: all of them}.
    """
    shared = dict(criterion.named_parameters())
    widths = {}
    for name, own in [*loss.named_parameters()]:
        shape = shared[name].shape
        if own.shape[:-1] != shape[:-1] or own.shape != shape and own.shape[-1] != dim:
            raise ValueError(f'its parameter {name} has the shape {[*shape]}, but {[*own.shape]} for embeddings of '
                             f'{dim} dimensions')
        widths[name] = None if own.shape == shape else dim
        owner, _, last = name.rpartition('.')
        delattr(loss.get_submodule(owner), last)
    return widths


def around(opt, build, miner):
    """The losses of the prefixes have wrappers of their own; the random numbers are those of the run without them."""
    given = None if miner is None or opt.matryoshka_mine_prefixes else miner.given()

    def build_prefix(dim):
        own = copy.copy(opt)
        own.embed_dim = dim
        return build(own, given or miner)
    criterion = build_prefix(opt.embed_dim)
    beyond = criterion.takes & {*BESIDE_EMBEDDINGS}
    if beyond:
        raise ValueError(f'--matryoshka does not work with --loss {opt.loss}, which takes {", ".join(sorted(beyond))} '
                         'beside the embeddings')
    with torch.random.fork_rng(devices=[]):
        prefixes = {dim: build_prefix(dim) for dim in opt.matryoshka[:-1]}
    weights = opt.matryoshka_weights or [1.0] * len(opt.matryoshka)
    try:
        return Matryoshka(criterion, prefixes, weights, '_normalize' in opt.arch, given, given and miner)
    except ValueError as error:
        raise ValueError(f'--matryoshka does not work with --loss {opt.loss}: {error}, and only parameters whose last '
                         'axis is the embedding can be shared; choose another loss') from None


def problem(opt):
    if opt.cascade:
        return '--matryoshka does not work with --cascade: its embedding consists of several'
    if opt.daml:
        return '--matryoshka does not work with --daml: synthetic negatives have features of the whole embedding'
    dims = opt.matryoshka
    weights = opt.matryoshka_weights
    if dims != sorted({*dims}) or dims[-1] != opt.embed_dim:
        return (f'--matryoshka {joined(dims)}: give dimensions in ascending order, each once, and --embed_dim, '
                f'{opt.embed_dim}, as the last one; other dimensions of the embedding would not be trained')
    if weights and len(weights) != len(dims):
        return (f'--matryoshka_weights {joined(weights)}: expected one for each number in --matryoshka ({len(dims)})')
    if weights and not any(weights):
        return f'--matryoshka_weights {joined(weights)}: nothing would be trained; give at least one above 0'
    return None


def joined(numbers):
    return ' '.join(map(str, numbers))
