"""
How a loss is called, by its keywords and with the triplets or masks of its miner; and what it trains: its optimizer
groups, and the optimizers that it owns.
"""
import functools
import inspect
import types

import torch

from .errors import UserError, choose  # relative: hubconf.py loads this file under another package's name

PAIRS = ('npair', 'lifted')                           # miners of pairs; in the public code, they give three lists
COSTLY = ('feature_maps', 'images', 'teacher_batch')  # inputs only for a criterion that asks for them


def finished(criterion):
    """
    Completes the criterion that a loss's file made: it ignores keywords that its `forward` does not take, and has
    parameter_groups() and the attribute `takes`, the names of the keywords of its `forward`. If its constructor has set
    the attribute `inputs`, that list replaces the COSTLY names among them.
    """
    taken = inspect.signature(criterion.forward).parameters
    if not any(argument.kind is argument.VAR_KEYWORD for argument in taken.values()):
        criterion.register_forward_pre_hook(functools.partial(keep_keywords, {*taken}), with_kwargs=True)
    if not hasattr(criterion, 'parameter_groups'):
        criterion.parameter_groups = types.MethodType(own_groups, criterion)
    criterion.takes = {*taken}
    if hasattr(criterion, 'inputs'):
        for name in criterion.inputs:
            choose(dict.fromkeys(COSTLY), name, f'self.inputs of {type(criterion).__module__}:')
        criterion.takes = criterion.takes - {*COSTLY} | {*criterion.inputs}
    return criterion


def keep_keywords(names, criterion, arguments, given):
    return arguments, {name: value for name, value in given.items() if name in names}


def scalar_loss(name, criterion, arguments, given, loss):
    """
    A hook after forward() of --loss `name`. Returns the loss as a scalar with a graph, which torch.tensor(0.) for a
    batch without tuples lacks; with reduction='none', as it is. Raises UserError for other results than one number.
    """
    if given.get('reduction') == 'none':
        return loss
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UserError(f'--loss {name}: its forward() returned {described(loss)}; expected a tensor of one number')
    batch = given['batch'] if 'batch' in given else arguments[0]
    return loss.reshape(()) if loss.requires_grad else loss.reshape(()) + batch.sum() * 0


def triplets_from_masks(positives, negatives):
    """Masks of positive and negative pairs, two bool [B, B] -> every triplet that they make: [T, 3]."""
    anchors, partners = positives.nonzero().T
    pair, negative = negatives.index_select(0, anchors).nonzero().T
    triplets = negative.new_empty(3, len(negative))          # in columns and in place: there may be tens of millions
    torch.index_select(anchors, 0, pair, out=triplets[0])
    torch.index_select(partners, 0, pair, out=triplets[1])
    triplets[2] = negative
    return triplets.T


def triplets_from_counts(positives, negatives):
    """As triplets_from_masks(), from int64 [B, B] that say how often each pair counts."""
    anchors, partners = positives.nonzero().T
    repeats = positives[anchors, partners]
    anchors = anchors.repeat_interleave(repeats)
    partners = partners.repeat_interleave(repeats)
    pair, negative = negatives[anchors].nonzero().T
    triplets = torch.stack([anchors[pair], partners[pair], negative], dim=1)
    return triplets.repeat_interleave(negatives[anchors[pair], negative], dim=0)


def from_columns(columns, batch):
    """
    Columns of indices: (anchors, positives, negatives) -> triplets [T, 3]; (anchors, positives, anchors, negatives),
    for pairs -> masks of positive and negative pairs, bool [B, B]; if a pair is listed several times, int64 [B, B] that
    say how often each pair counts. Raises ValueError for columns of different lengths, and for indices outside the
    batch; TypeError for columns of other numbers than integers.
    """
    columns = [torch.as_tensor(column, device=batch.device) for column in columns]
    lengths = [len(column) for column in columns]
    if lengths[0] != lengths[1] or lengths[-1] != lengths[-2]:
        raise ValueError('columns of different lengths')
    for column in columns:
        if len(column) and (column.is_floating_point() or column.dtype == torch.bool):
            raise TypeError('no indices')
        require_inside(column, batch)
    columns = [column.long() for column in columns]
    if len(columns) == 3:
        return torch.stack(columns, dim=1)
    counts = torch.zeros(2, len(batch), len(batch), dtype=torch.int64, device=batch.device)
    for count, first, second in zip(counts, columns[::2], columns[1::2], strict=True):
        count.index_put_((first, second), torch.ones_like(first), accumulate=True)
    return tuple(counts) if (counts > 1).any() else tuple(counts.bool())


def require_inside(indices, batch):
    if ((indices < 0) | (indices >= len(batch))).any():
        raise ValueError('indices outside the batch')


def is_column(part):
    """Whether a member of a tuple is a tensor or an array of one dimension, or a list of numbers."""
    if isinstance(part, list):
        return not any(isinstance(number, list | tuple) or getattr(number, 'ndim', 0) for number in part)
    return getattr(part, 'ndim', None) == 1


def masks_from_lists(anchors, positives, negatives, batch):
    """
    The lists of the public code's miners npair and lifted -> masks of positive and negative pairs, two bool [B, B].

    anchors: A indices; positives, negatives: for each anchor, an index or several.
    """
    masks = torch.zeros(2, len(batch), len(batch), dtype=torch.bool)
    for mask, partners in zip(masks, (positives, negatives), strict=True):
        for anchor, others in zip(anchors, partners, strict=True):
            row = torch.as_tensor(anchor)
            columns = torch.as_tensor(others)
            require_inside(row, batch)
            require_inside(columns, batch)
            mask[row.long(), columns.long()] = True
    return tuple(masks.to(batch.device))


class Miner:
    """
    A miner as the criteria call it. Its tuples have one of two forms: triplets, an int64 tensor [T, 3], or masks of
    positive and negative pairs, two bool [B, B].

    batchminer:  the miner; it may return triplets as a list.
    name:        --batch_mining, for messages.
    takes_masks: whether the criterion takes masks; otherwise it gets the triplets that they make.
    use:         'triplets' if the loss takes triplets or the pairs in them; 'any' if it is of a library and takes both
                 forms; 'own' if it takes only the pairs of particular miners (npair), or has losses inside it.
    takes_counts: whether it also takes int64 masks, how often each pair counts.
    """

    def __init__(self, batchminer, name, takes_masks, use='triplets', takes_counts=False):
        self.batchminer = batchminer
        self.name = name
        self.takes_masks = takes_masks
        self.use = use
        self.takes_counts = takes_counts
        self.names = {'indices', 'step', 'epoch'} & {*inspect.signature(batchminer).parameters}
        # the tuples of the last batch, and those given by a wrapper or the caller
        self.of_step = types.SimpleNamespace(mined=None, tuples=None)

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> the tuples."""
        found = self.of_step.tuples
        if found is None:
            # miners of the public code, which have a name, take labels to NumPy
            own = labels.cpu() if hasattr(self.batchminer, 'name') else labels
            mined = self.batchminer(batch, own, **self.noted(labels))
            try:
                found = checked(mined, batch)
            except (TypeError, ValueError, RuntimeError, IndexError) as error:
                raise UserError(f'--batch_mining {self.name}: it returned {described(mined)}; expected triplets, an '
                                'int64 tensor [T, 3] or a list of triples, or masks of positive and negative pairs, '
                                'two bool [B, B], or three or four tensors of indices (docs/extending.md)') from error
        self.of_step.mined = found
        has_counts = isinstance(found, tuple) and found[0].dtype != torch.bool
        takes_it = self.takes_masks and (self.takes_counts or not has_counts)
        if has_counts and self.use == 'own':
            self.of_step.mined = tuple(counts.bool() for counts in found)
        elif not takes_it:
            self.of_step.mined = self.last
        return self.of_step.mined

    def noted(self, labels):
        """Those of `indices`, `step` and `epoch` that the miner takes, noted by the training step for the batch."""
        noted = getattr(self.batchminer, 'of_step', None)
        if not self.names or noted is None:
            return {}
        if 'indices' in self.names and len(labels) != len(noted.indices):
            raise UserError(f'--batch_mining {self.name} takes the indices of the batch, but this --loss gives it '
                            f'{len(labels)} samples of other batches or parts; choose another loss or miner')
        return {name: vars(noted)[name] for name in self.names}

    @property
    def last(self):
        """The triplets [T, 3] of the last batch."""
        mined = self.of_step.mined
        if not isinstance(mined, tuple):
            return mined
        make = triplets_from_masks if mined[0].dtype == torch.bool else triplets_from_counts
        return make(*mined)

    def given(self):
        """A miner for a loss whose wrapper gives the tuples, as `of_step.tuples` of this miner."""
        return Miner(self.batchminer, self.name, self.takes_masks, self.use, self.takes_counts)

    def listing(self, takes_masks=False):
        """The same miner for a criterion that takes triplets only, or also masks, but no counts."""
        return Miner(self.batchminer, self.name, takes_masks and self.takes_masks, self.use)


def fitted(loss, batchminer, name):
    """The Miner with tuples in the form that a loss takes. loss: its file. name: --batch_mining."""
    of_pairs = {*(loss.ALLOWED_MINING_OPS or ['any'])} <= {*PAIRS}
    takes_masks = of_pairs or getattr(loss, 'ACCEPTS_MASKS', False)
    use = 'own' if of_pairs else 'triplets'
    return Miner(batchminer, name, takes_masks, use, getattr(loss, 'ACCEPTS_COUNTS', False))


class MinerOfLists:
    """A Miner as criteria of the public code call it: it returns a list of triples, or lists_from_masks."""

    def __init__(self, miner):
        self.miner = miner
        self.name = miner.name

    def __call__(self, batch, labels):
        """labels [B]: a tensor on any device, an array or a list."""
        mined = self.miner(batch, torch.as_tensor(labels, device=batch.device))
        return lists_from_masks(*mined, self.name) if isinstance(mined, tuple) else mined.tolist()


def lists_from_masks(positives, negatives, name):
    """
    Masks of positive and negative pairs, two bool [B, B] -> a list of A anchors, the indices of each anchor's
    positives, and those of its negatives: lists of A arrays, or arrays [A, n] if every anchor has n. For the miner
    npair, which gives one positive per anchor, the positives are a list of A indices.
    """
    def row_indices(mask):
        rows = [row.nonzero()[:, 0] for row in mask[anchors]]
        # torch takes a short list of arrays for a tuple of indices
        return torch.stack(rows).numpy() if len({len(row) for row in rows}) == 1 else [row.numpy() for row in rows]

    positives = positives.cpu()
    negatives = negatives.cpu()
    anchors = positives.any(dim=1).nonzero()[:, 0].tolist()
    if name == 'npair':
        return anchors, positives[anchors].int().argmax(dim=1).tolist(), row_indices(negatives)
    return anchors, row_indices(positives), row_indices(negatives)


def checked(mined, batch):
    """The tuples of a miner -> triplets or masks on the batch's device. Raises one of several errors for others."""
    if isinstance(mined, tuple) and all(getattr(mask, 'dtype', None) == torch.bool for mask in mined):
        positives, negatives = mined
        if positives.shape != negatives.shape or positives.shape != (len(batch), len(batch)):
            raise ValueError('masks of other shapes')
        return positives.to(batch.device), negatives.to(batch.device)
    if isinstance(mined, tuple) and len(mined) in (3, 4) and all(map(is_column, mined)):
        if any(map(len, mined)) or len(mined) == 4:
            return from_columns(mined, batch)
    if isinstance(mined, tuple) and len(mined) == 3:       # ([], [], []) is a batch without pairs
        return masks_from_lists(*mined, batch)
    if isinstance(mined, tuple):
        raise TypeError('a tuple of neither columns nor masks')
    triplets = torch.as_tensor(mined, device=batch.device)
    if len(triplets) and (triplets.is_floating_point() or triplets.dtype == torch.bool or triplets.shape[1:] != (3,)):
        raise TypeError('no indices of triplets')
    if not isinstance(mined, torch.Tensor):                # the host would wait for a tensor on a GPU
        require_inside(triplets, batch)
    return triplets.long().reshape(-1, 3)


def described(value):
    """What a miner or a loss returned: 'Tensor of float32 [4, 2]', 'list of 3, the first int', 'dict'."""
    if hasattr(value, 'dtype') and hasattr(value, 'shape'):            # a tensor or an array
        return f'{type(value).__name__} of {str(value.dtype).removeprefix("torch.")} {[*value.shape]}'
    if isinstance(value, list | tuple) and len(value):
        return f'{type(value).__name__} of {len(value)}, the first {described(value[0])}'
    return 'None' if value is None else type(value).__name__


def own_groups(criterion):
    """
    The optimizer groups of a criterion: its `optim_dict_list`, which then has all of them; otherwise one group of its
    parameters with its learning rate `lr`, without those that it trains by its own optimizers, and the groups of the
    criterion inside it, if it is a wrapper.
    """
    if hasattr(criterion, 'optim_dict_list'):
        return criterion.optim_dict_list
    elsewhere = {parameter for optimizer in optimizers(criterion) for group in optimizer.param_groups
                 for parameter in group['params']}
    inside = []
    if hasattr(criterion, 'criterion') and hasattr(criterion.criterion, 'parameter_groups'):
        inside = criterion.criterion.parameter_groups()
        elsewhere |= {*criterion.criterion.parameters()}
    own = [parameter for parameter in criterion.parameters() if parameter not in elsewhere]
    if not any(parameter.requires_grad for parameter in own):
        return inside
    if not hasattr(criterion, 'lr'):
        raise UserError(f'{type(criterion).__module__}.{type(criterion).__name__} has parameters, but neither a rate '
                        'self.lr nor optimizer groups self.optim_dict_list')
    return [{'params': own, 'lr': criterion.lr}, *inside]


def optimizers(criterion):
    """The optimizers that a criterion and the criteria inside it own; each returns them in a method optimizers()."""
    return [optimizer for module in criterion.modules() if hasattr(module, 'optimizers')
            for optimizer in module.optimizers()]
