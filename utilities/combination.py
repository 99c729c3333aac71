"""Sums of losses, and the tuples that a miner gives to a loss: triplets or masks; lists for public code only."""
import argparse
import inspect

import torch

from .errors import UserError  # relative: hubconf.py loads this file under another package's name


def parts(opt):
    """
    One namespace per loss of the sum --loss a+b, with its own `loss` and `batch_mining`; one miner serves all losses.

    Raises UserError where the numbers of losses and miners differ.
    """
    losses, miners = opt.loss.split('+'), opt.batch_mining.split('+')
    miners = miners * len(losses) if len(miners) == 1 else miners
    if len(miners) != len(losses):
        raise UserError(f'--batch_mining {opt.batch_mining}: give one miner, or one for each loss of --loss {opt.loss} '
                        '(none where it needs none)')
    return [argparse.Namespace(**vars(opt) | {'loss': loss, 'batch_mining': miner})
            for loss, miner in zip(losses, miners, strict=True)]


def as_in_public_code(opt):
    """The flags as criteria and miners of the public code read them: --miner_semihard_margin is a number."""
    if opt.miner_semihard_margin is not None:
        return opt
    return argparse.Namespace(**vars(opt) | {'miner_semihard_margin': getattr(opt, f'loss_{opt.loss}_margin', 0.2)})


def triplets_of(positives, negatives):
    """Masks of positive and negative pairs, two bool [B, B] -> every triplet that they make: [T, 3]."""
    anchors, partners = positives.nonzero().T
    pair, negative = negatives.index_select(0, anchors).nonzero().T
    triplets = negative.new_empty(3, len(negative))          # in columns and in place: there may be tens of millions
    torch.index_select(anchors, 0, pair, out=triplets[0])
    torch.index_select(partners, 0, pair, out=triplets[1])
    triplets[2] = negative
    return triplets.T


def masks_of(anchors, positives, negatives, batch):
    """
    The lists of the public code's miners npair and lifted -> masks of positive and negative pairs, two bool [B, B].

    anchors: A indices; positives, negatives: for each anchor, an index or several.
    """
    masks = torch.zeros(2, len(batch), len(batch), dtype=torch.bool)
    for mask, partners in zip(masks, (positives, negatives), strict=True):
        for anchor, others in zip(anchors, partners, strict=True):
            mask[int(anchor), torch.as_tensor(others).long()] = True
    return tuple(masks.to(batch.device))


def lists_of(positives, negatives, name):
    """
    The inverse of masks_of: a list of A anchors, the indices of each anchor's positives, and the indices of its
    negatives. Positives and negatives are lists of A arrays, or arrays [A, n] if every anchor has n. For the miner
    npair, which gives one positive per anchor, the positives are a list of A indices.
    """
    import numpy as np  # here, since hubconf.py needs torch only

    def indices_of(mask):
        rows = [row.nonzero()[:, 0].numpy() for row in mask[anchors]]
        # torch takes a short list of arrays for a tuple of indices
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else rows

    positives, negatives = positives.cpu(), negatives.cpu()
    anchors = positives.any(dim=1).nonzero()[:, 0].tolist()
    if name == 'npair':
        return anchors, positives[anchors].int().argmax(dim=1).tolist(), indices_of(negatives)
    return anchors, indices_of(positives), indices_of(negatives)


class Given:
    """A miner that returns its attribute `tuples`, triplets or masks, which an outer criterion sets for each call."""
    tuples = None

    def __call__(self, batch, labels):
        return self.tuples


class Miner:
    """
    A miner as the criteria call it. Its tuples have one of two forms: triplets, an int64 tensor [T, 3], or masks of
    positive and negative pairs, two bool [B, B].

    batchminer:  the miner; miners of the public code of Roth et al. may return lists.
    name:        --batch_mining, which criteria of the public code read.
    takes_masks: whether the criterion takes masks; otherwise it gets the triplets that they make.
    gives_lists: whether the criterion is one of the public code, which takes lists instead of tensors.
    """

    def __init__(self, batchminer, name, takes_masks, gives_lists=False):
        self.batchminer, self.name, self.mined = batchminer, name, None
        self.takes_masks, self.gives_lists = takes_masks, gives_lists

    def __call__(self, batch, labels, return_distances=False, **options):
        """
        labels [B]: a tensor on any device, an array or a list. As in the public code: options (`distances`, [B, B])
        are passed to a miner that takes them, and return_distances=True gives (tuples, distances [B, B]).
        """
        if return_distances:
            return self(batch, labels, **options), torch.cdist(batch.detach(), batch.detach())
        # the miners of the public code have a name, and turn labels on the CPU into an array
        device = 'cpu' if hasattr(self.batchminer, 'name') else batch.device
        mined = self.batchminer(batch, torch.as_tensor(labels, device=device), **self.taken(options))
        try:
            self.mined = in_tensors(mined, batch)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise UserError(f'--batch_mining {self.name}: it returned {described(mined)}; expected triplets, an int64 '
                            'tensor [T, 3] or a list of triples, or masks of positive and negative pairs, two bool '
                            '[B, B] (docs/extending.md)') from error
        if not self.takes_masks:
            self.mined = self.last
        return in_lists(self.mined, self.name) if self.gives_lists else self.mined

    def taken(self, options):
        """The options that the miner takes. Distances are left out for others, which compute their own."""
        if not options:
            return {}
        names = inspect.signature(self.batchminer).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        return {name: value for name, value in options.items() if takes_all or name in names or name != 'distances'}

    @property
    def last(self):
        """The triplets [T, 3] of the last batch."""
        return triplets_of(*self.mined) if isinstance(self.mined, tuple) else self.mined


def in_tensors(mined, batch):
    """The tuples of a miner, of this program or of the public code -> triplets or masks."""
    if isinstance(mined, tuple) and len(mined) == 3 and all(isinstance(part, list) for part in mined):
        mined = masks_of(*mined, batch)
    if isinstance(mined, tuple) and all(getattr(mask, 'dtype', None) == torch.bool for mask in mined):
        positives, negatives = mined
        if positives.shape != negatives.shape or positives.shape != (len(batch), len(batch)):
            raise ValueError('masks of other shapes')
        return mined
    triplets = torch.as_tensor(mined, device=batch.device)
    if len(triplets) and (triplets.is_floating_point() or triplets.dtype == torch.bool or triplets.shape[1:] != (3,)):
        raise TypeError('no indices of triplets')
    return triplets.long().reshape(-1, 3)


def described(value):
    """What a miner returned: 'Tensor of float32 [4, 2]', 'list of 3, the first int', 'dict'."""
    if hasattr(value, 'dtype') and hasattr(value, 'shape'):            # a tensor or an array
        return f'{type(value).__name__} of {str(value.dtype).removeprefix("torch.")} {[*value.shape]}'
    if isinstance(value, list | tuple) and len(value):
        return f'{type(value).__name__} of {len(value)}, the first {described(value[0])}'
    return 'None' if value is None else type(value).__name__


def in_lists(mined, name):
    """Triplets or masks -> the form in which the public code's miners return them: a list of triples, or lists_of."""
    return lists_of(*mined, name) if isinstance(mined, tuple) else mined.tolist()
