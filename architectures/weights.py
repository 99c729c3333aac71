"""Pretrained weights, from a file or downloaded by their library. Files are loaded safely: they cannot run code."""
import re
import sys
from collections import Counter, OrderedDict
from pathlib import Path

import torch

from architectures.embedding_network import Backbone
from flags.command_line import shortened
from records import public_code
from utilities import processes
from utilities.errors import UserError
from utilities.files import OTHER_OBJECTS, describe_kind

USUAL_PLACES = ('model.state_dict', 'model', 'state_dict', '')        # places of weights in a file; the first counts
WRAPPERS = ('module', '_orig_mod')            # parts of names that DataParallel and torch.compile add


def load(opt, name, backbone):
    """
    Loads --weights, or else the pretrained weights, into backbone.network.

    The weights must contain every parameter of the network, and nothing else except a classifier, which is ignored.
    If their names have a prefix, it is dropped, with a note. If they do not fit, the network's library may convert
    them, from other names or another number of patches. Raises UserError if they are not available or do not fit.
    """
    keys = ''
    if opt.weights:
        state, keys = read_state_dict(opt.weights, lambda found: find_prefix(found, backbone) is not None)
        source = f'--weights {opt.weights}'
    elif not backbone.url and not backbone.download:
        raise UserError(f'--arch {name} has no pretrained weights: train from scratch with --not_pretrained, or pass '
                        '--weights FILE')
    else:
        state, source = download(name, backbone), f'the pretrained weights of {name}'
    head = (*backbone.head, 'last_linear.')                  # the classifier's name in pretrainedmodels
    state, prefix, others = without_prefix(state, backbone)
    own = backbone.network.state_dict()
    fit = {key for key in own if key in state and own[key].shape == state[key].shape}
    if backbone.converted and not fit == set(own) == {key for key in state if not key.startswith(head)}:
        state = converted(state, source, name, backbone)
    misfits = [key for key in own if key in state and own[key].shape != state[key].shape]
    fitting = OrderedDict((key, value) for key, value in state.items() if key not in misfits)
    # Give the version number of the whole network only: MNASNet does not load without it, and layers that find none
    # convert old names.
    fitting._metadata = {'': own._metadata['']}
    missing, foreign = backbone.network.load_state_dict(fitting, strict=False)
    missing = [key for key in missing if key not in misfits and not key.endswith('num_batches_tracked')]
    foreign = [key for key in foreign if not key.startswith(head)]
    require_fit(f'{source}: they are not weights of {name}', missing, foreign, misfits, keys)
    if prefix and processes.is_main():
        left = f'; other names are left out ({len(others)}, such as {others[0]})' if others else ''
        print(f'Note: {source}: the names begin with {prefix}, which is dropped{left}', file=sys.stderr)


def load_whole(network, path):
    """
    Loads the state dict of a whole EmbeddingNetwork, written by another program (--start_from). Its names are those of
    the network, perhaps with one prefix. Raises UserError if it does not fit.
    """
    whole = Backbone(network, None)
    state, keys = read_state_dict(path, lambda found: find_prefix(found, whole) is not None, '--start_from')
    state, prefix, _ = without_prefix(state, whole)
    own = network.state_dict()
    require_fit(f'--start_from {path}: its weights do not fit the network of this run (--weights takes those of a '
                'backbone)', [key for key in own if key not in state],
                [key for key in state if key not in own],
                [key for key in own if key in state and own[key].shape != state[key].shape], keys)
    network.load_state_dict(state)
    print(f'started from {path}{f", without {prefix} before the names" if prefix else ""}')


def require_fit(what, missing, foreign, misfits, file_keys):
    """
    Raises UserError, beginning with `what`, if weights are missing, are unknown or have other shapes. file_keys: of the
    file, as read_state_dict gives them.
    """
    for problem, keys in (('lack', missing), ('also contain', foreign), ('have other shapes for', misfits)):
        if keys:
            raise UserError(f'{what}: they {problem} {", ".join(keys[:3])}'
                            + (f' and {len(keys) - 3} more' if len(keys) > 3 else '')
                            + (f'; the file has the keys {file_keys}' if file_keys else ''))


def find_prefix(state, backbone):
    """
    The prefix, such as `model.` or `module.backbone.`, with which a state dict has most names of the network, and at
    least half of them; the first of several. None if there is none.
    """
    own = {*backbone.network.state_dict()}
    counts = Counter()
    for key in state:
        parts = key.split('.')
        for start in range(len(parts)):
            if renamed(unwrapped(parts[start:]), backbone.renamed) in own:
                counts[''.join(f'{part}.' for part in parts[:start])] += 1
    prefix = max(counts, key=lambda prefix: (counts[prefix], not prefix), default='')
    return prefix if counts[prefix] >= len(own) / 2 else None


def unwrapped(parts):
    """The parts of a weight's name, joined, without those in WRAPPERS; the first part always stays."""
    return '.'.join(part for i, part in enumerate(parts) if not i or part not in WRAPPERS)


def without_prefix(state, backbone):
    """
    Returns the entries of a state dict under the network's prefix, by the names that they have in the network; the
    prefix; and the names of the other entries. Without such a prefix, `module.` is dropped where all names have it.
    """
    prefix = find_prefix(state, backbone)
    if prefix is None:                                       # other names, which the network's library may convert
        prefix = 'module.' if all(key.startswith('module.') for key in state) else ''
    under = {renamed(unwrapped(key.removeprefix(prefix).split('.')), backbone.renamed): value
             for key, value in state.items() if key.startswith(prefix)}
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


def read_state_dict(path, fits=bool, flag='--weights'):
    """
    The state dict in the file `path` (.pth, .pt or .safetensors), which may be a checkpoint of this program, of
    Lightning, of the public code or of another program; and the keys of the file as a text, '' where they are the names
    of the weights.

    fits: function of a state dict: whether it has the names of the network; this chooses among several in the file.
    """
    content = read_file(path, flag)
    found = state_dicts(content)
    keys = shortened(', '.join(map(str, content)), 200) if isinstance(content, dict) else ''
    fitting = [place for place, state in found.items() if fits(state)]
    candidates = fitting or [*found]
    chosen = [place for place in USUAL_PLACES if place in candidates][:1] or candidates
    if len(chosen) != 1:
        which = f'{", ".join(fitting)} all have' if fitting else 'none has'
        has = f'the keys {keys}' if keys else type(content).__name__
        raise UserError(f'{flag} {path}: expected a state dict, a mapping from names to tensors, or one of them in a '
                        f'mapping, but {which} the names of the network; the file has {has}')
    place, = chosen
    return found[place], keys if place else ''


def state_dicts(content, place=''):
    """{place: mapping} of the mappings from names to tensors in the content of a file, such as `net` or `model.ema`."""
    if not isinstance(content, dict) or not content:
        return {}
    if all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()):
        return {place: content}
    found = {}
    for name, value in content.items():
        found |= state_dicts(value, f'{place}.{name}' if place else str(name))
    return found


def read_file(path, flag):
    try:
        if Path(path).suffix == '.safetensors':
            from safetensors.torch import load_file
            return load_file(path)
        return public_code.unpickled(path)
    except UserError as error:
        raise UserError(f'{flag} {error}') from None
    except OSError as error:
        raise UserError(f'{flag} {path}: {error.strerror or error}') from None
    except ImportError as error:
        raise UserError(f'{flag} {path}: needs safetensors ({error}): pip install safetensors') from None
    except Exception as error:  # the unpickler raises anything on a broken file
        kind = describe_kind(path, error)
        extract = ''
        if kind.startswith(OTHER_OBJECTS):
            extract = ('. Reading them could run code of whoever wrote the file; if you trust them, write the weights '
                       f'alone, for example by: python -c "import torch; content = torch.load({str(path)!r}, \'cpu\', '
                       'weights_only=False); print(content.keys()); torch.save(content[\'state_dict\'], '
                       '\'weights.pth\')"')
        raise UserError(f'{flag} {path}: not a file of weights only but {kind}; expected a state dict as torch.save or '
                        f'safetensors writes it{extract}') from None


def download(name, backbone):
    try:
        if backbone.download:
            return backbone.download()
        return torch.hub.load_state_dict_from_url(backbone.url, map_location='cpu', check_hash=True, weights_only=True)
    except UserError:
        raise
    except Exception as error:  # every library has its own error for a missing network
        url = backbone.url or ''
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        known = re.search(r'-([0-9a-f]{8,64})\.\w+$', url)
        hint = f' (any copy will do whose SHA-256 begins with {known[1]})' if known else ''
        raise UserError(f'--arch {name}: its pretrained weights could not be downloaded: {first_line}\n'
                        f'Download {url or "them"} on another machine and pass the file with --weights FILE{hint}, or '
                        'train from scratch with --not_pretrained.') from None
