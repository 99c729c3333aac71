"""
What makes the host wait for a GPU, found without one: with torch's fake tensors, which have a shape and a device but no
data; and for each miner and loss the operations that do, with the reason.
"""
import contextlib
from unittest import mock

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NUMBER, SHAPE, COPY = 'a number', 'a shape', 'a copy'
LENGTH = 3                                               # of what fake tensors cannot tell

# {name: what the host waits for in each call, with the default flags}. Others wait for nothing.
ANCHORS = 'the number of anchors with a positive and a negative'
MINERS = {
    'random': {NUMBER: 'the number of valid triplets, which random numbers are sampled below'},
    'semihard': {SHAPE: ANCHORS},
    'softhard': {SHAPE: ANCHORS},
    'hard': {SHAPE: ANCHORS},
    'easyhard': {SHAPE: ANCHORS},
    'distance': {SHAPE: ANCHORS},
    'rho_distance': {SHAPE: ANCHORS},
    'random_distance': {SHAPE: ANCHORS},
    'parametric': {SHAPE: ANCHORS},
}
LARGEST = 'the size of the largest class of the batch, which is the width of a matrix or the number of terms'
LOSSES = {
    'hyperbolic': {NUMBER: LARGEST},
    'npair': {SHAPE: 'the number of anchors'},
    'recallatk': {SHAPE: 'the number of positive pairs'},
    'roadmap': {NUMBER: LARGEST},
    'smoothap': {NUMBER: LARGEST},
}
LOSSES_OF_MASKS = {'triplet': {SHAPE: 'the number of positive pairs'}}       # where the miner gives masks
# Masks as triplets, for a loss that takes only these: two shapes, the number of positive pairs and that of triplets.
CONVERSION = [SHAPE, SHAPE]


class Waits(TorchDispatchMode):
    """
    Collects in `found`, inside a FakeTensorMode, what the host would wait for: a NUMBER that is read, a SHAPE that
    depends on data, a COPY from one device to another that is not non_blocking. Goes on with made-up numbers. Mixed
    devices raise an error, as without it.
    """

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors(args, kwargs)
        try:
            result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            name = function.overloadpacket.__name__
            if any(tensor.is_cuda for tensor in given):
                self.found.append(NUMBER if name == '_local_scalar_dense' else SHAPE)
            return {'_local_scalar_dense': number, 'nonzero': places, '_unique2': distinct}[name](args[0])
        if function.overloadpacket.__name__ in ('_to_copy', 'copy_'):
            crossing, blocking = {tensor.device for tensor in [*given, result]}, not non_blocking(args, kwargs)
        else:
            # numbers on the CPU are arguments of a kernel; indices there are copied
            crossing, blocking = {tensor.device for tensor in [*given, *tensors(result)] if tensor.dim()}, True
        if len(crossing) > 1 and blocking:
            self.found.append(COPY)
        # torch fills a mask with one value, and finds the indices of the mask for several
        if function.overloadpacket.__name__ in ('index_put', 'index_put_') and args[2].numel() > 1 and given[0].is_cuda:
            self.found += [SHAPE for index in args[1] if index is not None and index.dtype == torch.bool]
        return result


def tensors(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def non_blocking(args, kwargs):
    return kwargs.get('non_blocking', args[2] if len(args) > 2 else False)


def number(tensor):
    return LENGTH


def places(tensor):
    return tensor.new_zeros(LENGTH, tensor.dim(), dtype=torch.int64)


def distinct(tensor):
    return tensor.new_zeros(LENGTH), tensor.new_zeros(tensor.shape, dtype=torch.int64), tensor.new_zeros(
        LENGTH, dtype=torch.int64)


@contextlib.contextmanager
def fake_gpu():
    """
    Tensors are fake; gives the Waits. A gradient on a GPU needs a real one, so that losses that compute it in the
    forward pass get 0.
    """
    with mock.patch.object(torch.autograd, 'grad', lambda value, inputs: (torch.zeros_like(inputs),)):
        with FakeTensorMode(), Waits() as waits:
            yield waits


def batch_on(device, n_samples=8, dim=4):
    """A batch and its labels."""
    return (torch.randn(n_samples, dim, device=device, requires_grad=True),
            torch.zeros(n_samples, device=device, dtype=torch.int64))
