"""Pretrained weights, from a file or downloaded by their library. Files are loaded safely: they cannot run code."""
from pathlib import Path

import torch

from utilities.errors import UserError


def load(opt, name, backbone):
    """
    Loads --weights into backbone.network, or else the pretrained weights, unless --not_pretrained is given.

    The weights must contain every parameter of the network, and nothing else except a classifier, which is ignored.
    Raises UserError if the weights are not available or do not fit.
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
    network = backbone.network.state_dict()
    missing = [key for key in network if key not in state and not key.endswith('num_batches_tracked')]
    additional = [key for key in state if key not in network and not key.startswith(backbone.head)]
    misfits = [key for key in network if key in state and network[key].shape != state[key].shape]
    for problem, keys in (('lack', missing), ('also contain', additional), ('have other shapes for', misfits)):
        if keys:
            raise UserError(f'{source}: they are not weights of {name}: they {problem} {", ".join(keys[:3])}'
                            + (f' and {len(keys) - 3} more' if len(keys) > 3 else ''))
    backbone.network.load_state_dict({key: state[key] for key in network if key in state}, strict=False)


def read_state_dict(path):
    """The state dict of the backbone in the file `path` (.pth, .pt, .safetensors, or a checkpoint of this program)."""
    try:
        if Path(path).suffix == '.safetensors':
            from safetensors.torch import load_file
            state = load_file(path)
        else:
            state = torch.load(path, map_location='cpu', weights_only=True)
    except OSError as error:
        raise UserError(f'--weights {path}: {error.strerror or error}') from None
    except Exception as error:  # broken files raise all kinds of exceptions
        raise UserError(f'--weights {path}: not a file of weights only ({first_line(error)})') from None
    for key in ('model', 'state_dict'):
        state = state[key] if isinstance(state, dict) and isinstance(state.get(key), dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError(f'--weights {path}: expected a state dict, a mapping from names to tensors')
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    own = {key.removeprefix('backbone.'): value for key, value in state.items() if key.startswith('backbone.')}
    return own or state


def first_line(error):
    return next(iter(str(error).splitlines()), type(error).__name__)


def download(name, backbone):
    try:
        return backbone.download()
    except Exception as error:  # each library reports a missing connection in its own way
        url = getattr(backbone.download, 'url', None)
        raise UserError(f'--arch {name}: its pretrained weights could not be downloaded: {first_line(error)}\n'
                        f'Download {url or "them"} on another machine and pass the file with --weights FILE, or train '
                        'from scratch with --not_pretrained.') from None
