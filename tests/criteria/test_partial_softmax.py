"""--class_sample_rate: which classes are sampled, the loss over them, and that all else stays as it is."""
import copy
import math

import pytest
import torch

import criteria
import optimization
from tests.criteria import cases
from tests.criteria.cases import LABELS, UNIT, VECTORS
from utilities.errors import UserError

LOSSES = [name for name, module in criteria.CRITERIA.items() if hasattr(module, 'SAMPLES_CLASSES')]
MORE = torch.cat([VECTORS, torch.tensor([(0, 0, 2), (1, -1, 0)], dtype=cases.F64)])


def build(opt, loss, rate, n_classes=20, dim=3):
    torch.manual_seed(0)
    criterion = criteria.select(opt(loss=loss, class_sample_rate=rate, n_classes=n_classes, embed_dim=dim), None)
    return criterion.double()


def weights_of(criterion):
    weights, = criterion.parameters()
    return weights


def value(criterion, batch=UNIT, labels=LABELS):
    return criterion(batch=batch, labels=labels, batch_features=None, f_embed=None)


def test_these_losses_have_it(opt):
    assert LOSSES == ['arcface', 'softmax', 'cosface', 'subcenter_arcface']
    with pytest.raises(UserError, match='--class_sample_rate does not work with --loss triplet.supcon, but with arcf'):
        criteria.select(opt(loss='triplet+supcon', class_sample_rate=.5, batch_mining='all'), [lambda *_: [], None])
    criteria.select(opt(loss='supcon+cosface', class_sample_rate=.5, batch_mining='none'), [None, None])


@pytest.mark.parametrize('loss', LOSSES)
def test_rate_1_equals_the_whole_to_the_bit_and_samples_nothing(loss, opt):
    criterion, batch = build(opt, loss, 1.).float(), UNIT.float().requires_grad_()
    state = torch.get_rng_state()
    found = value(criterion, batch)
    assert torch.equal(torch.get_rng_state(), state)
    arguments = {'softmax': [criterion.temperature]} if loss == 'softmax' else {
        'cosface': [.35, 64.], 'arcface': [.5, 16.], 'subcenter_arcface': [.5, 64.]}
    function = getattr(criteria.CRITERIA[loss], f'{loss}_loss')
    whole = function(batch, LABELS, weights_of(criterion), *arguments[loss])
    assert torch.equal(found, whole)
    for one, other in zip(*(torch.autograd.grad(total, (batch, weights_of(criterion))) for total in (found, whole)),
                          strict=True):
        assert torch.equal(one, other) and not other.is_sparse


@pytest.mark.parametrize('loss', LOSSES)
def test_the_loss_and_its_gradients_are_those_over_the_sampled_classes(loss, opt):
    criterion, batch = build(opt, loss, .5), UNIT.clone().requires_grad_()
    weights = weights_of(criterion)
    found = value(criterion, batch, 3 * LABELS + 1)
    of_batch, gradient = torch.autograd.grad(found, (batch, weights))
    rows = gradient.coalesce().indices()[0]
    assert len(rows) == 10 and {1, 4, 7} <= set(rows.tolist()) and rows.equal(rows.unique())
    part = weights.detach()[rows].requires_grad_()
    name = getattr(criteria.CRITERIA[loss], f'{loss}_loss')
    given = {'softmax': [.05], 'cosface': [.35, 64.], 'arcface': [.5, 16.], 'subcenter_arcface': [.5, 64.]}[loss]
    places = [rows.tolist().index(label) for label in (3 * LABELS + 1).tolist()]
    expected = name(batch, torch.tensor(places), part, *given)
    assert torch.equal(found, expected)
    for one, other in zip((of_batch, gradient.coalesce().values()), torch.autograd.grad(expected, (batch, part)),
                          strict=True):
        assert torch.equal(one, other)


def test_the_other_classes_are_sampled_uniformly():
    counts, labels = torch.zeros(12), torch.tensor([3, 3, 7])
    torch.manual_seed(0)
    for _ in range(2000):
        rows, places = criteria.softmax.sample_classes(torch.arange(12.)[:, None], labels, .5)
        assert rows.shape == (6, 1) and rows[places, 0].tolist() == labels.tolist()
        counts[rows[:, 0].long()] += 1
    assert counts[[3, 7]].tolist() == [2000, 2000]
    others = counts[[0, 1, 2, 4, 5, 6, 8, 9, 10, 11]]
    assert ((others - 800) ** 2 / (2000 * .4 * .6)).sum() * .9 < 27.9               # χ² with 9 degrees, p = .001
    rows, _ = criteria.softmax.sample_classes(torch.arange(12.)[:, None], labels, .1)
    assert rows[:, 0].tolist() == [3, 7]                       # more in the batch than the rate allows: these alone


@pytest.mark.parametrize('loss, flags, sampled, whole', [
    ('softmax', {}, 5.132563, 5.144550), ('arcface', {}, 6.453224, 6.849974),
    ('cosface', {'margin': .4}, 28.217878, 32.869318)])
def test_known_numbers(loss, flags, sampled, whole, opt):
    """Of five classes, sampled are the three of the batch and one of the others; the numbers have the last one."""
    namespace = cases.flags_of(opt, loss, flags, n_classes=5, embed_dim=3)
    criterion, _ = cases.build(namespace, weights=MORE)
    assert value(criterion).item() == pytest.approx(whole, abs=5.1e-7)
    criterion.rate = .8
    torch.manual_seed(0)
    found = {round(value(criterion).item(), 6) for _ in range(20)}
    assert len(found) == 2 and min(abs(one - sampled) for one in found) <= 1.1e-6


def optimizer_of(opt, criterion, **flags):
    model = torch.nn.Module()
    model.backbone, model.f_embed = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    return optimization.select(opt(**flags), model, criterion)[0]


@pytest.mark.parametrize('optim, momentum', [('adam', .9), ('adamw', .9), ('sgd', .9), ('sgd', 0.), ('rmsprop', .9)])
@pytest.mark.parametrize('loss', ['arcface', 'subcenter_arcface'])
def test_rows_that_are_not_sampled_and_their_moments_do_not_move(loss, optim, momentum, opt):
    """The sampled rows are updated as the optimizer updates a parameter of these rows and moments alone."""
    flags = {'optim': optim, 'momentum': momentum, 'loss_decay': .1}
    criterion = build(opt, loss, .5)
    weights, optimizer = weights_of(criterion), optimizer_of(opt, criterion, **flags)
    for step in range(4):
        before, moments = weights.detach().clone(), copy.deepcopy(optimizer.state_dict()['state'])
        optimizer.zero_grad()
        value(criterion, labels=3 * LABELS + step).backward()
        gradient = weights.grad.coalesce()
        rows, others = gradient.indices()[0], torch.ones(20, dtype=torch.bool)
        others[rows] = False
        optimizer.step()
        assert torch.equal(weights[others], before[others]) and not (weights[rows] == before[rows]).all(dim=-1).any()
        alone = torch.nn.Parameter(before[rows])
        alone.grad = gradient.values()
        group = {name: entry for name, entry in optimizer.param_groups[2].items()
                 if name not in ('params', 'name', 'decoupled_weight_decay')}
        reference = type(optimizer)([alone], **group)
        index = optimizer.state_dict()['param_groups'][2]['params'][0]
        if moments:
            reference.state[alone] = {name: entry[rows] if entry.dim() else entry
                                      for name, entry in moments[index].items()}
        reference.step()
        assert torch.equal(weights[rows], alone)
        after = optimizer.state_dict()['state'].get(index, {})
        assert after.keys() == reference.state[alone].keys()
        for name, entry in after.items():
            if entry.dim():
                assert entry.shape == weights.shape and torch.equal(entry[rows], reference.state[alone][name])
                assert torch.equal(entry[others], moments[index][name][others] if moments else 0 * entry[others])
        assert math.isfinite(torch.nn.utils.get_total_norm(optimization.gradients_of([weights])))


def test_training_continues_from_the_state_of_the_optimizer(opt):
    ends = []
    for interrupted in (False, True):
        criterion = build(opt, 'cosface', .5)
        optimizer = optimizer_of(opt, criterion)
        for step in range(6):
            if interrupted and step == 3:
                states = copy.deepcopy([criterion.state_dict(), optimizer.state_dict()])
                criterion = build(opt, 'cosface', .5)
                optimizer = optimizer_of(opt, criterion)
                criterion.load_state_dict(states[0])
                optimizer.load_state_dict(states[1])
            torch.manual_seed(step)
            optimizer.zero_grad()
            value(criterion, labels=LABELS + step).backward()
            optimizer.step()
        ends.append(weights_of(criterion).detach())
    assert torch.equal(*ends)
