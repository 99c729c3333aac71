"""Notes on state of a criterion, miner or sampler that changes in training but is in no checkpoint."""
import hashlib
import inspect
import numbers
import sys
from pathlib import Path

import numpy as np
import torch


class Watch:
    """
    Remembers the attributes of the `parts` in the first epoch of a process, after start_epoch() and set_epoch(). After
    the next checkpoint, note() names each attribute whose tensors, arrays or numbers (also in lists and dicts) have
    changed and are in no state dict: a resumed run would go on without them. The dict `log`, which is only
    recorded, does not count.
    """

    def __init__(self, parts):
        self.before = [(part, values_of(part)) for part in parts if part is not None]

    def note(self):
        for part, known in self.before:
            saved = {*digests(part.state_dict())} if hasattr(part, 'state_dict') else set()
            for (owner, name), values in values_of(part).items():
                changed = {*values} - {*known.get((owner, name), values)}
                if not changed <= saved:
                    print(f'Note: {sentence(owner, name)}', file=sys.stderr)
        self.before = []


def values_of(part):
    """{(the part or a module inside it, name of an attribute): digests} of all attributes that may be state."""
    if isinstance(part, torch.nn.Module):
        owners = [*part.modules()]
    else:
        owners = part if isinstance(part, list) else [part]           # the miners of a sum are a list, None for none
    found = {}
    for owner in owners:
        if owner is None:
            continue
        attributes = {name: value for name, value in vars(owner).items()
                      if name not in ('log', '_modules', '_parameters', '_buffers')}
        attributes |= vars(owner).get('_buffers', {})
        found |= {(owner, name): [*digests(value)] for name, value in attributes.items()}
    return found


def digests(value, seen=()):
    """Yields a hash or text of each tensor, array and number in a value, and in its lists and dicts."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(value, np.ndarray):
        yield hashlib.blake2b(value.tobytes()).hexdigest()
    elif isinstance(value, numbers.Number):
        yield repr(value)
    elif isinstance(value, dict | list | tuple) and id(value) not in seen:
        values = value.values() if isinstance(value, dict) else value
        for part in values:
            yield from digests(part, (*seen, id(value)))


def sentence(owner, name):
    """What to do about the attribute `name` of a part."""
    file = Path(inspect.getsourcefile(type(owner)))
    place = f'{file.parent.name}/{file.name}: self.{name} changes in training but is not saved'
    if isinstance(owner, torch.nn.Module):
        return f"{place}; register it: self.register_buffer('{name}', ...)"
    return f'{place}; add it to state_dict() and load_state_dict()'
