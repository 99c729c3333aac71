"""Pretrained weights, from a file or downloaded by their library. Files are loaded safely: they cannot run code."""
import re
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import torch

from records import public_code
from utilities import processes
from utilities.errors import UserError
from utilities.files import describe_kind, require_uncompressed


def load(opt, name, backbone):
    """
    Loads --weights, or the pretrained weights unless --not_pretrained, into backbone.network.

    The weights must contain every parameter of the network, and nothing else except a classifier, which is ignored.
    If their names have a prefix, it is dropped, with a note. If they do not fit, the network's library may convert
    them, from other names or another number of patches. Raises UserError if the weights are not available or do not
    fit.
    """
    if opt.weights:
        state, source = read_state_dict(opt.weights), f'--weights {opt.weights}'
    elif opt.not_pretrained:
        return
    elif backbone.download is None:
        raise UserError(f'--arch {name} has no pretrained weights: train from scratch with --not_pretrained, or pass '
                        '--weights FILE')
    else:
        state, source = download(name, backbone), f'the pretrained weights of {name}'
    head = (*backbone.head, 'last_linear.')                  # the classifier's name in pretrainedmodels
    state, prefix, others = without_prefix(state, backbone)
    state = {renamed(key, backbone.renamed): value for key, value in state.items()}
    own = backbone.network.state_dict()
    fit = {key for key in own if key in state and own[key].shape == state[key].shape}
    if backbone.converted and not fit == set(own) == {key for key in state if not key.startswith(head)}:
        state = converted(state, source, name, backbone)
    misfits = [key for key in own if key in state and own[key].shape != state[key].shape]
    fitting = OrderedDict((key, value) for key, value in state.items() if key not in misfits)
    # Only the network's own version: MNASNet needs one, and layers without one convert the names of old weights.
    fitting._metadata = {'': own._metadata['']}
    missing, foreign = backbone.network.load_state_dict(fitting, strict=False)
    missing = [key for key in missing if key not in misfits and not key.endswith('num_batches_tracked')]
    foreign = [key for key in foreign if not key.startswith(head)]
    for problem, keys in (('lack', missing), ('also contain', foreign), ('have other shapes for', misfits)):
        if keys:
            raise UserError(f'{source}: they are not weights of {name}: they {problem} {", ".join(keys[:3])}'
                            + (f' and {len(keys) - 3} more' if len(keys) > 3 else ''))
    if prefix and processes.is_main():
        left = f'; other names are left out ({len(others)}, such as {others[0]})' if others else ''
        print(f'Note: {source}: the names begin with {prefix}, which is dropped{left}', file=sys.stderr)


def without_prefix(state, backbone):
    """
    Finds the prefix, such as `model.` or `module.backbone.`, under which a state dict has the names of the network, or
    at least half of them. Returns its part with this prefix, without it; the prefix; and the other names.
    """
    own, counts = {*backbone.network.state_dict()}, Counter()
    for key in state:
        parts = key.split('.')
        for start in range(len(parts)):
            if renamed('.'.join(parts[start:]), backbone.renamed) in own:
                counts[''.join(f'{part}.' for part in parts[:start])] += 1
    prefix = max(counts, key=lambda prefix: (counts[prefix], not prefix), default='')      # the first of several
    if counts[prefix] < len(own) / 2:                        # other names, which the network's library may convert
        prefix = 'module.' if all(key.startswith('module.') for key in state) else ''
    under = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return under, prefix, [key for key in state if not key.startswith(prefix)]


def converted(state, source, name, backbone):
    try:
        return backbone.converted(backbone.network, state)
    except Exception as error:  # conversions of another network's weights fail in any way
        raise UserError(f'{source}: these are not weights of {name}: the library cannot convert them '
                        f'({type(error).__name__}: {error})') from None


def renamed(key, prefixes):
    """A weight's name in the network: with the network's prefixes, and without the dots of DenseNet's old files."""
    prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
    key = key if prefix is None else prefixes[prefix] + key.removeprefix(prefix)
    return re.sub(r'(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)', r'\1', key)


def read_state_dict(path):
    """
    The state dict in the file `path` (.pth, .pt or .safetensors), which may be a checkpoint of this program, of
    Lightning or of the public code.
    """
    try:
        if Path(path).suffix == '.safetensors':
            from safetensors.torch import load_file
            state = load_file(path)
        else:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    require_uncompressed(path, archive)
            if public_code.is_file(path):
                state = public_code.unpickled(path)
            else:
                state = torch.load(path, map_location='cpu', weights_only=True)
    except UserError as error:
        raise UserError(f'--weights {error}') from None
    except OSError as error:
        raise UserError(f'--weights {path}: {error.strerror or error}') from None
    except ImportError as error:
        raise UserError(f'--weights {path}: needs safetensors ({error}): pip install safetensors') from None
    except Exception as error:  # the unpickler raises anything on a broken file
        raise UserError(f'--weights {path}: not a file of weights only but {describe_kind(path, error)}; expected a '
                        'state dict as torch.save or safetensors writes it') from None
    for key in ('model', 'state_dict'):
        state = state[key] if isinstance(state, dict) and isinstance(state.get(key), dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError(f'--weights {path}: expected a state dict, a mapping from names to tensors')
    return state


def download(name, backbone):
    try:
        return backbone.download()
    except UserError:
        raise
    except Exception as error:  # each library reports a missing network in its own way
        url = getattr(backbone.download, 'url', None) or ''
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        known = re.search(r'-([0-9a-f]{8,64})\.\w+$', url)
        hint = f' (any copy will do whose SHA-256 begins with {known[1]})' if known else ''
        raise UserError(f'--arch {name}: its pretrained weights could not be downloaded: {first_line}\n'
                        f'Download {url or "them"} on another machine and pass the file with --weights FILE{hint}, or '
                        'train from scratch with --not_pretrained.') from None
