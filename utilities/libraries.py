"""
Losses and miners of libraries by name: pml:ContrastiveLoss of pytorch-metric-learning, a package that nothing else in
training needs, and torch:MultiMarginLoss of torch.nn.

A loss of torch.nn is computed from the logits of a linear classifier of the embeddings, or from the pairs of a batch.
The classifier is the one of criteria/linear_classifier.py, so that torch:CrossEntropyLoss without arguments is that
loss. Of the 22 losses of torch.nn, six are not here: TripletMarginLoss, TripletMarginWithDistanceLoss and
MarginRankingLoss take triplets, for which --loss triplet has miners; GaussianNLLLoss needs a variance, CTCLoss
sequences, and AdaptiveLogSoftmaxWithLoss is a classifier of its own for words by their frequency.
"""
import importlib
import importlib.metadata
import inspect
import itertools
import re

import torch
import torch.nn.functional as F

from utilities.errors import NO_MEMORY, RunFailed, UserError, choose

PML = 'pml:'
TORCH = 'torch:'
PACKAGE = 'pytorch-metric-learning'
OLDEST = (2, 8)                                                 # the versions that work: 2.8 to below 3
FIRST_UNFIT = (3, 0)
NAMES = {'--loss': '--loss_pml_args', '--batch_mining': '--miner_pml_args'}
HELPERS = ('distances', 'reducers', 'regularizers', 'losses')   # arguments may contain these: {LpDistance: {power: 2}}
# classes that do not work here, and what they keep from batch to batch
STATEFUL = {'CrossBatchMemory': 'earlier batches; the memory bank of this program is set with --xbm_size',
            'DynamicSoftMarginLoss': 'a histogram of earlier batches, with the graph of their gradients'}
# What losses of torch.nn take beside the logits [B, C]: labels [B]; for each class 1 or 0, or 1 or -1, [B, C]; or the
# label followed by -1, [B, C]. Losses of all pairs of a batch take distances, or embeddings, and 1 or -1.
TARGETS = {
    'CrossEntropyLoss': 'labels', 'NLLLoss': 'labels', 'MultiMarginLoss': 'labels',
    'BCEWithLogitsLoss': 'one-hot', 'BCELoss': 'one-hot', 'MultiLabelSoftMarginLoss': 'one-hot', 'MSELoss': 'one-hot',
    'L1Loss': 'one-hot', 'SmoothL1Loss': 'one-hot', 'HuberLoss': 'one-hot', 'KLDivLoss': 'one-hot',
    'PoissonNLLLoss': 'one-hot',
    'SoftMarginLoss': 'signs', 'MultiLabelMarginLoss': 'lists',
    'HingeEmbeddingLoss': 'distances of pairs', 'CosineEmbeddingLoss': 'pairs',
}
# losses that take log-probabilities or probabilities in place of logits
LINKS = {'NLLLoss': torch.nn.LogSoftmax(dim=1), 'KLDivLoss': torch.nn.LogSoftmax(dim=1), 'BCELoss': torch.sigmoid}


def arguments(opt, kind, names, library='pml'):
    """
    The mappings of --<kind>_<library>_args, where kind is `loss` or `miner`, for each of the names of losses or miners;
    an empty one for a name that is not of the library.
    """
    wanted = [name.startswith(f'{library}:') for name in names]
    given = getattr(opt, f'{kind}_{library}_args') if any(wanted) else []
    if len(given) not in (0, 1, sum(wanted)):
        raise UserError(f'--{kind}_{library}_args: expected one mapping for each {library}:NAME ({sum(wanted)}), not '
                        f'{len(given)}')
    mappings = itertools.cycle(given or [{}])
    return [next(mappings) if is_wanted else {} for is_wanted in wanted]


def require_library(what):
    """Returns the version of the library. Raises UserError if it is missing or does not fit. what: what needs it."""
    command = f'pip install "{PACKAGE}>=2.8,<3"'
    try:
        importlib.import_module('pytorch_metric_learning')
    except ImportError:
        raise UserError(f'{what} needs a library: {command}') from None
    version = importlib.metadata.version(PACKAGE)
    if not OLDEST <= tuple(map(int, re.findall(r'\d+', version)[:2])) < FIRST_UNFIT:
        raise UserError(f'{what} works with {PACKAGE} from 2.8 to below 3, and {version} is installed: {command}')
    return version


def classes(kind, what):
    """
    {name: class} of pytorch_metric_learning.<kind>. Raises UserError if the library is missing or does not fit. what:
    what needs it.
    """
    require_library(what)
    module = importlib.import_module(f'pytorch_metric_learning.{kind}')
    return {key: value for key, value in vars(module).items() if inspect.isclass(value) and 'Base' not in key}


def torch_target(name):
    """The target of the loss torch:NAME. Raises UserError for another loss."""
    return choose({f'{TORCH}{loss}': target for loss, target in TARGETS.items()}, name, '--loss')


def find(kind, name, flag):
    """
    The class pytorch_metric_learning.<kind>.<name>. Raises UserError if the library is not installed, if it has no such
    class, or if the class does not work here.
    """
    found = classes(kind, f'{flag} {PML}{name}')
    if name not in found:
        raise UserError(f'{flag} {PML}{name}: {PACKAGE} {importlib.metadata.version(PACKAGE)} has no such class in '
                        f'{kind}; choose from {", ".join(sorted(found))}')
    if name in STATEFUL:
        raise UserError(f'{flag} {PML}{name} does not work here: it keeps {STATEFUL[name]}')
    return found[name]


def accepted(found):
    """The names of the arguments of a class of the library, with those of the classes that it is derived from."""
    return {parameter for base in found.__mro__ for parameter in inspect.signature(base.__init__).parameters}


def build(kind, name, given, flag, known=None):
    """
    The object pytorch_metric_learning.<kind>.<name>(**given). Arguments that it accepts and `given` lacks come from the
    mapping `known`.

    Raises UserError if the library is not installed or does not accept the name or the arguments.
    """
    found = find(kind, name, flag)
    filled = {key: value for key, value in (known or {}).items() if key in accepted(found)}
    try:
        return found(**filled | {key: helper(value, flag, known) for key, value in given.items()})
    except UserError:
        raise
    except Exception as error:  # the library raises anything, down to Exception itself
        raise UserError(f'{flag} {PML}{name}: {reason(error)}; its arguments are set with {NAMES[flag]}') from None


def helper(value, flag, known):
    """{ClassName: {argument: value}} -> an instance of that class; other values are returned. known: as in build()."""
    if isinstance(value, dict) and len(value) == 1:
        (name, inner), = value.items()
        for kind in HELPERS:
            if hasattr(importlib.import_module(f'pytorch_metric_learning.{kind}'), str(name)):
                return build(kind, name, inner or {}, flag, known)
    return value


def called(function, *arguments, flag):
    """function(*arguments). Raises UserError if the library's class cannot be called this way."""
    try:
        return function(*arguments)
    except (UserError, RunFailed, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the library raises anything
        if NO_MEMORY.search(str(error)):
            raise
        raise UserError(f'{flag} {PML}{type(function).__name__} does not work here: {reason(error)}; its arguments '
                        f'are set with {NAMES[flag]}') from error


def reason(error):
    return ' '.join(str(error).split())[:200] or type(error).__name__


class PmlCriterion(torch.nn.Module):
    """
    opt: loss = pml:NAME, loss_pml_lr, lr, n_classes, embed_dim. batchminer: a miner; None: the loss forms tuples
    itself. given: the arguments of the library's class.
    """

    def __init__(self, opt, batchminer, given):
        super().__init__()
        known = {'num_classes': opt.n_classes, 'embedding_size': opt.embed_dim}
        self.loss = build('losses', opt.loss.removeprefix(PML), given, '--loss', known)
        self.lr = opt.lr if opt.loss_pml_lr < 0 else opt.loss_pml_lr
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        batch = batch.float() if batch.dtype in (torch.float16, torch.bfloat16) else batch
        with torch.autocast(batch.device.type, enabled=False):
            tuples = []
            if self.batchminer is not None:
                mined = self.batchminer(batch, labels)
                # masks of positive and negative pairs, or how often each counts; or triplets
                indices = map(pairs_in, mined) if isinstance(mined, tuple) else [mined.T]
                tuples = [tuple(itertools.chain(*indices))]
            return called(self.loss, batch, labels, *tuples, flag='--loss')


def pairs_in(mask):
    """The pairs in a mask [B, B], bool or how often each counts: [2, P] indices."""
    pairs = mask.nonzero()
    if mask.dtype != torch.bool:
        pairs = pairs.repeat_interleave(mask[tuple(pairs.T)], dim=0)
    return pairs.T


class PmlMiner:
    """
    opt: batch_mining = pml:NAME. Returns triplets [T, 3], or the library's columns of pairs (anchors, positives,
    anchors, negatives).
    """

    def __init__(self, opt, given):
        self.miner = build('miners', opt.batch_mining.removeprefix(PML), given, '--batch_mining')

    @torch.no_grad()
    def __call__(self, batch, labels):
        mined = called(self.miner, batch, labels, flag='--batch_mining')
        return torch.stack(mined, dim=1) if len(mined) == 3 else mined


class TorchCriterion(torch.nn.Module):
    """
    A loss of torch.nn: of the logits batch weights^T + biases and the targets that TARGETS names; or of the
    P = B (B - 1) / 2 pairs of a batch, with memory that grows as B^2 D. Without pairs it is 0, with a graph.

    opt: loss = torch:NAME, loss_torch_lr, lr, n_classes, embed_dim. given: the arguments of torch.nn.NAME; a list, such
    as one weight per class, becomes a tensor.

    Raises UserError for a loss that takes other targets, or arguments with which it does not return one number.
    """

    def __init__(self, opt, given):
        super().__init__()
        name = opt.loss.removeprefix(TORCH)
        self.target = torch_target(opt.loss)
        self.lr = opt.lr if opt.loss_torch_lr < 0 else opt.loss_torch_lr
        self.link = LINKS.get(name)
        if 'pairs' not in self.target:
            limit = opt.embed_dim ** -0.5                               # as in torch.nn.Linear
            self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))
            self.biases = torch.nn.Parameter(torch.empty(opt.n_classes).uniform_(-limit, limit))
        given = given | {key: torch.tensor(value, dtype=torch.float32) for key, value in given.items()
                         if isinstance(value, list)}
        try:
            self.loss = getattr(torch.nn, name)(**given)
            value = self(torch.zeros(2, opt.embed_dim), torch.zeros(2, dtype=torch.long))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f'--loss {opt.loss}: {reason(error)}; its arguments are set with '
                            '--loss_torch_args') from None
        if value.dim():
            raise UserError(f'--loss {opt.loss}: with --loss_torch_args {given}, it does not return one number, but '
                            f'a tensor of shape {[*value.shape]} for 2 images')

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, used as they are, labels [B] int64 below n_classes, on one device -> scalar."""
        batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
        with torch.autocast(batch.device.type, enabled=False):
            if 'pairs' in self.target:
                return self.loss_of_pairs(batch, labels)
            return self.loss_of_logits(batch, labels)

    def loss_of_logits(self, batch, labels):
        logits = F.linear(batch, self.weights.to(batch.dtype), self.biases.to(batch.dtype))
        if self.target == 'lists':
            labels = F.pad(labels[:, None], (0, len(self.weights) - 1), value=-1)
        elif self.target != 'labels':
            labels = F.one_hot(labels, len(self.weights)).to(batch.dtype)
            if self.target == 'signs':
                labels = 2 * labels - 1
        if self.link:
            logits = self.link(logits)
        return self.loss(logits, labels)

    def loss_of_pairs(self, batch, labels):
        first, second = torch.triu_indices(len(batch), len(batch), offset=1, device=batch.device)
        if not len(first):
            return batch.sum() * 0
        pairs = batch[first], batch[second]
        if self.target == 'distances of pairs':
            pairs = [F.pairwise_distance(*pairs)]
        return self.loss(*pairs, 2 * (labels[first] == labels[second]).to(batch.dtype) - 1)
