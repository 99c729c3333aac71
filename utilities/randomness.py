"""
One seed per run, --seed. It fixes the initial weights; every epoch then starts all generators anew from the seed and
the epoch, and every image's augmentation from the seed, the epoch and the image's place in it. So what a run draws in
an epoch does not depend on what was drawn, imported or resumed before.
"""
import hashlib
import random
from contextlib import contextmanager

import numpy as np
import torch


def derive(*numbers):
    """A 63-bit seed from integers such as (seed, epoch, draw); unlike numbers give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), 'big') >> 1


def seed_everything(seed):
    """Seeds the global generators of Python, numpy and torch, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2 ** 32)
    torch.manual_seed(seed)


@contextmanager
def preserved():
    """Afterwards, the global generators of Python, numpy and torch are as they were before."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
