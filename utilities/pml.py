"""Losses and miners of pytorch-metric-learning by name, such as pml:ContrastiveLoss; only these need the library."""
import contextlib
import importlib
import importlib.metadata
import inspect
import itertools
import re

import torch

from utilities.errors import RunFailed, UserError
from utilities.loss_sums import from_tuple

PREFIX = 'pml:'
PACKAGE = 'pytorch-metric-learning'
OLDEST = (2, 8)                                                 # the versions that work: 2.8 to below 3
FIRST_UNFIT = (3, 0)
NAMES = {'--loss': '--loss_pml_args', '--batch_mining': '--miner_pml_args'}
HELPERS = ('distances', 'reducers', 'regularizers', 'losses')   # arguments may contain these: {LpDistance: {power: 2}}
# classes with a state from batch to batch that no checkpoint would hold, so that a run could not be resumed exactly
STATEFUL = {'CrossBatchMemory': 'earlier batches; the memory bank of this program is set with --xbm_size',
            'DynamicSoftMarginLoss': 'a histogram of earlier batches, with the graph of their gradients'}


def arguments(opt, kind, index, library='pml'):
    """
    The mapping of --<kind>_<library>_args, where kind is `loss` or `miner`, for the part `index` of a sum of losses.
    """
    names = vars(opt)['loss' if kind == 'loss' else 'batch_mining'].split('+')
    wanted = [i for i, name in enumerate(names) if name.startswith(f'{library}:')]
    if not wanted:
        return {}
    given = getattr(opt, f'{kind}_{library}_args')
    if given and len(given) not in (1, len(wanted)):
        raise UserError(f'--{kind}_{library}_args: expected one mapping for each {library}:NAME ({len(wanted)}), not '
                        f'{len(given)}')
    if not given:
        return {}
    return given[wanted.index(index)] if len(given) > 1 and index in wanted else given[0]


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


def find(kind, name, flag):
    """
    The class pytorch_metric_learning.<kind>.<name>. Raises UserError if the library is not installed, if it has no such
    class, or if runs with it could not be resumed.
    """
    found = classes(kind, f'{flag} {PREFIX}{name}')
    if name not in found:
        raise UserError(f'{flag} {PREFIX}{name}: {PACKAGE} {importlib.metadata.version(PACKAGE)} has no such class in '
                        f'{kind}; choose from {", ".join(sorted(found))}')
    if name in STATEFUL:
        raise UserError(f'{flag} {PREFIX}{name} does not work here: it keeps {STATEFUL[name]}')
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
        raise UserError(f'{flag} {PREFIX}{name}: {reason(error)}; its arguments are set with {NAMES[flag]}') from None


def helper(value, flag, known=None):
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
    except (UserError, RunFailed, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the library raises anything
        raise UserError(f'{flag} {PREFIX}{type(function).__name__} does not work here: {reason(error)}; its arguments '
                        f'are set with {NAMES[flag]}') from error


def reason(error):
    return ' '.join(str(error).split())[:200] or type(error).__name__


class Criterion(torch.nn.Module):
    """
    opt: loss = pml:NAME, loss_pml_lr, lr, n_classes, embed_dim. batchminer: a miner, or None, and the loss forms tuples
    itself.
    """

    def __init__(self, opt, batchminer, given):
        super().__init__()
        known = {'num_classes': opt.n_classes, 'embedding_size': opt.embed_dim}
        self.has_log = opt.tuple_statistics
        with collected(self.has_log):
            self.loss = build('losses', opt.loss.removeprefix(PREFIX), given, '--loss', known)
        self.lr = opt.lr if opt.loss_pml_lr < 0 else opt.loss_pml_lr
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        value = self.value(batch, labels)
        self.log = library_statistics(self.loss) if self.has_log else {}
        return value

    def value(self, batch, labels):
        batch = batch.float() if batch.dtype in (torch.float16, torch.bfloat16) else batch
        with torch.autocast(batch.device.type, enabled=False):
            if self.batchminer is None:
                return called(self.loss, batch, labels, flag='--loss')
            mined = self.batchminer(batch, labels)
            # masks of positive and negative pairs, or triplets
            indices = [mask.nonzero().T for mask in mined] if isinstance(mined, tuple) else [mined.T]
            return called(self.loss, batch, labels, tuple(itertools.chain(*indices)), flag='--loss')


class BatchMiner:
    """
    opt: batch_mining = pml:NAME. Returns triplets [T, 3], or two masks [B, B] if the library's miner returns pairs.
    """

    def __init__(self, opt, given):
        self.has_log = opt.tuple_statistics
        self.log = {}
        with collected(self.has_log):
            self.miner = build('miners', opt.batch_mining.removeprefix(PREFIX), given, '--batch_mining')

    @torch.no_grad()
    def __call__(self, batch, labels):
        mined = called(self.miner, batch, labels, flag='--batch_mining')
        self.log = library_statistics(self.miner) if self.has_log else {}
        return from_tuple(mined, batch)


@contextlib.contextmanager
def collected(is_wanted):
    """If wanted, modules of pytorch-metric-learning that the block makes collect their statistics."""
    if not is_wanted:
        yield
        return
    from pytorch_metric_learning.utils import common_functions
    before = common_functions.COLLECT_STATS
    common_functions.COLLECT_STATS = True
    try:
        yield
    finally:
        common_functions.COLLECT_STATS = before


def library_statistics(module):
    """
    {name: scalar} that a module of pytorch-metric-learning and those inside it have collected in their last call. The
    name is the name of the attribute; if the loss has several parts, it begins with the part: pos_loss_num_past_filter.
    """
    found = {}
    for place, part in module.named_modules():
        words = [word for word in place.split('.') if word not in ('', 'reducer', 'reducers')]
        for name in getattr(part, '_record_these_stats', ()):
            found['_'.join([*words, name])] = getattr(part, name)
    return {name: value for name, value in found.items() if isinstance(value, int | float | torch.Tensor)}
