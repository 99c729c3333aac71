"""
A trained network in a folder for others: weights as safetensors, which cannot hold code, and the config.json from which
the network is built. Such a folder takes the place of a run folder wherever a trained network is read.
"""
import hashlib
import json
from pathlib import Path

from utilities.errors import UserError
from utilities.files import describe_kind, file_hash

CONFIG = 'config.json'
BACKBONE = 'model.safetensors'                   # the backbone's weights, with the names of its library
REST = 'embedding.safetensors'                   # all other weights
ENTRY = 'embedding_network'                      # in config.json, beside the entries of timm


def is_folder(place):
    """Whether `place` is such a folder, and not a run folder."""
    return (Path(place) / CONFIG).is_file()


def write(folder, state, flags, epoch, description):
    """
    Adds the weights of an EmbeddingNetwork and their description to `folder`, which may have a config.json already.

    Args:
        state:       its state dict, on the CPU.
        flags:       {name: value} of the flags that describe the network and its input.
        epoch:       the epoch after which the weights were saved.
        description: {name: text} for those who read config.json.
    """
    from safetensors.torch import save_file  # imported here, since runs do not need it
    parts = {BACKBONE: {}, REST: {}}
    for name, tensor in state.items():
        file = BACKBONE if name.startswith('backbone.') else REST
        parts[file][name.removeprefix('backbone.')] = tensor.clone().contiguous()      # the format shares no memory
    for file, tensors in parts.items():
        save_file(tensors, folder / file, {'format': 'pt'})
    config = json.loads((folder / CONFIG).read_text(encoding='utf-8')) if is_folder(folder) else {}
    entry = description | {'epoch': epoch, 'flags': flags, 'sha256': {file: file_hash(folder / file) for file in parts}}
    entry['sha256'][CONFIG] = checksum(entry)
    config[ENTRY] = entry
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')


def checksum(entry):
    """SHA-256 of what config.json says of the network, and of the checksums of its weights."""
    sums = {file: value for file, value in entry.get('sha256', {}).items() if file != CONFIG}
    return hashlib.sha256(json.dumps(entry | {'sha256': sums}, sort_keys=True).encode()).hexdigest()


def require_unchanged(folder, entry):
    """Raises UserError where weights or config.json are not as they were written; earlier folders have no checksums."""
    sums = entry.get('sha256', {})
    if not isinstance(sums, dict):
        raise UserError(f'{folder}/{CONFIG}: sha256 is no mapping; download or export it again')
    for file, expected in sums.items():
        path = Path(folder) / Path(file).name
        if path.is_file() and expected != (checksum(entry) if file == CONFIG else file_hash(path)):
            raise UserError(f'{path}: it was changed, or damaged, since it was exported (its SHA-256 differs); '
                            'download or export it again')


def read(folder):
    """
    The network in `folder` as a checkpoint has it: {'settings': {flag: value}, 'epoch', 'model': state dict}.

    Raises UserError where config.json does not describe a network of this program, or a file holds no weights.
    """
    config = Path(folder) / CONFIG
    try:
        entry = json.loads(config.read_text(encoding='utf-8'))[ENTRY]
        flags = dict(entry['flags'])
        epoch = int(entry['epoch'])
    except OSError as error:
        raise UserError(f'{config}: {error.strerror}') from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f'{config}: it does not describe an embedding network of this program ({ENTRY}); for a '
                        f'backbone alone, give --arch timm:local-dir:{folder}') from None
    require_unchanged(folder, entry)
    if str(flags.get('arch')).count(':') > 1:
        raise UserError(f'{config}: arch {flags["arch"]}: expected a network without a place from which to load it')
    state = {f'backbone.{name}': tensor for name, tensor in read_weights(Path(folder) / BACKBONE).items()}
    state |= read_weights(Path(folder) / REST)
    return {'settings': flags, 'epoch': epoch, 'model': state}


def check_flags(folder, flags, known):
    """Raises UserError for flags of config.json that are not among the `known` ones, which describe a network."""
    foreign = sorted(flags.keys() - {*known})
    if foreign:
        raise UserError(f'{Path(folder) / CONFIG}: {", ".join(foreign)}: no flags of a network; it was changed')


def read_weights(file):
    """{name: tensor} of a safetensors file."""
    try:
        from safetensors.torch import load_file
        return load_file(file)
    except OSError as error:
        raise UserError(f'{file}: {error.strerror or error}') from None
    except ImportError as error:
        raise UserError(f'{file}: needs safetensors ({error}): pip install safetensors') from None
    except Exception as error:  # the format's own errors
        raise UserError(f'{file}: not weights in the format safetensors but {describe_kind(file, error)}') from None
