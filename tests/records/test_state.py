"""The rule of state: what differs from its value as built is saved, in whatever form, and set back in place."""
import collections
import copy
import io
import itertools
import random
import types

import numpy as np
import pytest
import torch

from tests.helpers import hand_over, state_of

FORMS = {
    'number': lambda part, n: setattr(part, 'kept', n / 7),
    'underscore': lambda part, n: setattr(part, '_count', n),
    'text': lambda part, n: setattr(part, 'kept', f'phase {n}'),
    'tensor': lambda part, n: setattr(part, 'kept', torch.full((2, 3), float(n))),
    'array of texts': lambda part, n: setattr(part, 'kept', np.array([f'a{n}', 'b'])),
    'array with fields': lambda part, n: setattr(part, 'kept', np.array([(n, .5)], [('rank', 'i4'), ('score', 'f8')])),
    'array scalar': lambda part, n: setattr(part, 'kept', np.float32(n)),
    'list': lambda part, n: part.items.append([n, torch.tensor(n)]),
    'set': lambda part, n: part.seen.add((n, 'x')),
    'deque': lambda part, n: part.queue.append(torch.tensor([n])),
    'new deque': lambda part, n: setattr(part, 'kept', collections.deque(range(n), maxlen=2)),
    'in a named tuple': lambda part, n: part.pair.queue.append(n),
    'dict': lambda part, n: part.table.update({n: {'mean': torch.tensor(n / 3), (n, 1): None}}),
    'ordered dict': lambda part, n: setattr(part, 'kept', collections.OrderedDict(b=n, a=2)),
    'counter': lambda part, n: part.counter.update([n]),
    'defaultdict': lambda part, n: part.counts[n].append(n),
    'object of its own': lambda part, n: setattr(part.inner, 'total', part.inner.total + n),
    'object with slots': lambda part, n: setattr(part.slots, 'total', part.slots.total + n),
    'object in a list': lambda part, n: setattr(part.parts[1], 'total', n),
    'namespace': lambda part, n: setattr(part.namespace, 'value', n),
    'torch generator': lambda part, n: torch.rand(n, generator=part.generator),
    'numpy generator': lambda part, n: part.numpy.random(n),
    'random state': lambda part, n: part.random_state.rand(n),
    'python generator': lambda part, n: [part.python.random() for _ in range(n)],
    'made generator': lambda part, n: part.items.append(np.random.Generator(np.random.PCG64(n))),
    'optimizer': lambda part, n: stepped(part, n),
    'in no state dict': lambda part, n: part.copy.weight.data.add_(n),
    'frozen later': lambda part, n: part.copy.requires_grad_(False),
    'mode': lambda part, n: part.copy.eval(),
    'complex': lambda part, n: setattr(part, 'kept', [1j * n, 2 ** 90, b'bytes', torch.float16, torch.Size([n])]),
}


Pair = collections.namedtuple('Pair', 'queue n')


class Inner:
    def __init__(self):
        self.total = 0


class Slots:
    __slots__ = ('total', '__dict__')

    def __init__(self):
        self.total = 0


class Part:
    """An object with state of all kinds."""

    def __init__(self):
        self.items = []
        self.seen = set()
        self.queue = collections.deque(maxlen=3)
        self.pair = Pair([], 0)
        self.table = {}
        self.counts = collections.defaultdict(list)
        self.counter = collections.Counter()
        self.inner = Inner()
        self.slots = Slots()
        self.parts = [Inner(), Inner()]
        self.namespace = types.SimpleNamespace(value=0)
        self.generator = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(1)
        self.random_state = np.random.RandomState(1)
        self.python = random.Random(1)
        self.of_system = random.SystemRandom()               # has no state
        self.lazy = torch.nn.LazyLinear(2)                   # has no shape
        self.copy = torch.nn.Linear(2, 2)
        self.weights = torch.nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.Adam([self.weights])


def stepped(part, n):
    part.weights.grad = torch.full((3,), float(n))
    part.optimizer.step()
    part.weights.grad = None


def told(part):
    """All that a part remembers, as text."""
    made = [generator.bit_generator.state for generator in part.items if isinstance(generator, np.random.Generator)]
    generators = [made, part.generator.get_state().tolist(), part.numpy.bit_generator.state,
                  part.random_state.get_state(), part.python.getstate()]
    modules = [part.copy.state_dict(), part.copy.training, part.copy.weight.requires_grad]
    return repr([{name: value for name, value in vars(part).items() if not isinstance(value, (
        Inner, Slots, torch.Generator, np.random.Generator, random.Random, np.random.RandomState, torch.nn.Linear))
        and name != 'parts' and not made}, part.inner.total, part.slots.total, [one.total for one in part.parts],
        generators, modules, part.optimizer.state_dict()])


@pytest.mark.parametrize('change', FORMS.values(), ids=FORMS)
def test_every_form_is_set_back(change, tmp_path):
    part, other = Part(), Part()
    other.copy.load_state_dict(part.copy.state_dict())
    state, of_other = state_of(criterion=part), state_of(criterion=other)
    for n in (1, 4):
        change(part, n)
    assert told(part) != told(other)
    assert hand_over(state, of_other, tmp_path) == [] and told(part) == told(other)
    change(part, 5)
    change(other, 5)
    assert told(part) == told(other)
    assert of_other.save().keys() == state.save().keys()                        # it is saved from then on, too


def test_nothing_is_saved_of_what_has_not_changed():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
            self.log, self.of_step, self.function = {}, types.SimpleNamespace(), lambda x: x

    network = Network()
    state = state_of(network, model=network)
    network.layers(torch.rand(2, 2))                        # changes buffers, which the state dict has
    network.log['loss'] = 1
    network.of_step = torch.rand(99)
    network.function = lambda x: 2 * x
    network.eval()
    assert state.save() == {}


def test_names_of_one_thing_stay_names_of_one_thing(tmp_path):
    class Aliases(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3, 2))
            self.watched = self.w.detach()
            self.a = self.b = []
            self.c, self.d = [1], [1]
            self.register_buffer('bank', torch.zeros(4))

        def first_call(self):
            self.row, self.alias, self.tail = self.w.detach()[1], self.w.data, self.bank[2:]
            self.c = self.d
            self.late = self.again = torch.zeros(2)
            self.part = self.late[1:]
            self.cycle = [1]
            self.cycle.append(self.cycle)

    one, other = Aliases(), Aliases()
    state, of_other = state_of(one, criterion=one), state_of(other, criterion=other)
    one.first_call()
    with torch.no_grad():
        one.w += 1
    one.a.append(3)
    one.d.append(4)
    other.load_state_dict(one.state_dict())
    hand_over(state, of_other, tmp_path)
    for part in (one, other):
        assert part.b is part.a == [3] and part.c is part.d == [1, 4] and part.late is part.again
        assert part.cycle[1] is part.cycle
        with torch.no_grad():
            part.w += 2
            part.bank += 5
            part.late += 7
        assert (part.watched == 3).all() and (part.row == 3).all() and (part.alias == 3).all()
        assert (part.tail == 5).all() and part.part.item() == 7


def test_what_stood_apart_when_built_and_was_rebound_does_not_change_its_old_alias(tmp_path):
    def make():
        part = Inner()
        part.first = part.last = torch.zeros(2)
        return part

    one, other = make(), make()
    state, of_other = state_of(step=one), state_of(step=other)
    one.last = torch.ones(2)
    hand_over(state, of_other, tmp_path)
    assert other.first.sum() == 0 and other.last.sum() == 2


def test_the_old_content_of_a_weight_with_new_data_is_not_written_into_the_weight(tmp_path):
    def make():
        network = torch.nn.Linear(2, 2)
        network.first, network.row = network.weight.data, network.weight.detach()[1]
        return network

    one, other = make(), make()
    state, of_other = state_of(one, criterion=one), state_of(other, criterion=other)
    one.weight.data = torch.nn.functional.normalize(one.weight.data)
    other.load_state_dict(one.state_dict())
    hand_over(state, of_other, tmp_path)
    for name in ('weight', 'first', 'row'):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_modules_that_have_changed_places_have_their_own_weights(tmp_path):
    def make():
        network = torch.nn.ModuleDict({'now': torch.nn.Linear(2, 2), 'last': torch.nn.Linear(2, 2)})
        network.built = [network['now']]
        return network

    one, other = make(), make()
    state, of_other = state_of(one, criterion=one), state_of(other, criterion=other)
    one['now'], one['last'] = one['last'], one['now']
    torch.save([one.state_dict(), state.save()], tmp_path / 'file.pt')
    weights, saved = torch.load(tmp_path / 'file.pt', weights_only=True)
    other.load_state_dict(of_other.fitting(saved, other, weights))
    of_other.restore(saved)
    assert str(other.state_dict()) == str(one.state_dict()) and other.built[0] is other['last']


def test_a_deleted_attribute_stays_deleted(tmp_path):
    def make():
        network = torch.nn.Linear(2, 2)
        network.is_first, network.head = True, torch.nn.Linear(2, 3)
        return network

    one, other = make(), make()
    state, of_other = state_of(one, model=one), state_of(other, model=other)
    del one.is_first, one.bias, one.head
    torch.save([one.state_dict(), state.save()], tmp_path / 'file.pt')
    weights, saved = torch.load(tmp_path / 'file.pt', weights_only=True)
    other.load_state_dict(of_other.fitting(saved, other, weights))
    of_other.restore(saved)
    assert not hasattr(other, 'is_first') and not hasattr(other, 'bias') and not hasattr(other, 'head')
    assert torch.equal(one.weight, other.weight)
    saved, again = (which.save()['attributes']['model'][1] for which in (state, of_other))
    assert {name: value for name, (value, *_) in again.items()} == {name: value for name, (value, *_) in saved.items()}


def test_of_what_is_saved_nothing_is_left_out_with_what_cannot_be_saved(tmp_path, capsys):
    one, other = Inner(), Inner()
    state, of_other = state_of(step=one), state_of(step=other)
    names = ['a', 'b']
    last = torch.ones(2)
    one.entries, one.last, one.names, one.row = [(last, names, Inner())], last, names, last[1:]
    hand_over(state, of_other, tmp_path)
    assert 'step.entries is a Inner made in training' in capsys.readouterr().err and not hasattr(other, 'entries')
    other.last += 1
    assert other.names == names and other.row.item() == 2


def test_buffers_and_parameters_of_the_first_call_are_loaded(tmp_path):
    class Lazy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('none', None)
            self.register_buffer('grows', torch.zeros(1))
            self.register_buffer('constant', torch.zeros(1), persistent=False)

    def make():
        return torch.nn.ModuleDict({'inner': Lazy()})

    one, other = make(), make()
    state, of_other = state_of(one, criterion=one), state_of(other, criterion=other)
    one.inner.register_buffer('late', torch.arange(3.))
    one.inner.register_buffer('scratch', torch.ones(1), persistent=False)
    one.inner.scale = torch.nn.Parameter(torch.ones(2))
    one.inner.none, one.inner.grows = torch.ones(2), torch.arange(4.)
    one.inner.constant += 3
    torch.save([one.state_dict(), state.save()], tmp_path / 'file.pt')
    weights, saved = torch.load(tmp_path / 'file.pt', weights_only=True)
    other.load_state_dict(of_other.fitting(saved, other, weights))
    of_other.restore(saved)
    assert str(other.state_dict()) == str(one.state_dict()) and isinstance(other.inner.scale, torch.nn.Parameter)
    assert other.inner.constant.item() == 3 and other.inner.scratch.item() == 1
    assert {*other.state_dict()} == {'inner.late', 'inner.none', 'inner.grows', 'inner.scale'}


def test_a_frozen_copy_is_saved_whole_although_it_has_not_changed(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        network = torch.nn.Linear(2, 2)
        step = Inner()
        step.teacher = copy.deepcopy(network).requires_grad_(False)
        return network, step

    (network, step), (other_network, other) = make(1), make(2)
    state, of_other = state_of(network, model=network, step=step), state_of(other_network, model=other_network,
                                                                           step=other)
    hand_over(state, of_other, tmp_path)
    assert torch.equal(step.teacher.weight, other.teacher.weight)
    assert not torch.equal(network.weight, other_network.weight)               # whose state dict is stored elsewhere


def test_gradients_between_two_steps_are_saved(tmp_path):
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    state, of_other = state_of(one, model=one), state_of(other, model=other)
    assert state.save() == {}
    one(torch.rand(3, 2)).sum().backward()
    hand_over(state, of_other, tmp_path)
    assert torch.equal(one.weight.grad, other.weight.grad) and torch.equal(one.bias.grad, other.bias.grad)


@pytest.mark.parametrize('make, words', [
    (lambda folder: open(folder / 'lines.txt'), 'is an iterator (TextIOWrapper)'),
    (lambda folder: itertools.count(), 'is an iterator (count)'), (lambda folder: (n for n in range(3)), 'generator'),
    (lambda folder: Inner(), 'is a Inner made in training'), (lambda folder: [torch.nn.Linear(1, 1)], 'is a Linear'),
    (lambda folder: collections.defaultdict(list), 'is a defaultdict made in training'),
    (lambda folder: np.array([object()]), 'is a ndarray made in training')])
@pytest.mark.parametrize('is_built', [False, True])
def test_what_cannot_be_saved_is_named_once(make, words, is_built, tmp_path, capsys):
    (tmp_path / 'lines.txt').write_text('one\ntwo\n')
    part = Inner()
    if is_built:
        part.source = make(tmp_path)
    state = state_of(criterion=part)
    if not is_built:
        part.source = make(tmp_path)
    state.save()
    state.save()
    found = capsys.readouterr().err
    if is_built and 'iterator' not in words and words != 'generator':
        assert found == ''                                  # what is constructed with its part is there again
    else:
        assert found.count('Note: criterion.source') == 1 and words in found


@pytest.mark.parametrize('make', [lambda: bytearray(4), lambda: collections.UserDict({0: 0})])
def test_what_is_built_and_changed_in_place_but_cannot_be_saved_is_named(make, capsys):
    part = Inner()
    part.seen = make()
    state = state_of(criterion=part)
    part.seen[0] = 1
    assert state.save() == {}
    kind = type(part.seen).__name__
    assert f'Note: criterion.seen is a {kind} that has changed in place' in capsys.readouterr().err


def test_a_file_that_is_written_and_code_are_no_state(tmp_path, capsys):
    part = Inner()
    state = state_of(criterion=part)
    with open(tmp_path / 'log.txt', 'w') as part.file:
        part.function, part.method, part.module, part.kind = len, part.file.write, io, Inner
        assert state.save() == {} and capsys.readouterr().err == ''


def test_a_function_that_takes_the_place_of_another_is_named(capsys):
    part = Inner()
    part.call, part.method, part.known = max, part.__init__, len
    state = state_of(criterion=part)
    part.call, part.method = part.known, part.__init__
    assert state.save() != {} and capsys.readouterr().err == ''
    part.call = sum
    state.save()
    assert capsys.readouterr().err.startswith('Note: criterion.call is another function than when the run was built')


def test_what_a_class_has_is_state_too(tmp_path):
    def make():
        class Part(Inner):
            queue, table = [], {}                             # of each run's class, as in another process

        return Part()

    one, other = make(), make()
    state, of_other = state_of(criterion=one), state_of(criterion=other)
    one.queue.append(3)
    one.table = {1: 2}
    hand_over(state, of_other, tmp_path)
    assert type(other).queue == [3] and other.table == {1: 2} and type(other).table == {}


def test_a_large_attribute_is_named_once(capsys):
    part = Inner()
    state = state_of(step=part)
    part.images = torch.zeros(30_000_000)
    state.save()
    part.images = torch.zeros(30_000_000)
    state.save()
    assert capsys.readouterr().err.count('Note: step.images has 120 MB') == 1


def test_a_view_is_saved_without_its_base():
    part = Inner()
    state = state_of(step=part)
    part.row = torch.rand(1000, 100)[3]
    file = io.BytesIO()
    torch.save(state.save(), file)
    assert file.tell() < 5000


@pytest.mark.parametrize('change', [lambda grid: grid.T, lambda grid: grid[:, -3:], lambda grid: grid.T[2:, ::2],
                                    lambda grid: grid[..., 1]])
def test_a_tensor_or_array_keeps_its_layout(change, tmp_path):
    """The last digit of a sum or product depends on it."""
    one, other = Inner(), Inner()
    state, of_other = state_of(step=one), state_of(step=other)
    grid = torch.rand(16, 9)
    one.rows, one.array, one.reversed = change(grid), change(grid.numpy()), change(grid.numpy()[::-1, ::-1])
    hand_over(state, of_other, tmp_path)
    assert other.rows.stride() == one.rows.stride() and torch.equal(other.rows, one.rows)
    for name in ('array', 'reversed'):
        saved, found = (getattr(part, name) for part in (one, other))
        assert found.strides == saved.strides and np.array_equal(found, saved)
        assert found.sum() == saved.sum()


def test_an_object_that_no_longer_exists_is_refused_or_dropped(tmp_path):
    one, other = Part(), Inner()
    state, of_other = state_of(criterion=one, miner=Inner()), state_of(criterion=other, miner=Inner())
    one.inner.total = 3
    with pytest.raises(ValueError, match=r'criterion.inner \(Inner\)'):
        hand_over(state, of_other, tmp_path)
    saved = torch.load(tmp_path / 'state.pt', weights_only=True)
    assert of_other.restore(saved, fresh=[]) == ['criterion'] and other.total == 0


def test_with_changed_flags_an_attribute_with_another_value_as_built_starts_fresh(tmp_path):
    def make(margin, shape=(2,)):
        criterion, miner = Inner(), Inner()
        criterion.margin, criterion.n, miner.table, miner.n = margin, 0, torch.zeros(shape), 0
        criterion.stages = [Inner(), len, Inner()]
        return {'criterion': criterion, 'miner': miner}

    one, other = make(.2), make(.3, (3,))
    state, of_other = state_of(**one), state_of(**other)
    for part in one.values():
        part.n = 5
    one['criterion'].margin = .1
    del one['criterion'].stages[0]
    one['miner'].table = torch.ones(2)
    torch.save(state.save(), tmp_path / 'state.pt')
    saved = torch.load(tmp_path / 'state.pt', weights_only=True)
    assert of_other.restore(saved, fresh=[]) == ['miner', 'criterion.margin']
    assert (other['criterion'].margin, other['criterion'].n, other['miner'].n) == (.3, 5, 0)
    assert other['miner'].table.shape == (3,) and other['criterion'].stages[0] is len
