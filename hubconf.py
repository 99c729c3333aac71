"""
torch.hub: one loss, miner or sampler, the metrics or a trained network in a program of your own (docs/own_loop.md).

Files are loaded under private names, so that `import datasets` or `import evaluation` still finds your package.
Their flags and defaults are what each file declares (flags/method_flags.py).
"""
import ast
import contextlib
import functools
import importlib
import inspect
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
# folder, registry, what the flags begin with
_KINDS = {'criterion': ('criteria', 'CRITERIA', 'loss_{}_'), 'miner': ('batch_mining', 'BATCHMINERS', 'miner_{}_'),
          'sampler': ('datasampler', 'SAMPLERS', 'data_')}
# values that a run takes from its data, its network and its other flags, in the form of FLAGS; every method takes them
_RUN = {'n_classes': {'type': 'int', 'at_least': 1, 'help': 'number of classes'},
        'embed_dim': {'type': 'int', 'at_least': 1, 'help': 'dimension of the embeddings'},
        'n_features': {'type': 'int', 'at_least': 1, 'help': 'number of pooled features of the backbone'},
        'n_maps': {'default': None, 'type': 'int', 'at_least': 1, 'help': 'number of feature maps, None without'},
        'superclasses': {'help': 'the super-classes of each class, [n_classes, levels]'},
        'class_counts': {'help': 'number of training images of each class, [n_classes]'},
        'lr': {'default': 0.00001, 'at_least': 0, 'help': 'learning rate'},
        'bs': {'default': 112, 'at_least': 1, 'help': 'batch size'},
        'samples_per_class': {'default': 2, 'at_least': 1, 'help': 'images per class in a batch'},
        'seed': {'default': 1, 'at_least': 0, 'help': 'seed of the batches'},
        'iterations_per_epoch': {'default': 0, 'at_least': 0, 'help': 'batches per epoch, 0: as many as fit'},
        'tuple_statistics': {'default': False, 'help': 'whether to count the tuples'}}

# keywords that the training step gives every loss; some take them (docs/extending.md)
_INPUTS = {'batch_features', 'f_embed', 'indices', 'step', 'epoch', 'feature_maps', 'images', 'teacher_batch'}


def criterion(loss, miner=None, **settings):
    """
    A loss with the defaults of main.py.

    Args:
        loss:     a name of docs/losses.md; no sum of losses and no `pml:NAME`.
        miner:    for a loss that takes one: a name of docs/miners_and_samplers.md, or a callable (batch [B, D], labels
                  [B]) -> triplets [T, 3], two masks [B, B], or the tuples of a miner of pytorch-metric-learning.
        settings: flags of the loss, with or without `loss_<loss>_`; flags of the miner, with `miner_<miner>_`; and
                  what a run takes from its data and its network: `n_classes`, `embed_dim`, `n_features` (pooled
                  features of the backbone), `n_maps` (feature maps), `superclasses` [n_classes, levels],
                  `class_counts` [n_classes] (training images), `lr`. The latter are accepted by every loss, so that
                  one line switches losses; some need them. `lr` is the flag `loss_<loss>_lr` where there is one.

    Returns: a torch.nn.Module, criterion(batch, labels, indices_tuple=None, ref_emb=None, ref_labels=None) -> scalar,
    for embeddings [B, D] and labels [B] of any integer type, on the same device or on the CPU; without a sample or with
    empty references, 0 with a graph. indices_tuple, as in pytorch-metric-learning, takes the place of what the miner of
    the criterion would select: indices (anchors, positives, negatives), or, for pairs, (anchors, positives, anchors,
    negatives), each a tensor, an array or a list, or what miner() returns. A loss that compares pairs of a batch with
    references takes them as ref_emb [R, D] and ref_labels [R], in place of the batch itself. docs/extending.md lists
    further keywords that some losses take; the others ignore these. The method `parameter_groups()` returns the
    optimizer groups of its trained parameters, or [].

    Raises TypeError for settings that are unknown or missing, and ValueError for unknown names and wrong values; a call
    raises TypeError or ValueError for a wrong batch or wrong labels.
    """
    inner = _inner(loss, settings)
    if miner is not None and not any(_module('criterion', name).REQUIRES_BATCHMINER for name in inner or [loss]):
        raise ValueError(f'criterion {loss!r} takes no miner')
    others = [*(('criterion', name) for name in inner), ('miner', miner)]
    opt = _namespace('criterion', loss, settings, others)
    try:
        built = _built(opt, loss, miner)
    except AttributeError as error:
        if not isinstance(error.obj, types.SimpleNamespace):
            raise
        about = _RUN.get(error.name, {}).get('help', 'what the file reads as opt.' + error.name)
        raise TypeError(f'criterion {loss!r}: give {error.name} ({about})') from None
    sizes = getattr(opt, 'n_classes', None), getattr(opt, 'embed_dim', None)
    for name, n_dims in (('class_counts', 1), ('superclasses', 2)):
        given = getattr(opt, name, None)
        shape = [] if given is None else [*torch.as_tensor(given).shape]
        if shape and (len(shape) != n_dims or sizes[0] not in (None, shape[0])):
            raise ValueError(f'criterion {loss!r}: {name} of shape {shape}: expected {_RUN[name]["help"]}')
    takes = functools.partial(_take_call, loss, *sizes)
    built.register_forward_pre_hook(takes, prepend=True, with_kwargs=True)
    built.forward = types.MethodType(_zero_without_samples, built)
    return built


def miner(name, masks=False, **settings):
    """
    A miner with the defaults of main.py.

    Args:
        name:     a name of docs/miners_and_samplers.md.
        masks:    whether miners that select pairs (docs/miners_and_samplers.md) return masks of positive and negative
                  pairs, two bool [B, B], instead of the triplets that these make.
        settings: flags of the miner, with or without `miner_<name>_`, and what criterion() accepts for every loss.

    Returns: a callable, (batch [B, D], labels [B]) -> triplets (anchor, positive, negative), int64 [T, 3].

    Raises: as criterion().
    """
    batchminer = _module('miner', name).BatchMiner(_namespace('miner', name, settings))
    mined = _mined.Miner(batchminer, name, masks)

    def mine(batch, labels):
        labels = _labels_of_batch(batch, labels)
        if not len(batch):
            has_masks = masks and getattr(_module('miner', name), 'RETURNS', '') == 'masks'
            none = torch.zeros(0, 0, dtype=torch.bool, device=batch.device)
            return (none, none) if has_masks else torch.zeros(0, 3, dtype=torch.int64, device=batch.device)
        return mined(batch, labels)
    return mine


def sampler(name, labels, superclasses=None, embeddings=None, **settings):
    """
    A batch sampler with the defaults of main.py.

    Args:
        name:         a name of docs/miners_and_samplers.md.
        labels:       integers [N], the class of each image: a tensor, an array or a list.
        superclasses: for `hierarchical`: the super-class of each class, in the order of the sorted classes.
        embeddings:   for samplers that compare images: tensor [N, D], their memory bank. The sampler keeps it as
                      `storage`: overwrite its rows, or replace it, between two epochs.
        settings:     `bs`, `samples_per_class`, `seed`, `iterations_per_epoch`, and flags of the sampler, with or
                      without `data_`.

    Returns: a torch.utils.data.Sampler of lists of indices, the batch_sampler of a DataLoader. `start_epoch(epoch)`
    before each epoch gives it other batches.

    Raises TypeError for settings that are unknown or missing, and ValueError for unknown names and for sizes that do
    not fit.
    """
    opt = _namespace('sampler', name, settings)
    module = _module('sampler', name)
    further = []
    labels = _labels_of_images(labels)
    if labels.dim() != 1:
        raise ValueError(f'expected labels [N], not {[*labels.shape]}')
    for argument, value, needed in (('embeddings', embeddings, getattr(module, 'REQUIRES_STORAGE', False)),
                                    ('superclasses', superclasses, getattr(module, 'REQUIRES_HIERARCHY', False))):
        if needed == (value is None):
            raise TypeError(f'sampler {name!r} ' + (f'needs {argument}' if needed else f'takes no {argument}'))
        if needed:
            further.append(value.tolist() if argument == 'superclasses' and hasattr(value, 'tolist') else value)
    image_list = [(index, label) for index, label in enumerate(labels.tolist())]
    image_dict = {label: [] for label in sorted({label for _, label in image_list})}
    for index, label in image_list:
        image_dict[label].append((index, index))
    if not image_list:
        raise ValueError('sampler: expected labels [N] of one image or more')
    for argument, value, wanted in (('superclasses', superclasses, len(image_dict)),
                                    ('embeddings', embeddings, len(labels))):
        if value is not None and len(value) != wanted:
            raise ValueError(f'sampler: expected {wanted} {argument}, not {len(value)}')
    return module.Sampler(opt, image_dict, image_list, *further)


def metrics(names, seed=0):
    """
    The metrics of docs/metrics.md, with the packages numpy and tqdm.

    Args:
        names: one, or a list, as in --evaluation_metrics: `e_recall@1`, `c_recall@1`, `map_at_r`, `nmi`, ...
        seed:  seed of the clustering.

    Returns: a function of embeddings [N, D] and integer labels [N] (tensors on any device, arrays or lists) ->
    {name: number}. Each image is a query, and all others are its gallery; with `is_query`, [N] booleans, the True ones
    are the queries and the others the gallery. Embeddings are compared as they are: normalise them, or take metrics
    of cosines (`c_recall@1`).

    Raises ValueError for unknown names; a call raises ValueError for embeddings that are not finite, for labels that
    are NaN, and for shapes that do not fit.
    """
    names = [names] if isinstance(names, str) else names
    module = _import_absolute('evaluation', 'metrics', needs=('records', 'utilities'))
    with _user_errors(module):
        for name in names:
            module.parse(name)

    def measure(embeddings, labels, is_query=None):
        embeddings = torch.as_tensor(embeddings).detach()
        labels = _labels_of_images(labels)
        if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1] or not len(labels):
            raise ValueError(f'expected embeddings [N, D] and labels [N], not {[*embeddings.shape]} and '
                             f'{[*labels.shape]}')
        if is_query is not None:
            is_query = torch.as_tensor(is_query).cpu()
            if is_query.shape != labels.shape or not ((is_query == 0) | (is_query == 1)).all():
                raise ValueError(f'expected is_query, {len(labels)} booleans, not {[*is_query.shape]} of '
                                 f'{is_query.dtype}')
            is_query = is_query.bool().numpy()
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

    Returns: a torch.nn.Module, uint8 RGB images [B, 3, H, W] -> embeddings [B, D], without gradients. Its attribute
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
            reason = done.stderr.rpartition('Evaluate_Network.py: error: ')[2].strip()
            raise ValueError(f'{path}: it cannot be loaded: {reason}')
        return _exported(file, device)                       # written just now, in a folder of this user alone


def _import(package, stem):
    """A file of `package`, without its __init__.py, under a private name that two checkouts do not share."""
    private = 'hub_' + re.sub(r'\W', '_', f'{_ROOT}_{package}')
    if private not in sys.modules:
        sys.modules[private] = types.ModuleType(private)
        sys.modules[private].__path__ = [str(_ROOT / package)]
    return importlib.import_module(f'{private}.{stem}')


_method_flags = _import('flags', 'method_flags')
_mined = _import('utilities', 'mined')


@functools.cache
def _files(kind):
    """{name: its file's name without .py}. The registry is read and not imported, since that needs further packages."""
    folder, registry, _ = _KINDS[kind]
    table, = (node.value for node in ast.parse((_ROOT / folder / '__init__.py').read_text()).body
              if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == registry)
    return {name.value: file.id for name, file in zip(table.keys, table.values, strict=True)
            if isinstance(file, ast.Name)}


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


def _module(kind, name):
    if name not in _files(kind):
        raise ValueError(f'{kind} {name!r}: unknown; choose from {", ".join(_files(kind))}')
    return _import(_KINDS[kind][0], _files(kind)[name])


def _own_flags(kind, name):
    """The flags that a method's file declares: {flag: its values}."""
    return _method_flags.declared(_module(kind, name), _KINDS[kind][2].format(name))


def _flags(kind, name):
    """What a method takes: {flag: its values}, those of its file and those of the run and of other files it reads."""
    module = _module(kind, name)
    own = _own_flags(kind, name)
    read = [*getattr(module, 'USES', ()), *re.findall(r'\bopt\.(\w+)', inspect.getsource(module))]
    return own | {flag: _flag_of_others(flag) for flag in dict.fromkeys(read) if flag not in own and flag != 'loss'}


def _flag_of_others(flag):
    """The values of a flag that a method reads, but does not declare."""
    for kind, (_, _, start) in _KINDS.items():
        for name in _files(kind):
            own = _own_flags(kind, name) if flag.startswith(start.format(name)) else {}
            if flag in own:
                return own[flag]
    return _RUN.get(flag, {})


def _inner(loss, settings):
    """The names of the losses inside a loss."""
    flags = getattr(_module('criterion', loss), 'REQUIRES_CRITERIA', ())
    declared = _own_flags('criterion', loss)
    chosen = (settings.get(flag, settings.get(flag.removeprefix(f'loss_{loss}_'), declared[flag]['default']))
              for flag in flags)
    names = [*dict.fromkeys(chosen)]
    if loss in names:
        raise ValueError(f'criterion {loss!r} does not contain itself')
    return names


def _namespace(kind, name, settings, others=()):
    """The namespace that a method takes. others: (kind, name) of methods inside it."""
    start = _KINDS[kind][2].format(name)
    takes = _flags(kind, name)
    for other in others:
        takes |= _flags(*other) if isinstance(other[1], str) else {}
    full = {given: f'{start}{given}' if given not in takes and f'{start}{given}' in takes else given
            for given in settings}
    takes |= {flag: values for flag, values in _RUN.items() if flag not in takes}
    unknown = [given for given, flag in full.items() if flag not in takes]
    if unknown:
        raise TypeError(f'{kind} {name!r}: unknown {", ".join(unknown)}; it takes '
                        f'{", ".join(flag.removeprefix(start) for flag in takes)}')
    for given, flag in full.items():
        expected = _method_flags.expected(takes[flag], settings[given])
        if expected:
            raise ValueError(f'{kind} {name!r}: {given}={settings[given]!r}: expected {expected}')
    defaults = {flag: values['default'] for flag, values in takes.items() if 'default' in values}
    chosen = {full[given]: value for given, value in settings.items()}
    return types.SimpleNamespace(**defaults | {'loss': None} | chosen)


def _built(opt, loss, miner):
    """The Criterion of a loss, with its miner, the losses inside it and parameter_groups()."""
    opt = types.SimpleNamespace(**vars(opt) | {'loss': loss})
    module = _module('criterion', loss)
    if hasattr(module, 'REQUIRES_CRITERIA'):
        def build(name, dim):
            takes_miner = _module('criterion', name).REQUIRES_BATCHMINER
            return _built(types.SimpleNamespace(**vars(opt) | {'embed_dim': dim}), name, miner if takes_miner else None)
        built = module.Criterion(opt, build)
    elif module.REQUIRES_BATCHMINER:
        allowed = module.ALLOWED_MINING_OPS or [*_files('miner')]
        if miner is None or isinstance(miner, str) and miner not in allowed:
            raise ValueError(f'criterion {loss!r}: miner {miner!r}; choose from {", ".join(allowed)}')
        batchminer = _module('miner', miner).BatchMiner(opt) if isinstance(miner, str) else miner
        name = miner if isinstance(miner, str) else 'of yours'
        built = module.Criterion(opt, _mined.fitted(module, batchminer, name))
    else:
        built = module.Criterion(opt)
    return _mined.finished(built)


def _take_call(loss, n_classes, embed_dim, criterion, arguments, named):
    """
    A hook that turns the arguments of a call (batch, labels, indices_tuple, ref_emb, ref_labels) into those of the
    loss, and gives the tuples to its miners. Raises TypeError for keywords that the loss does not take;
    ValueError for tuples of another form, for tuples without a miner and for references that the loss does not take;
    and the errors of _labels_of_batch.
    """
    batch, labels, tuples, references, more = _called_with(*arguments, **named)
    taken = criterion.takes - {'batch', 'labels', 'kwargs'} | _INPUTS
    unknown = [name for name in more if name not in taken]
    if unknown:
        raise TypeError(f'criterion {loss!r}: unknown {", ".join(unknown)}; it takes batch, labels, indices_tuple, '
                        f'ref_emb, ref_labels, {", ".join(sorted(taken))}')
    labels = _labels_of_batch(batch, labels, n_classes, embed_dim)
    if any(value is not None for value in references):
        more |= _reference_keywords(loss, criterion, batch, references, tuples, n_classes)
    miners = [part.batchminer for part in criterion.modules() if hasattr(part, 'batchminer')]
    found = None
    if tuples is not None:
        if not miners:
            raise ValueError(f'criterion {loss!r} takes no tuples of a miner: leave out indices_tuple, or the miner '
                             'of the trainer')
        try:
            found = _mined.checked(tuples, batch)
        except (TypeError, ValueError, RuntimeError, IndexError):
            raise ValueError(f'indices_tuple: {_mined.described(tuples)}; expected three or four tensors of indices, '
                             'as miners of pytorch-metric-learning return them, or triplets [T, 3]') from None
    for miner in miners:
        miner.of_step.tuples = found
        if miner.use == 'own' and miner.takes_masks and isinstance(found, torch.Tensor):
            raise ValueError(f'criterion {loss!r} takes pairs, not triplets: give (anchors, positives, anchors, '
                             'negatives), or two bool masks [B, B]')
    return (), {'batch': batch, 'labels': labels} | more


def _called_with(batch, labels, indices_tuple=None, ref_emb=None, ref_labels=None, **more):
    """The arguments of a call, positional or by name, bound as Python binds them to this signature."""
    return batch, labels, indices_tuple, (ref_emb, ref_labels), more


def _reference_keywords(loss, criterion, batch, given, tuples, n_classes):
    """ref_emb and ref_labels of a call as the keywords of a loss. Raises ValueError where it does not take them."""
    embeddings, labels = given
    if embeddings is None or labels is None:
        raise ValueError('give ref_emb and ref_labels together')
    if 'references' not in criterion.takes:
        raise ValueError(f'criterion {loss!r} compares a batch with itself only: leave out ref_emb and ref_labels')
    if tuples is not None:
        raise ValueError('give indices_tuple or ref_emb, not both: all samples are compared with all references')
    labels = _labels_of_batch(embeddings, labels, n_classes, batch.shape[1])
    return {'references': embeddings, 'reference_labels': labels}


def _zero_without_samples(criterion, batch, labels, **more):
    """The forward() of a criterion, which gives 0 with a graph for a batch without a sample or empty references."""
    references = more.get('references')
    if not len(batch) or references is not None and not len(references):
        return batch.sum() * 0
    return type(criterion).forward(criterion, batch=batch, labels=labels, **more)


def _labels_of_batch(batch, labels, n_classes=None, embed_dim=None):
    """
    The labels as int64 on the batch's device, to which labels on the CPU are copied.

    Raises TypeError for labels that are not integers; ValueError for shapes other than [B, embed_dim] and [B], for two
    devices, and for a class outside 0 ... n_classes − 1. On a GPU the latter is an assertion, for which the host does
    not wait.
    """
    for what, value in (('embeddings [B, D]', batch), ('labels [B]', labels)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f'expected {what}, a tensor, not {"None" if value is None else type(value).__name__}')
    if not batch.is_floating_point():
        raise TypeError(f'expected embeddings of a floating-point type, not {batch.dtype}')
    if batch.dim() != 2 or labels.shape != batch.shape[:1]:
        raise ValueError(f'expected embeddings [B, D] and labels [B], not {[*batch.shape]} and {[*labels.shape]}')
    if embed_dim not in (None, batch.shape[1]):
        raise ValueError(f'expected embeddings [B, {embed_dim}], as embed_dim={embed_dim} says, not {[*batch.shape]}')
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f'expected labels of an integer type, not {labels.dtype}')
    if labels.device.type not in ('cpu', batch.device.type):
        raise ValueError(f'the embeddings are on {batch.device} and the labels on {labels.device}')
    labels = labels.to(batch.device, torch.int64)
    if n_classes is not None and labels.device.type != 'mps' and len(labels):
        in_range = (labels.clamp(0, n_classes - 1) == labels).all()
        if labels.device.type != 'cpu':
            torch._assert_async(in_range, f'expected labels from 0 to {n_classes - 1}')
        elif not in_range:
            raise ValueError(f'expected labels from 0 to {n_classes - 1}, not {labels.min()} to {labels.max()}')
    return labels


def _labels_of_images(labels):
    """The labels [N] of metrics() and sampler() on the CPU; integers as int64. Raises ValueError for NaN."""
    labels = torch.as_tensor(labels).cpu()
    if not labels.is_floating_point():
        return labels.long()
    n_missing = int(labels.isnan().sum())
    if n_missing:
        raise ValueError(f'{n_missing} of the {len(labels)} labels are NaN; leave these images out, or give them a '
                         'class')
    return labels


def _exported(file, device):
    extra = {'description.json': ''}
    program = torch.export.load(file, extra_files=extra)
    if torch.device(device).type != 'cpu':
        from torch.export.passes import move_to_device_pass
        program = move_to_device_pass(program, str(device))
    found = program.module()
    found.requires_grad_(False)
    full_float32 = _import_absolute('utilities', 'device', needs=()).full_float32
    found.forward = full_float32()(found.forward)            # the program itself does not set it
    found.description = json.loads(extra['description.json'])
    found.register_forward_pre_hook(_require_uint8, prepend=True)
    return found


def _require_uint8(network, arguments):
    """A hook. Raises ValueError for images of another type, whose embeddings would mean nothing."""
    for images in arguments:
        if getattr(images, 'dtype', None) != torch.uint8:
            given = getattr(images, 'dtype', type(images).__name__)
            raise ValueError(f'expected {network.description["input"]}, a tensor, not {given}; of images with values '
                             'in [0, 1], (255 * images).round().byte() makes them')


class _Onnx(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        import onnxruntime
        self.session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        self.description = json.loads(self.session.get_modelmeta().custom_metadata_map['description.json'])
        self.register_forward_pre_hook(_require_uint8)

    def forward(self, images):
        embeddings, = self.session.run(None, {'images': images.numpy()})
        return torch.from_numpy(embeddings)
