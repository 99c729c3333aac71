"""One seed per run. What is drawn per epoch or per image is a function of that seed and of the place in the run."""
import random

import numpy as np
import torch


def derive(*numbers):
    """A 64-bit seed from non-negative integers such as (seed, epoch, draw); unlike numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def seed_everything(seed):
    """Seeds the global generators of Python, numpy and torch, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2 ** 32)
    torch.manual_seed(seed)


def generator_states():
    """The states of all global generators, in types that torch.load(weights_only=True) accepts."""
    kind, keys, position, has_gauss, cached_gaussian = np.random.get_state()
    return {'python': random.getstate(),
            'numpy': (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached_gaussian),
            'torch': torch.get_rng_state(),
            'cuda': torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            'mps': torch.mps.get_rng_state() if torch.backends.mps.is_available() else None}


def restore_generator_states(states):
    """Undoes what was drawn since `states = generator_states()`; states of devices that are not here are left out."""
    random.setstate(states['python'])
    kind, keys, *rest = states['numpy']
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states['torch'])
    if len(states['cuda']) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states['cuda'])
    if states['mps'] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states['mps'])
