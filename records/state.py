"""
The state of a run: the attributes of its parts, beside the state dicts in a checkpoint (docs/state.md).

A State records the values of all attributes when the run is built. A checkpoint stores those that have changed since. A
resumed run is built from the same flags, and its attributes are then set to the stored values.
"""
import collections
import copy
import sys
import types
import weakref

import numpy as np
import torch

from records import encoding
from records.encoding import BY_STATE_DICT, CODE, PLAIN, Reader, Unsaveable, Writer, is_plain, is_tensor
from utilities import exchange, processes

LEFT_OUT = {'log', 'of_step'}                     # attributes that hold nothing beyond a step
OF_MODULES = {*vars(torch.nn.Module())} - {'training'}
NETWORKS = ('model', 'ema')
MODE = {'training', 'warming_up'}                 # attributes of networks that every epoch and evaluation sets
TRAINED = ('model', 'criterion', 'ema')           # parts that a trained network needs
DELETED = ('deleted',)                            # in the place of the encoded value of a deleted attribute
LARGE = 100e6                                     # bytes


class State:
    """
    built:  the object whose attributes are the parts of a run.
    stored: modules and optimizers that a checkpoint stores by their state dicts, or that never change.
    device: of the run.

    objects:  {place: object} of all objects whose attributes may be state. A place is a Python expression, such as
              criterion.queue[0]; '' is `built` itself.
    as_built: {place: {name: text that identifies the attribute's value when the run was built, by fingerprint()}}.
    constant: {(place, name): the value itself} of those with an immutable value, and of functions and classes.
    tensors:  the places of all tensors, the same in all processes.
    changed:  (place, name) of the attributes whose values have differed from those as built. They are saved from then
              on; only plain values are compared again.
    """

    def __init__(self, built, stored, device):
        self.device = device
        self.stored = {id(part) for one in stored for part in (one.modules() if is_module(one) else [one])}
        self.places, self.objects = reached(built, self.stored)
        # the parts of a trained network are encoded first, so that they contain no references to other parts
        self.objects = dict(sorted(self.objects.items(), key=lambda item: root(item[0]) not in TRAINED))
        self.as_built = {}
        self.constant = {}
        by_memory = self.by_memory()
        for place, thing in self.objects.items():
            self.as_built[place] = {}
            for name, value in attributes(thing, place).items():
                self.as_built[place][name] = self.fingerprint(thing, name, value, by_memory)
                is_plain_tuple = type(value) is tuple and is_plain(value)
                is_constant = type(value) in PLAIN or is_plain_tuple or isinstance(value, CODE)
                if is_constant and not self.is_always_saved(thing, name):
                    self.constant[place, name] = value
        self.required_grad = {place: leaf.requires_grad for place, leaf in self.leaves().items()}
        self.tensors = [place for place, thing in self.things().items() if isinstance(thing, torch.Tensor)]
        self.changed = set()
        self.noted = set()

    def place_of(self, value):
        """The place of an object; None if it did not exist when the run was built."""
        found, place = self.places.get(id(value), (None, None))
        return place if found and found() is value else None

    def things(self):
        """{place: object} of the objects that still exist."""
        found = {place: thing() for thing, place in self.places.values()}
        return {place: thing for place, thing in found.items() if thing is not None}

    def leaves(self):
        """{place: tensor} of the parameters and the other leaf tensors that require a gradient."""
        return {place: thing for place, thing in self.things().items()
                if isinstance(thing, torch.nn.Parameter) or is_tensor(thing) and thing.is_leaf and thing.requires_grad}

    def stored_tensors(self):
        """{place: tensor} of the tensors that a checkpoint stores in state dicts."""
        return {joined(place, name): tensor for place, thing in self.objects.items() if is_module(thing)
                for name, tensor in (thing._parameters | thing._buffers).items()
                if is_tensor(tensor) and self.is_stored(thing, name)}

    def is_stored(self, thing, name):
        """Whether an attribute is a parameter or a buffer that a checkpoint stores in a state dict."""
        return id(thing) in self.stored and is_module(thing) and (
            name in thing._parameters or name in thing._buffers and name not in thing._non_persistent_buffers_set)

    def is_always_saved(self, thing, name):
        """Whether an attribute is a parameter or buffer of a module without a stored state dict; it is always saved."""
        return id(thing) not in self.stored and is_module(thing) and (
            name in thing._parameters or name in thing._buffers)

    def by_memory(self):
        """
        The argument `stored` of a Writer: {memory of a tensor: (its place, the tensor)} of the tensors in state dicts.
        Tensors that were registered or changed in shape during training are left out: they are saved as attributes.
        """
        found = {}
        for place, tensor in self.stored_tensors().items():
            owner, _, name = place.rpartition('.')
            is_late = self.as_built and self.as_built[owner].get(name) != form_of(tensor)
            if tensor.numel() and not is_late:
                found.setdefault(encoding.memory(tensor), (('at', place), tensor))
        return found

    def fingerprint(self, thing, name, value, by_memory):
        """
        A text that identifies the value of an attribute: for a tensor its type and shape and, unless it is
        saved in any case (is_stored, is_always_saved), a hash.
        """
        if self.is_stored(thing, name) or self.is_always_saved(thing, name):
            return form_of(value)
        if type(value) in PLAIN:
            return encoding.digest(value)
        return form_of(value) + encoding.digest(Writer(self.place_of, by_memory, compares=True).encode(value))

    # Saving

    def save(self):
        """
        Returns the state for a checkpoint in process 0, None elsewhere. All processes call it.

        attributes: {place: [class of the object, {name: [encoded value or DELETED, fingerprint() of the value as built,
                    whether it is a persistent buffer (None: no buffer)]}]}.
        gradients:  {place: [gradients of the n processes [n, N], which of them have one]} of the tensors that have a
                    gradient between two steps, because it is being accumulated.
        frozen:     {place: requires_grad} of the parameters for which it has changed.
        """
        leaves = self.leaves()
        gradients = self.gradients(leaves)
        if not processes.is_main():
            return None
        frozen = {place: leaf.requires_grad for place, leaf in leaves.items()
                  if leaf.requires_grad != self.required_grad.get(place)}
        found = {'attributes': self.changed_attributes(), 'gradients': gradients, 'frozen': frozen}
        return {name: value for name, value in found.items() if value}

    def changed_attributes(self):
        """The entry `attributes` of save(). Prints a note on attributes that cannot be saved."""
        by_memory = self.by_memory()
        writer = Writer(self.place_of, by_memory)
        saved = {}
        for place, thing in self.objects.items():
            present = attributes(thing, place)
            found = {name: DELETED for name in self.as_built[place] if name not in present}
            for name, value in present.items():
                if not self.has_changed(place, thing, name, value, by_memory):
                    continue
                n_encoded = len(writer.alive)
                try:
                    is_own = self.is_stored(thing, name) or self.is_always_saved(thing, name)
                    encoded = writer.encode(value, is_own)
                    if encoded == ('at', joined(place, name)) and encoded[1] not in self.objects:
                        raise Unsaveable(f'is a {type(value).__name__} that has changed in place, which no checkpoint '
                                         'can hold; keep numbers, tensors, or lists and dicts of them')
                    found[name] = encoded
                except Unsaveable as error:
                    writer.forget(n_encoded)
                    self.note(joined(place, name), error)
                    continue
                n_bytes = sum(part.nbytes for part in encoding.parts(found[name]) if isinstance(part, torch.Tensor))
                if n_bytes > LARGE:
                    self.note(joined(place, name), f'has {n_bytes / 1e6:,.0f} MB, which every checkpoint holds; if '
                                                   'only one step needs it, keep it in a local variable')
                self.changed.add((place, name))
            for name, encoded in found.items():
                is_buffer = is_module(thing) and name in thing._buffers
                persistent = name not in thing._non_persistent_buffers_set if is_buffer else None
                entry = saved.setdefault(place, [type(thing).__qualname__, {}])
                entry[1][name] = [encoded, self.as_built[place].get(name), persistent]
        return saved

    def has_changed(self, place, thing, name, value, by_memory):
        unknown = self                                        # no attribute is the State; None could be one
        before = self.constant.get((place, name), unknown)
        if before is value:                                   # most of them, by far
            return False
        if self.place_of(value) is None and encoding.is_left_out(value):
            if isinstance(value, CODE) and isinstance(before, CODE) and before != value:
                self.note(joined(place, name), 'is another function than when the run was built, which no checkpoint '
                                               'can hold; keep a number, and choose the function by it')
            return False                                      # the resumed run makes it, too
        if (place, name) in self.changed and type(value) not in PLAIN or self.is_always_saved(thing, name):
            return True
        return self.fingerprint(thing, name, value, by_memory) != self.as_built[place].get(name)

    def note(self, where, what):
        if where not in self.noted:
            self.noted.add(where)
            print(f'Note: {where} {what}', file=sys.stderr)

    def gradients(self, leaves):
        """
        The entry `gradients` of save(), in all processes. leaves: those of leaves(), which may differ, since process 0
        alone uses the criterion.
        """
        exist = torch.zeros(processes.count(), len(self.tensors), device=self.device)
        exist[processes.rank()] = torch.tensor([float(place in leaves and leaves[place].grad is not None)
                                                for place in self.tensors])
        if processes.count() > 1:
            exchange.add_up([exist])
        found = {}
        for place, have in zip(self.tensors, exist.bool().T.tolist(), strict=True):
            if any(have):
                leaf = leaves[place]
                own = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                found[place] = [exchange.gathered(own.reshape(1, -1), processes.count()), have]
        return found

    # Restoring

    def fitting(self, saved, module, state):
        """
        The state dict of a module in the form that the new module has: tensors that were registered or changed in shape
        during training are left out or replaced by the new module's, since the `saved` attributes have them. Modules
        that stand in the place of others since are put there first, so that names mean the same modules.
        """
        things = self.things()
        for place, (_, of_object) in saved.get('attributes', {}).items():
            for name, (encoded, *_) in of_object.items() if place in self.objects else ():
                if type(encoded) is tuple and encoded[0] == 'at' and is_module(things.get(encoded[1])):
                    setattr(self.objects[place], name, things[encoded[1]])
        names = {id(part): name for name, part in module.named_modules()}
        own = module.state_dict()
        state = copy.copy(state)                              # its _metadata comes along
        for place, (_, of_object) in saved.get('attributes', {}).items():
            prefix = names.get(id(self.objects.get(place)))
            for name, (encoded, *_) in of_object.items() if prefix is not None else ():
                key = joined(prefix, name)
                state.pop(key, None)
                if key in own:
                    state[key] = own[key]
                if encoded == DELETED:                         # restore() deletes the new module in its place
                    state.update({inner: own[inner] for inner in own if inner.startswith(f'{key}.')})
        return state

    def restore(self, saved, fresh=None):
        """
        Restores the result of save().

        fresh: None; or, if flags have changed, the names of the parts that are not restored. Then an attribute is not
               restored either if its value as built differs between the two runs, nor a whole part if one of its
               objects has another class, or one of its tensors another shape.

        Returns the names of the parts and attributes that are not restored. Raises ValueError for a missing object, and
        KeyError for anything else that the run lacks.
        """
        merging = fresh is not None
        fresh = list(fresh or ())
        of_places = saved.get('attributes', {})
        for place, (kind, of_object) in of_places.items():
            fits = place in self.objects and type(self.objects[place]).__qualname__ == kind
            if not fits and not merging:
                raise ValueError(f'{place} ({kind})')
            of_other_form = fits and any(form(built) != form(self.as_built[place].get(name))
                                         for name, (_, built, _) in of_object.items())
            if merging and (not fits or of_other_form) and root(place) not in fresh:
                fresh.append(root(place))
        stored = self.stored_tensors()
        things = stored | self.things()
        values = [value for _, of_object in of_places.values() for value, _, _ in of_object.values()]
        # an alias of a weight that is saved by itself is none any more: its value is not written into the weight
        weights = {encoding.memory(tensor): tensor for tensor in stored.values()}
        targets = {place: thing for place, thing in things.items()
                   if not is_tensor(thing) or weights.get(encoding.memory(thing), thing) is thing}
        reader = Reader(targets, values, self.device)
        parts_fresh = {*fresh}
        for place, (_, of_object) in of_places.items():
            for name, (value, built, persistent) in of_object.items() if root(place) not in parts_fresh else ():
                if merging and built != self.as_built[place].get(name):
                    fresh.append(joined(place, name))
                    continue
                if value != DELETED:
                    put(self.objects[place], name, reader.decode(value), persistent)
                    self.changed.add((place, name))
                elif name in attributes(self.objects[place]):
                    delattr(self.objects[place], name)
        for place, (rows, have) in saved.get('gradients', {}).items():
            if place in things and root(place) not in parts_fresh:
                set_gradient(things[place], rows, have)
        for place, required in saved.get('frozen', {}).items():
            if place in things and root(place) not in parts_fresh:
                things[place].requires_grad_(required)
        return fresh


def limited(saved, names):
    """The part of the result of State.save() with the attributes of these parts."""
    kept = {place: value for place, value in saved.get('attributes', {}).items() if root(place) in names}
    return {'attributes': kept} if kept else {}


def load_trained(name, module, states):
    """
    Loads the weights and attributes of the part `name` (model, ema or criterion) from the `states` of a checkpoint into
    a module that was built from the same flags. Raises RuntimeError, ValueError or KeyError if they do not fit.
    """
    built = types.SimpleNamespace(**{name: types.SimpleNamespace(average=module) if name == 'ema' else module})
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device('cpu'))
    own = State(built, [module], device)
    saved = limited(states.get('state', {}), [name])
    module.load_state_dict(own.fitting(saved, module, states[name]))
    own.restore(saved)


def reached(built, stored=()):
    """
    All that is reached from `built` through attributes and containers: ({id: (function that returns the value or None,
    its place)}, {place: object with attributes}). A value that is reached in several ways gets the shortest place. Of
    the objects whose ids are `stored`, only modules are searched.
    """
    places = {}
    objects = {}
    queue = collections.deque([('', built)])
    while queue:
        place, value = queue.popleft()
        if type(value) in PLAIN or id(value) in places:
            continue
        places[id(value)] = reference(value), place
        if encoding.container_kind(value):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            queue.extend((f'{place}[{key!r}]', part) for key, part in pairs)
        if encoding.has_attributes(value) and (is_module(value) or id(value) not in stored):
            objects[place] = value
            if not isinstance(value, BY_STATE_DICT):          # their state dicts are made anew each time
                queue.extend((joined(place, name), part) for name, part in attributes(value, place).items())
    return places, objects


def is_module(value):
    return isinstance(value, torch.nn.Module)


def reference(value):
    """A function that returns the value; a tensor or array is referenced weakly."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return weakref.ref(value)
    return lambda: value


def joined(place, name):
    return f'{place}.{name}' if place else str(name)


def root(place):
    """The part that a place belongs to: criterion of criterion.queue[0]."""
    return place.partition('.')[0].partition('[')[0]


def form_of(value):
    """The type and shape of a tensor or array, as text; '' for other values, and parameters without a shape yet."""
    has_shape = isinstance(value, torch.Tensor | np.ndarray) and not torch.nn.parameter.is_lazy(value)
    return f'{value.dtype} {[*value.shape]} ' if has_shape else ''


def form(fingerprint):
    """The part of a text of State.fingerprint() that form_of() wrote."""
    return (fingerprint or '').rpartition(' ')[0]


def attributes(thing, place=''):
    """{name: value} of the attributes that may be state; for a module, with its parameters, buffers and modules."""
    if isinstance(thing, BY_STATE_DICT):
        return thing.state_dict()
    left_out = LEFT_OUT.union(getattr(type(thing), 'LEFT_OUT', ()))
    state = object.__getstate__(thing) or {}                  # with __slots__: (its __dict__ or None, {slot: value})
    found = (state[0] or {}) | state[1] if isinstance(state, tuple) else state
    # attributes of the class itself, such as queue = [] outside of __init__, may be changed in place
    of_classes = {name: value for kind in reversed(type(thing).__mro__) if encoding.is_own(kind)
                  for name, value in vars(kind).items()
                  if isinstance(value, encoding.CHANGEABLE) and not name.startswith('__')}
    found = of_classes | found
    if is_module(thing):
        left_out |= OF_MODULES
        if root(place) in NETWORKS:
            left_out |= MODE
        found = {} if type(thing).__module__.startswith('torch._') else found      # a compiled wrapper
        found = found | thing._modules | thing._parameters | thing._buffers
    return {name: value for name, value in found.items() if name not in left_out}


def put(thing, name, value, persistent):
    """Sets an attribute. persistent: whether it is a persistent buffer; None: no buffer."""
    if isinstance(thing, BY_STATE_DICT):
        thing.load_state_dict(thing.state_dict() | {name: value})
    elif persistent is not None and name not in thing._buffers:
        vars(thing).pop(name, None)
        thing.register_buffer(name, value, persistent)
    elif getattr(thing, name, None) is not value:
        setattr(thing, name, value)


@torch.no_grad()
def set_gradient(leaf, rows, have):
    """Sets the gradient from rows [n, N] of n processes. With another number of processes, process 0 gets the sum."""
    rank = processes.rank()
    if len(have) != processes.count():
        rows = rows.sum(dim=0, keepdim=True)
        have = [True] + [False] * rank
    if have[rank]:
        leaf.grad = torch.empty_like(leaf).copy_(rows[rank].view(leaf.shape))           # its layout is that of the leaf
