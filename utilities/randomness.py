"""
One seed per run, --seed. It fixes the initial weights. Each epoch seeds all generators from --seed and the epoch, and
each image's augmentation has a seed made of --seed, the epoch and the image's position in the epoch. The random numbers
of an epoch therefore do not depend on what happened before it, such as a resumption.
"""
import hashlib
import random
from contextlib import contextmanager

import numpy as np
import torch


def derive(*numbers):
    """A 63-bit seed from numbers or strings such as (seed, epoch); different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), 'big') >> 1


def seed_everything(seed):
    """Seeds the global generators of Python, numpy and torch, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2 ** 32)
    torch.manual_seed(seed)


@contextmanager
def seeded(seed, device):
    """Seeds torch's generators of the CPU and of `device` for the block, and restores their states afterwards."""
    generators = [torch.default_generator]
    if device.type == 'mps':
        generators.append(torch.mps._get_default_mps_generator())
    elif device.type != 'cpu':
        generators.append(torch.get_device_module(device).default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def preserved():
    """
    Restores the states of the global generators of Python, numpy and torch after the block: on the CPU and, if this
    process has begun to use GPUs, on the current GPU, which also becomes the current one again.
    """
    states = random.getstate(), np.random.get_state()
    gpus = torch.get_device_module()                         # the CPU's if this torch knows no GPU
    is_used = gpus is not torch.cpu and getattr(gpus, 'is_initialized', gpus.is_available)()        # MPS lacks it
    current = [torch.accelerator.current_device_index()] if is_used else []
    try:
        with torch.random.fork_rng(devices=current):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for index in current:
            torch.accelerator.set_device_index(index)
