"""
Encodes the values of a run's state by types that torch.load reads with weights_only: plain values, tensors and lists.

A value that is not plain becomes a tuple (kind, number, place, content). A second reference to the same object becomes
('same', number), so that two names of one list stay two names of one list. The place says where the object was when the
run was built; its content is then restored in place. ('at', place) is an object whose content is stored elsewhere.
"""
import argparse
import collections
import functools
import hashlib
import io
import itertools
import pickle
import random
import sys
import types

import numpy as np
import torch
from tqdm import tqdm

LIBRARIES = {'torch', 'numpy', 'builtins', *sys.stdlib_module_names}
PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device])
CONTAINERS = {kind.__name__: kind for kind in (collections.OrderedDict, collections.Counter, collections.defaultdict,
                                               dict, list, tuple, set, frozenset, collections.deque)}
BY_STATE_DICT = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CHANGEABLE = (dict, list, set, collections.deque, torch.Tensor, np.ndarray, *GENERATORS)
CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
uses = itertools.count()


class Unsaveable(Exception):
    """A value that no checkpoint can hold. Its message says what to do instead."""


def is_left_out(value):
    """Whether a value is never state: code, flags, data sets, progress bars, files opened for writing."""
    is_written = isinstance(value, io.IOBase) and (value.closed or not value.readable())
    return is_written or isinstance(value, (*CODE, argparse.Namespace, torch.utils.data.Dataset, tqdm))


def has_attributes(value):
    """Whether the attributes of a value may be state: an object, except those of torch, numpy and Python itself."""
    if isinstance(value, (torch.nn.Module, types.SimpleNamespace, *BY_STATE_DICT)):
        return True
    return is_own(type(value)) and not is_left_out(value)


def is_own(kind):
    """Whether a class is not one of torch, numpy and Python itself."""
    return kind.__module__.partition('.')[0] not in LIBRARIES


def is_iterator(value):
    return hasattr(type(value), '__next__') and not has_attributes(value) and not is_left_out(value)


def is_tensor(value):
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta


def container_kind(value):
    """The name in CONTAINERS of a container's class or base class; None for other values."""
    return next((name for name, kind in CONTAINERS.items() if isinstance(value, kind)), None)


def is_plain(values):
    """Whether all values are PLAIN: a quick answer, also for thousands of numbers."""
    return PLAIN.issuperset(map(type, values))


def memory(tensor):
    """The address of the memory of a tensor, which its views share."""
    return tensor.untyped_storage().data_ptr()


class Writer:
    """
    place_of: function of a value: its place, or None.
    stored:   {memory(tensor): (('at', place), tensor)} of the tensors whose content is stored elsewhere.
    compares: whether the result is only compared with others; then Unsaveable is not raised.
    """

    def __init__(self, place_of, stored, compares=False):
        self.place_of = place_of
        self.in_memory = dict(stored)
        self.compares = compares
        self.numbers = {}                                     # {id: number}
        self.alive = []                                       # references to the values, so that no id is used again

    def numbered(self, value):
        self.numbers[id(value)] = len(self.alive)
        self.alive.append(value)
        return self.numbers[id(value)]

    def forget(self, n):
        """Forgets all values but the first n, since what they are part of is not saved."""
        for value in self.alive[n:]:
            del self.numbers[id(value)]
        del self.alive[n:]
        self.in_memory = {address: (reference, tensor) for address, (reference, tensor) in self.in_memory.items()
                          if reference[0] == 'at' or reference[1] < n}

    def encode(self, value, is_own=False):
        """is_own: whether a tensor is encoded even if its content is also stored elsewhere."""
        if type(value) in PLAIN:
            return value
        if id(value) in self.numbers:
            return 'same', self.numbers[id(value)]
        place = self.place_of(value)
        kind = container_kind(value)
        if kind:
            if type(value) is not CONTAINERS[kind] and place is None and not self.compares:
                raise Unsaveable(f'is a {type(value).__name__}, which no checkpoint can hold; keep a {kind} instead')
            if kind == 'defaultdict' and place is None and not self.compares:
                raise Unsaveable('is a defaultdict made in training, which no checkpoint can hold; make it where its '
                                 'part is constructed, or keep a dict')
            return kind, self.numbered(value), place, self.content(value)
        if is_tensor(value):
            return self.encode_tensor(value, place, is_own)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            content = torch.from_numpy(np.frombuffer(value.tobytes(), np.uint8).copy())
            dtype = np.lib.format.dtype_to_descr(value.dtype)
            encoded = [dtype, [*value.shape], content]
            if not value.flags.c_contiguous:
                encoded.append([*value.strides])
            return 'array', self.numbered(value), place, encoded
        if isinstance(value, GENERATORS) and not isinstance(value, random.SystemRandom):      # the latter has no state
            return 'generator', self.numbered(value), place, [self.encode(part) for part in read(value)]
        if self.compares:
            return 'at', place, opaque_fingerprint(value)
        if is_iterator(value):
            raise Unsaveable(f'is an iterator ({type(value).__name__}), whose position no checkpoint can hold; count '
                             'what was taken, and move a new iterator on by this number')
        if place is None:
            raise Unsaveable(f'is a {type(value).__name__} made in training, which no checkpoint can hold; make it '
                             'where its part is constructed, or keep numbers, tensors, or lists and dicts of them')
        return 'at', place

    def content(self, container):
        """[encoded content], with a deque's maximal length after it."""
        if isinstance(container, dict):
            return [[[self.encode(key), self.encode(value)] for key, value in container.items()]]
        found = [*container] if is_plain(container) else [self.encode(value) for value in container]
        if isinstance(container, set | frozenset):
            found.sort(key=repr)
        return [found, getattr(container, 'maxlen', None)]

    def encode_tensor(self, tensor, place, is_own):
        reference, base = self.in_memory.get(memory(tensor), (None, None))
        if base is tensor and not is_own:
            return reference
        inside = None if is_own or base is None else position(tensor, base)
        number = self.numbered(tensor)
        if inside is not None:
            return 'view', number, place, [reference, inside]
        if tensor.numel():
            self.in_memory.setdefault(memory(tensor), (('same', number), tensor))
        content = tensor.detach()
        if content.untyped_storage().nbytes() > content.numel() * content.element_size():
            content = content.clone()                         # a view: its base would be stored whole
        has_gaps = content.stride() != tensor.stride() and 0 not in tensor.stride()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        is_leaf = tensor.is_leaf and tensor.requires_grad
        encoded = [content, is_leaf, is_parameter, tensor.device.type != 'cpu']
        if has_gaps:
            encoded.append([*tensor.stride()])
        return 'tensor', number, place, encoded


def position(tensor, base):
    """
    The position of a tensor in the memory of a contiguous `base`: [size, stride, offset]; [] if it is the whole base,
    which need not be contiguous; None if it is not inside.
    """
    if tensor.dtype != base.dtype:
        return None
    offset = tensor.storage_offset() - base.storage_offset()
    if (tensor.shape, tensor.stride(), offset) == (base.shape, base.stride(), 0):
        return []
    last = offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not base.is_contiguous() or offset < 0 or last >= base.numel():
        return None
    return [[*tensor.shape], [*tensor.stride()], offset]


def opaque_fingerprint(value):
    """
    A value that changes if an opaque value changes, or None; for an iterator, it is new in each call. It is the same in
    another process.
    """
    if is_iterator(value):
        return next(uses)
    if is_left_out(value) or has_attributes(value):           # attributes are compared one by one
        return None
    try:
        return hashlib.blake2b(pickle.dumps(value)).hexdigest()
    except Exception:                                         # pickle raises anything
        return None


def read(generator):
    """A random generator -> (the name of its kind, its state, and what is needed to make it)."""
    if isinstance(generator, torch.Generator):
        return 'torch', generator.get_state(), generator.device.type
    if isinstance(generator, np.random.Generator):
        return 'numpy', generator.bit_generator.state, type(generator.bit_generator).__name__
    if isinstance(generator, np.random.RandomState):
        return 'RandomState', generator.get_state(legacy=False), None
    return 'random', generator.getstate(), None


def made(name, of, device):
    """A new generator of the kind that read() returned."""
    if name == 'torch':
        return torch.Generator(device if of != 'cpu' else 'cpu')
    if name == 'numpy':
        kind = {kind.__name__: kind for kind in np.random.BitGenerator.__subclasses__()}[of]
        return np.random.Generator(kind())
    return np.random.RandomState() if name == 'RandomState' else random.Random()


def set_state(generator, state):
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def parts(encoded):
    """
    Yields an encoded value and, depth first, its parts: tuples and lists before their elements. A list of PLAIN values
    is one part.
    """
    yield encoded
    if is_nested(encoded):
        for part in encoded:
            yield from parts(part)


def is_nested(encoded):
    return type(encoded) in (tuple, list) and not is_plain(encoded)


def digest(encoded):
    """A hash of an encoded value, as text."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts(encoded):
        if isinstance(part, torch.Tensor):
            found.update(f'{part.dtype} {[*part.shape]}'.encode())
            found.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            text = f'{type(part).__name__} {len(part)}' if is_nested(part) else repr(part)
            found.update(text.encode())
    return found.hexdigest()


class Reader:
    """
    things: {place: object} of the run whose state is restored.
    values: encoded values, which may refer to one another.
    device: of the run, to which new tensors go that were not on the CPU.
    """

    def __init__(self, things, values, device):
        self.things = things
        self.device = device
        self.made = {}                                        # {number: decoded value}
        self.encoded = {part[1]: part for part in parts([*values]) if type(part) is tuple and len(part) == 4}

    def decode(self, encoded):
        """Raises KeyError with the place of an object that does not exist."""
        if type(encoded) is not tuple:
            return encoded
        kind, number, *rest = encoded
        if kind == 'at':
            return self.things[number]
        if number in self.made:
            return self.made[number]
        if kind == 'same':
            return self.decode(self.encoded[number])
        place, content = rest
        self.made[number] = self.decode_as(kind, number, self.things.get(place), content)
        return self.made[number]

    def decode_as(self, kind, number, present, content):
        """present: the object that gets the content, if it is of the right kind; None: a new object is made."""
        if kind == 'view':
            return view(self.decode(content[0]).detach(), content[1])
        if kind == 'tensor':
            return self.tensor(present, *content)
        if kind == 'array':
            return array(present, *content)
        if kind == 'generator':
            name, state, of = map(self.decode, content)
            present = present if isinstance(present, GENERATORS) else made(name, of, self.device)
            set_state(present, state)
            return present
        return self.container(CONTAINERS[kind], number, present, *content)

    def container(self, kind, number, present, content, maxlen=None):
        if kind in (tuple, frozenset):
            make = getattr(present, '_make', kind)            # only named tuples have _make
            return make(map(self.decode, content))
        if not isinstance(present, kind):
            present = kind([], maxlen) if kind is collections.deque else kind()
        self.made[number] = present                           # it may contain itself
        decoded = [[*map(self.decode, part)] if isinstance(present, dict) else self.decode(part) for part in content]
        present.clear()
        if isinstance(present, dict):
            for key, value in decoded:
                present[key] = value
        elif isinstance(present, set):
            present.update(decoded)
        else:
            present.extend(decoded)
        return present

    @torch.no_grad()
    def tensor(self, present, content, requires_grad, is_parameter, is_on_device, stride=None):
        if is_tensor(present) and present.shape == content.shape and present.dtype == content.dtype:
            return present.copy_(content)
        if stride:                                            # the order of a sum depends on the layout
            content = torch.empty_strided(content.shape, stride, dtype=content.dtype).copy_(content)
        found = content.to(self.device if is_on_device else 'cpu')
        return torch.nn.Parameter(found, requires_grad) if is_parameter else found.requires_grad_(requires_grad)


def view(base, position):
    if not position:
        return base
    size, stride, offset = position
    base = base.contiguous()                                  # it may be laid out for another device
    return base.as_strided(size, stride, base.storage_offset() + offset)


def array(present, dtype, shape, content, strides=None):
    found = np.frombuffer(content.numpy().tobytes(), np.lib.format.descr_to_dtype(dtype)).reshape(shape)
    if isinstance(present, np.ndarray) and present.shape == found.shape and present.dtype == found.dtype:
        present[...] = found
        return present
    if not strides:
        return found.copy() if shape else found.copy()[()]
    ends = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    first = -sum(end for end in ends if end < 0)
    memory = np.empty(sum(map(abs, ends)) + found.itemsize, np.uint8)
    laid_out = np.ndarray(shape, found.dtype, memory, first, strides)            # the order of a sum depends on it
    laid_out[...] = found
    return laid_out
