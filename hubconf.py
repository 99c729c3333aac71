"""
torch.hub: one loss, miner or sampler, the metrics or a trained network in a program of your own (docs/own_loop.md).

Files are loaded under private names, so that `import datasets` or `import evaluation` still finds your package.
hubconf.json has the defaults of parameters.py; `python docs/method_pages.py` writes it.
"""
import contextlib
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import torch

dependencies = ['torch']
_ROOT = pathlib.Path(__file__).resolve().parent
_METHODS = json.loads((_ROOT / 'hubconf.json').read_text())     # {kind: {name: file, defaults, needs}}
_KIND = {'losses': 'criterion', 'miners': 'miner', 'samplers': 'sampler'}


def criterion(loss, miner=None, **settings):
    """
    A loss with the defaults of main.py.

    Args:
        loss:     a name of docs/losses.md; no sum of losses and no `pml:NAME`.
        miner:    for a loss that takes one: a name of docs/miners.md, or a callable (batch [B, D], labels [B]) ->
                  triplets [T, 3] or two masks [B, B].
        settings: flags of the loss, with or without `loss_<loss>_`; flags of the miner, with `miner_<miner>_`; and
                  what a run takes from its data and its network: `n_classes`, `embed_dim`, `n_features` (pooled
                  features of the backbone), `n_maps` (feature maps), `superclasses` [n_classes, levels],
                  `class_counts` [n_classes] (training images), `lr`.

    Returns: a torch.nn.Module, criterion(batch=, labels=) -> scalar. docs/extending.md lists further keywords that
    some losses take. Its method `parameter_groups()` returns the optimizer groups of its trained parameters, or [].

    Raises TypeError for settings that are unknown or missing, and ValueError for unknown names; a call raises
    TypeError or ValueError for a wrong batch or wrong labels.
    """
    inner = _inner(loss, settings)
    if miner is not None and not any(_module('losses', name).REQUIRES_BATCHMINER for name in inner or [loss]):
        raise ValueError(f'criterion {loss!r} takes no miner')
    others = [*(('losses', name) for name in inner), ('miners', miner)]
    opt, module = _namespace('losses', loss, settings, others)
    try:
        built = _built(opt, module, loss, miner)
    except AttributeError as error:
        if not isinstance(error.obj, types.SimpleNamespace):
            raise
        raise TypeError(f'criterion {loss!r}: give {error.name}') from None
    n_classes = getattr(opt, 'n_classes', None)
    built.register_forward_pre_hook(
        lambda _, arguments, named: _check_batch(*_called_with(*arguments, **named), n_classes), with_kwargs=True)
    return built


def miner(name, masks=False, **settings):
    """
    A miner with the defaults of main.py.

    Args:
        name:     a name of docs/miners.md.
        masks:    whether miners that select pairs (docs/miners.md) return masks of positive and negative pairs, two
                  bool [B, B], instead of the triplets that these make.
        settings: flags of the miner, with or without `miner_<name>_`.

    Returns: a callable, (batch [B, D], labels [B]) -> triplets (anchor, positive, negative), int64 [T, 3].

    Raises: as criterion().
    """
    opt, _ = _namespace('miners', name, settings)
    mined = _miner(opt, name, masks)

    def mine(batch, labels):
        _check_batch(batch, labels)
        return mined(batch, labels)
    return mine


def sampler(name, labels, superclasses=None, embeddings=None, **settings):
    """
    A batch sampler with the defaults of main.py.

    Args:
        name:         a name of docs/samplers.md.
        labels:       integers [N], the class of each image: a tensor, an array or a list.
        superclasses: for `hierarchical`: the super-class of each class, in the order of the sorted classes.
        embeddings:   for samplers that compare images: tensor [N, D], their memory bank. The sampler keeps it as
                      `storage`: overwrite its rows, or replace it, between two epochs.
        settings:     `bs`, `samples_per_class`, `seed`, `iterations_per_epoch`, and flags of the sampler, with or
                      without `data_`.

    Returns: a torch.utils.data.Sampler of lists of indices, the batch_sampler of a DataLoader. `set_epoch(epoch)`
    before each epoch gives it other batches.

    Raises TypeError for settings that are unknown or missing, and ValueError for unknown names and for sizes that do
    not fit.
    """
    opt, module = _namespace('samplers', name, settings)
    further = []
    for argument, value, needed in (('embeddings', embeddings, getattr(module, 'REQUIRES_STORAGE', False)),
                                    ('superclasses', superclasses, getattr(module, 'REQUIRES_HIERARCHY', False))):
        if needed == (value is None):
            raise TypeError(f'sampler {name!r} ' + (f'needs {argument}' if needed else f'takes no {argument}'))
        further += [value] if needed else []
    image_list = [(index, label) for index, label in enumerate(torch.as_tensor(labels).tolist())]
    image_dict = {label: [] for label in sorted({label for _, label in image_list})}
    for index, label in image_list:
        image_dict[label].append((index, index))
    return module.Sampler(opt, image_dict, image_list, *further)


def metrics(names, seed=0):
    """
    The metrics of docs/metrics.md, with the packages numpy and tqdm.

    Args:
        names: as in --evaluation_metrics: `e_recall@1`, `c_recall@1`, `map_at_r`, `nmi`, ...
        seed:  seed of the clustering.

    Returns: a function of embeddings [N, D] and integer labels [N] (tensors on any device, arrays or lists) ->
    {name: number}. Each image is a query, and all others are its gallery; with `is_query`, [N] booleans, the True ones
    are the queries and the others the gallery. Embeddings are compared as they are: normalise them, or take metrics
    of cosines (`c_recall@1`).

    Raises ValueError for unknown names; a call raises ValueError for embeddings that are not finite, and for shapes
    that do not fit.
    """
    module = _import_absolute('evaluation', 'metrics', needs=('records', 'utilities'))
    with _user_errors(module):
        for name in names:
            module.parse(name)

    def measure(embeddings, labels, is_query=None):
        embeddings, labels = torch.as_tensor(embeddings).detach(), torch.as_tensor(labels).cpu()
        if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1] or not len(labels):
            raise ValueError(f'expected embeddings [N, D] and labels [N], not {[*embeddings.shape]} and '
                             f'{[*labels.shape]}')
        if is_query is not None:
            is_query = torch.as_tensor(is_query).cpu().bool().numpy()
        with torch.no_grad(), _user_errors(module):
            return module.compute(names, embeddings, labels.unique(return_inverse=True)[1].numpy(), is_query, seed)
    return measure


def network(run_or_export, device='cpu', trust=False):
    """
    A trained network, without a package of this code base in the calling process.

    Args:
        run_or_export: an exported .onnx file; or a run folder, a checkpoint or an exported folder of safetensors, which
                       another process exports to a temporary file first, with the packages of requirements.txt; or an
                       exported .pt2 file.
        device:        where it computes; .onnx: `cpu` only, with the package onnxruntime.
        trust:         whether a .pt2 file may be loaded. torch.export unpickles what is in it, without restriction, so
                       that whoever wrote the file can run any code here: True only for files of your own.

    Returns: a torch.nn.Module, uint8 RGB images [B, 3, S, S] -> embeddings [B, D], without gradients. Its attribute
    `description` is a dict: `input`, `before` (how images are resized and cropped before), `network` (a checksum).

    Raises ValueError with the message of `Evaluate_Network.py RUN export FILE` where a run cannot be exported, where
    `device` does not fit, and for a .pt2 file without `trust`.
    """
    path = pathlib.Path(run_or_export)
    if path.suffix == '.onnx':
        if torch.device(device).type != 'cpu':
            raise ValueError(f'{path}: device {device}: .onnx files compute on the CPU here; give the run folder')
        return _Onnx(path)
    if path.suffix == '.pt2':
        if not trust:
            raise ValueError(f'{path}: whoever wrote a .pt2 file can run any code where it is loaded, since '
                             'torch.export unpickles what is in it; give an .onnx file or a run folder, or trust=True '
                             'if the file is yours')
        return _exported(path, device)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / 'network.pt2'
        done = subprocess.run([sys.executable, str(_ROOT / 'Evaluate_Network.py'), str(path), 'export', str(file)],
                              capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f'{path}: it cannot be exported: {done.stderr.strip()}')
        return _exported(file, device)                       # written just now, in a folder of this user alone


def _check_batch(batch, labels, n_classes=None):
    """
    Raises TypeError for labels that are not integers; ValueError for shapes other than [B, D] and [B], for two devices,
    and for a class outside 0 ... n_classes − 1. On a GPU the latter is an assertion, for which the host does not wait.
    """
    if batch.dim() != 2 or labels.shape != batch.shape[:1]:
        raise ValueError(f'expected embeddings [B, D] and labels [B], not {[*batch.shape]} and {[*labels.shape]}')
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f'expected labels of an integer type, not {labels.dtype}')
    if labels.device != batch.device:
        raise ValueError(f'the embeddings are on {batch.device} and the labels on {labels.device}')
    if n_classes is not None and labels.device.type in ('cpu', 'cuda') and len(labels):
        in_range = (labels.clamp(0, n_classes - 1) == labels).all()
        if labels.is_cuda:
            torch._assert_async(in_range, f'expected labels from 0 to {n_classes - 1}')
        elif not in_range:
            raise ValueError(f'expected labels from 0 to {n_classes - 1}, not {labels.min()} to {labels.max()}')


def _called_with(batch, labels, **more):
    return batch, labels


def _import(package, stem):
    """A file of `package`, without its __init__.py, under a private name that two checkouts do not share."""
    private = 'hub_' + re.sub(r'\W', '_', f'{_ROOT}_{package}')
    if private not in sys.modules:
        sys.modules[private] = types.ModuleType(private)
        sys.modules[private].__path__ = [str(_ROOT / package)]
    return importlib.import_module(f'{private}.{stem}')


def _import_absolute(package, stem, needs):
    """
    A file of `package` that imports from its own package and from `needs` by their names: while it is imported, these
    names are packages of this checkout without their __init__.py, and afterwards they are the caller's again.
    """
    packages = (package, *needs)

    def belong(names):
        return [name for name in names if name.partition('.')[0] in packages]

    private = 'hub_' + re.sub(r'\W', '_', f'{_ROOT}_{package}_{stem}')
    if private not in sys.modules:
        callers = {name: sys.modules.pop(name) for name in belong([*sys.modules])}
        try:
            for name in packages:
                sys.modules[name] = types.ModuleType(name)
                sys.modules[name].__path__ = [str(_ROOT / name)]
            sys.modules[private] = importlib.import_module(f'{package}.{stem}')
        finally:
            for name in belong([*sys.modules]):
                del sys.modules[name]
            sys.modules.update(callers)
    return sys.modules[private]


@contextlib.contextmanager
def _user_errors(module):
    """Raises the module's errors for its users as ValueError."""
    try:
        yield
    except module.UserError as error:
        raise ValueError(str(error)) from None


def _find(kind, name):
    if name not in _METHODS[kind]:
        raise ValueError(f'{_KIND[kind]} {name!r}: unknown; choose from {", ".join(_METHODS[kind])}')
    return _METHODS[kind][name]


def _module(kind, name):
    return _import(*_find(kind, name)['file'].removesuffix('.py').split('/'))


def _inner(loss, settings):
    """The names of the losses inside a loss."""
    flags = getattr(_module('losses', loss), 'REQUIRES_CRITERIA', ())
    defaults = _find('losses', loss)['defaults']
    chosen = (settings.get(flag, settings.get(flag.removeprefix(f'loss_{loss}_'), defaults[flag])) for flag in flags)
    names = [*dict.fromkeys(chosen)]
    if loss in names:
        raise ValueError(f'criterion {loss!r} does not contain itself')
    return names


def _namespace(kind, name, settings, others=()):
    """The namespace that a method takes, and its file. others: (kind, name) of methods inside it."""
    start = {'losses': f'loss_{name}_', 'miners': f'miner_{name}_', 'samplers': 'data_'}[kind]
    methods = [_find(kind, name), *(_find(*other) for other in others if isinstance(other[1], str))]
    takes = dict.fromkeys(taken for method in methods for taken in [*method['needs'], *method['defaults']])
    full = {given if given in takes else f'{start}{given}': value for given, value in settings.items()}
    if unknown := [given for given, long in zip(settings, full, strict=True) if long not in takes]:
        raise TypeError(f'{_KIND[kind]} {name!r}: unknown {", ".join(unknown)}; it takes '
                        f'{", ".join(taken.removeprefix(start) for taken in takes) or "nothing"}')
    known = {}
    for method in [method for methods in _METHODS.values() for method in methods.values()]:
        known |= method['defaults']
    return types.SimpleNamespace(**known | {'loss': None} | full), _module(kind, name)


def _miner(opt, name, masks):
    """The miner in the form in which a criterion gets it (utilities/loss_sums.py)."""
    batchminer = _module('miners', name).BatchMiner(opt) if isinstance(name, str) else name
    return _import('utilities', 'loss_sums').Miner(batchminer, name if isinstance(name, str) else 'of yours', masks)


def _built(opt, module, loss, miner):
    """The Criterion of a file, with its miner, the losses inside it and parameter_groups()."""
    opt = types.SimpleNamespace(**vars(opt) | {'loss': loss})
    if hasattr(module, 'REQUIRES_CRITERIA'):
        def build(name, dim):
            file = _module('losses', name)
            return _built(types.SimpleNamespace(**vars(opt) | {'embed_dim': dim}), file, name,
                          miner if file.REQUIRES_BATCHMINER else None)
        built = module.Criterion(opt, build)
    elif module.REQUIRES_BATCHMINER:
        allowed = module.ALLOWED_MINING_OPS or [*_METHODS['miners']]
        if miner is None or isinstance(miner, str) and miner not in allowed:
            raise ValueError(f'criterion {loss!r}: miner {miner!r}; choose from {", ".join(allowed)}')
        built = module.Criterion(opt, _miner(opt, miner, getattr(module, 'ACCEPTS_MASKS', False)))
    else:
        built = module.Criterion(opt)
    if not hasattr(built, 'parameter_groups'):
        built.parameter_groups = types.MethodType(_groups, built)
    return built


def _groups(built):
    trained = [parameter for parameter in built.parameters() if parameter.requires_grad]
    return getattr(built, 'optim_dict_list', None) or ([{'params': trained, 'lr': built.lr}] if trained else [])


def _exported(file, device):
    extra = {'description.json': ''}
    program = torch.export.load(file, extra_files=extra)
    if torch.device(device).type != 'cpu':
        program = torch.export.passes.move_to_device_pass(program, str(device))
    found = program.module()
    found.requires_grad_(False)
    found.description = json.loads(extra['description.json'])
    return found


class _Onnx(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        import onnxruntime
        self.session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        self.description = json.loads(self.session.get_modelmeta().custom_metadata_map['description.json'])

    def forward(self, images):
        embeddings, = self.session.run(None, {'images': images.numpy()})
        return torch.from_numpy(embeddings)
