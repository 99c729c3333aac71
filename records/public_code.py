"""
A checkpoint of the public code of Roth et al., checkpoint_*.pth.tar: the weights of its network, its flags and the
metrics so far. It takes the place of a checkpoint of this program wherever a trained network is read.
"""
import argparse
from pathlib import Path

import numpy as np
import torch

from utilities.errors import UserError
from utilities.files import describe_kind

ENDING = '.pth.tar'
# flags of the machine and the folder of that run, and keys, which are secret
NOT_TAKEN = ('device', 'save_path', 'savename', 'wandb_key', 'comet_api_key')


class ProgressSaver:
    """Takes the place of the class of the metrics in such a file: it is not imported, and they are not read."""


# What may be unpickled beside tensors and plain values. numpy 2 has another name for the function that makes a scalar.
SCALAR = np.float64(0).__reduce__()[0]
ALLOWED = [argparse.Namespace, (ProgressSaver, 'utilities.logger.Progress_Saver'), np.dtype,
           *((SCALAR, f'numpy.{core}.multiarray.scalar') for core in ('core', '_core')),
           *{type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['Float'] + '?'}]


def is_file(place):
    return str(place).endswith(ENDING)


def read(path):
    """
    The network in a file of the public code as a checkpoint of this program has it: {'settings': {flag: value},
    'epoch', 'model': state dict}. `source_path` is the folder with the folders of the data sets, as here.

    Raises UserError where it is not such a file.
    """
    try:
        states = unpickled(path)
    except OSError as error:
        raise UserError(f'{path}: {error.strerror or error}') from None
    except Exception as error:  # the unpickler raises anything on a broken file
        raise UserError(f'{path}: not a checkpoint of the public code but {describe_kind(path, error)}') from None
    entries = states if isinstance(states, dict) else {}
    weights = entries.get('state_dict')
    opt = entries.get('opt')
    if not isinstance(opt, argparse.Namespace) or not isinstance(weights, dict):
        raise UserError(f'{path}: not a checkpoint of the public code: expected the entries state_dict (its '
                        'weights) and opt (its flags)')
    settings = {name: value for name, value in vars(opt).items() if name not in NOT_TAKEN}
    if Path(str(settings.get('source_path'))).name == settings.get('dataset'):
        settings['source_path'] = str(Path(settings['source_path']).parent)          # there, the data set's own folder
    epoch = settings.pop('epoch', -1)
    if isinstance(epoch, int):
        epoch += 1                                                                   # there, counted from 0
    return {'settings': settings, 'epoch': epoch, 'model': renamed(weights)}


def unpickled(path):
    """What torch.save wrote to a file of the public code. Objects other than ALLOWED raise an error of torch."""
    with torch.serialization.safe_globals(ALLOWED):
        return torch.load(path, map_location='cpu', weights_only=True)


def renamed(weights):
    """
    The state dict of a network of the public code -> that of an EmbeddingNetwork: `model` is the backbone, and its
    last_linear the embedding layer. `layer_blocks` holds the blocks of `model` a second time.
    """
    state = {}
    for name, value in weights.items():
        if name.startswith('model.last_linear.'):
            state[name.replace('model.last_linear', 'f_embed')] = value
        elif name.startswith('model.'):
            state[name.replace('model', 'backbone', 1)] = value
        elif not name.startswith('layer_blocks.'):
            state[name] = value                              # a name that no network of this program has
    return state
