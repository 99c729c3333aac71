"""Groups of the optimizer, learning rates step by step, and the moving average of the weights."""
import copy
import math

import pytest
import torch

import architectures
import configuration
import criteria
import optimization
from optimization import moving_average
from records import checkpoint
from tests.helpers import assert_resumes_exactly, folder_of, printed_metrics, rows_of
from utilities.errors import UserError

N_EPOCHS, N_STEPS = 7, 5


def rates(opt, n_epochs=N_EPOCHS, **flags):
    """The rate in each step of a run, for --lr 1."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    flags = opt(n_epochs=n_epochs, **flags)
    schedule = optimization.Schedule(flags, torch.optim.SGD([{'params': [parameter], 'lr': 1, 'name': 'backbone'}]),
                                     N_STEPS)
    found = []
    for step in range(1, n_epochs * N_STEPS + 1):
        schedule.at(step)
        found.append(schedule.rates()['lr'])
    return found


def of_torch(make, n):
    """The rates of n steps of one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    scheduler, found = make(optimizer), []
    for step in range(n):
        found.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        if step < n - 1:
            scheduler.step()
    return found


def test_one_cycle_is_that_of_torch(opt):
    n = N_EPOCHS * N_STEPS
    for peak in (.1, .5, 1.):
        theirs = of_torch(lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1, total_steps=n, pct_start=peak, cycle_momentum=False), n)              # noqa: B023
        found = rates(opt, scheduler='onecycle', onecycle_peak=peak, lr_floor=1 / 25 / 1e4)
        assert found == pytest.approx(theirs, abs=1e-12) and max(found) == pytest.approx(1, abs=.02)


def test_one_cycle_without_a_rise_and_of_one_step(opt):
    found = rates(opt, scheduler='onecycle', onecycle_peak=0., lr_floor=.1)
    assert found[0] == pytest.approx(1, abs=.01) and found[-1] == pytest.approx(.1)
    assert found == sorted(found, reverse=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    for peak in (0., .3, 1.):
        flags = opt(scheduler='onecycle', onecycle_peak=peak, n_epochs=1)
        assert optimization.Schedule(flags, optimizer, n_steps=1).factor(1) == 1


def test_cosine_with_a_floor_is_that_of_torch_epoch_by_epoch(opt):
    for floor in (0., .2):
        theirs = of_torch(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=N_EPOCHS, eta_min=floor), N_EPOCHS)                                      # noqa: B023
        found = rates(opt, scheduler='cosine', lr_floor=floor)
        assert found[::N_STEPS] == pytest.approx(theirs, abs=1e-12)
        assert found == [rate for rate in found[::N_STEPS] for _ in range(N_STEPS)]


def test_rates_without_new_flags_are_what_they_were_to_the_bit(opt):
    expected = [(1 + math.cos(math.pi * min(1, epoch / N_EPOCHS))) / 2 if epoch else 1 for epoch in range(N_EPOCHS)]
    assert rates(opt, scheduler='cosine')[::N_STEPS] == expected
    assert rates(opt, scheduler='none') == [1] * N_EPOCHS * N_STEPS
    assert rates(opt, scheduler='step', tau=[2, 4], gamma=.3)[::N_STEPS] == [1, 1, .3, .3, .3 ** 2, .3 ** 2, .3 ** 2]


def test_a_delayed_cosine_is_that_of_torch_stepped_after_the_delay(opt):
    theirs = of_torch(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100), 95)
    found = rates(opt, n_epochs=100, scheduler='cosine', cosine_delay=5)[::N_STEPS]
    assert found == pytest.approx([1] * 5 + theirs, abs=1e-12) and found[-1] == pytest.approx(.009, abs=2e-4)


@pytest.mark.parametrize('scheduler, n, unit', [('step', 2, 'epochs'), ('cosine', 10, 'steps'),
                                                ('onecycle', 3, 'steps')])
def test_a_warmup_of_the_rates_multiplies_the_schedule(scheduler, n, unit, opt):
    plain = rates(opt, scheduler=scheduler, tau=[1])
    found = rates(opt, scheduler=scheduler, tau=[1], lr_warmup=n, lr_warmup_unit=unit)
    n_steps = n * N_STEPS if unit == 'epochs' else n
    for i, (rate, whole) in enumerate(zip(found, plain, strict=True)):
        assert rate == (pytest.approx(whole * (i + 1) / n_steps, rel=1e-12) if i + 1 < n_steps else whole)


# Groups

def groups_of(opt, **flags):
    flags = opt(arch='conv4', not_pretrained=True, lr=1., fc_lr=.5, decay=.1, loss='triplet', **flags)
    model = architectures.select(flags)
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer, _ = optimization.select(flags, model, criteria.select(flags, lambda *_: None))
    return {group['name']: ({names[parameter] for parameter in group['params']}, group['lr'], group['weight_decay'])
            for group in optimizer.param_groups}, set(names.values())


def test_layer_decay_gives_each_block_a_rate(opt):
    groups, names = groups_of(opt, layer_decay=.5)
    assert list(groups) == ['backbone', 'backbone_2', 'backbone_1', 'backbone_0', 'embedding']
    assert {name: group[1:] for name, group in groups.items()} == {
        'backbone': (1, .1), 'backbone_2': (.5, .1), 'backbone_1': (.25, .1), 'backbone_0': (.125, .1),
        'embedding': (.5, .1)}
    for depth, group in enumerate(('backbone_0', 'backbone_1', 'backbone_2', 'backbone')):
        assert groups[group][0] == {name for name in names if name.startswith(f'backbone.{depth}.')}


def test_rates_and_decays_per_group(opt):
    flags = opt(arch='conv4', not_pretrained=True, lr=.001, fc_lr=.5, decay=.1, loss='margin', loss_decay=.2)
    optimizer, _ = optimization.select(flags, architectures.select(flags), criteria.select(flags, lambda *_: None))
    groups = {group['name']: (group['lr'], group['weight_decay']) for group in optimizer.param_groups}
    assert groups == {'backbone': (.001, .1), 'embedding': (.5, .1), 'criterion': (.0005, .2)}


@pytest.mark.parametrize('kinds, layer_decay, excluded', [
    (['norms'], .5, lambda name: '.1.' in name[9:] or name.startswith('f_embed.0')),
    (['biases'], 1., lambda name: name.endswith('bias')),
    (['norms', 'biases'], .5, lambda name: '.1.' in name[9:] or name.endswith('bias') or name.startswith('f_embed.0')),
])
def test_decay_exclude(kinds, layer_decay, excluded, opt):
    groups, names = groups_of(opt, decay_exclude=kinds, embed_norm='layer', embed_norm_affine=True,
                              layer_decay=layer_decay)
    without = set().union(*(found for name, (found, _, decay) in groups.items() if name.endswith('_no_decay')))
    assert without == {name for name in names if excluded(name)}
    assert {decay for name, (_, _, decay) in groups.items() if name.endswith('_no_decay')} == {0}
    assert {decay for name, (_, _, decay) in groups.items() if not name.endswith('_no_decay')} == {.1}
    assert set().union(*(found for found, _, _ in groups.values())) == names
    assert sum(len(found) for found, _, _ in groups.values()) == len(names)


# Optimizers of the parts

def after_steps(opt, n=3, **flags):
    """The parameters of network and loss after n steps with given gradients, by name, and the Schedule."""
    flags = opt(arch='conv4', not_pretrained=True, lr=.1, fc_lr=.05, decay=.01, loss='softmax', loss_softmax_lr=.2,
                loss_decay=.02, scheduler='step', tau=[1], **flags)
    torch.manual_seed(0)
    model = architectures.select(flags)
    criterion = criteria.select(flags, None)
    optimizer, schedule = optimization.select(flags, model, criterion)
    named = dict(model.named_parameters()) | {f'criterion.{name}': p for name, p in criterion.named_parameters()}
    for step in range(1, n + 1):
        schedule.at(step)
        for parameter in named.values():
            parameter.grad = torch.randn_like(parameter)
        for one in (optimizer, *schedule.further.values()):
            one.step()
    return {name: parameter.detach() for name, parameter in named.items()}, schedule


@pytest.mark.parametrize('kind', ['adam', 'sgd'])
def test_one_optimizer_or_one_per_part_of_the_same_kind_give_the_same_bits(kind, opt):
    together, schedule = after_steps(opt, optim=kind)
    apart, divided = after_steps(opt, optim=kind, embed_optim=kind, loss_optim=kind)
    assert not schedule.further and [*divided.further] == ['embed_optimizer', 'loss_optimizer']
    assert all(torch.equal(together[name], apart[name]) for name in together)
    assert schedule.rates() == divided.rates()
    assert divided.rates()['lr/embedding'] == pytest.approx(.05 * .3)


def test_each_part_has_the_steps_of_its_own_optimizer(opt):
    """The parts of a run with three kinds are those of three runs with one kind each; SGD without momentum is a sum."""
    mixed, schedule = after_steps(opt, optim='rmsprop', embed_optim='adam', loss_optim='sgd',
                                  loss_optim_args=[{'momentum': 0.}])
    assert {type(one).__name__ for one in schedule.further.values()} == {'Adam', 'SGD'}
    for prefix, flags in (('backbone', {'optim': 'rmsprop'}), ('f_embed', {'optim': 'adam'}),
                          ('criterion', {'optim': 'sgd', 'momentum': 0.})):
        alone, _ = after_steps(opt, **flags)
        own = [name for name in mixed if name.startswith(prefix)]
        assert own and all(torch.equal(mixed[name], alone[name]) for name in own)


def test_arguments_reach_the_optimizer_of_each_part(opt):
    plain, _ = after_steps(opt, optim='sgd')
    nesterov, schedule = after_steps(opt, optim='sgd', optim_args=[{'nesterov': True}], loss_optim='adam', adam_eps=1.,
                                     loss_optim_args=[{'amsgrad': True, 'betas': [.5, .6]}])
    of_loss = schedule.further['loss_optimizer'].defaults
    assert schedule.optimizer.defaults['nesterov'] and of_loss['amsgrad']
    assert (of_loss['eps'], tuple(of_loss['betas'])) == (1., (.5, .6))
    assert not torch.equal(plain['f_embed.weight'], nesterov['f_embed.weight'])
    with pytest.raises(UserError, match='--optim muon: Muon only supports 2D'):
        after_steps(opt, optim='muon')


@pytest.mark.parametrize('name', ['adam', 'adamw', 'sgd'])
def test_on_a_gpu_an_optimizer_is_fused_unless_its_arguments_say_otherwise(name, opt):
    """torch takes fused=True for parameters of the CPU as well, but not with foreach=True."""
    parameters = torch.nn.Linear(3, 2).parameters
    namespace = opt(optim=name)
    namespace.device = torch.device('cuda', 1)
    for given, expected in (({}, True), ({'foreach': True}, None), ({'foreach': False}, True), ({'fused': False}, 0)):
        namespace.optim_args = [given]
        optimizer = optimization.build(namespace, 'optim', [{'params': parameters()}])
        assert optimizer.defaults['fused'] == expected and optimizer.defaults['foreach'] is given.get('foreach')


def test_a_loss_without_parameters_needs_no_optimizer_of_its_own(opt):
    flags = opt(arch='conv4', not_pretrained=True, loss='triplet', loss_optim='sgd')
    model = architectures.select(flags)
    assert not optimization.select(flags, model, criteria.select(flags, lambda *_: None))[1].further


# The moving average of the weights

def test_a_shared_weight_is_averaged_once():
    network = torch.nn.Module()
    network.layer = torch.nn.Linear(1, 1)
    network.blocks = torch.nn.ModuleList([network.layer])          # as networks of the public code name their layers
    ema = moving_average.MovingAverage(network, .9)
    before = network.layer.weight.item()
    network.layer.weight.data += 1
    ema.update()
    assert ema.average.layer.weight.item() == pytest.approx(before + .1)


@pytest.mark.parametrize('decay', [0., .9, 1.])
def test_the_average_is_that_of_a_loop(decay):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    ema = moving_average.MovingAverage(network, decay)
    expected = {name: value.double() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=.05)
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.randn(8, 3)).pow(2).mean().backward()
        optimizer.step()
        ema.update()
        for name, value in network.state_dict().items():
            is_count = name.endswith('num_batches_tracked')
            expected[name] = value.double() if is_count else decay * expected[name] + (1 - decay) * value.double()
    for name, value in ema.average.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name])
    assert int(ema.average.state_dict()['1.num_batches_tracked']) == 5
    assert not any(parameter.requires_grad for parameter in ema.average.parameters())
    if decay == 0:
        assert all(torch.equal(*pair) for pair in zip(ema.average.state_dict().values(), network.state_dict().values(),
                                                      strict=True))


def test_a_run_with_an_average_trains_as_one_without(quick, run, tmp_path, capsys):
    for group, flags in (('plain', []), ('most', ['--ema', '0.7'])):
        assert run(*quick, '--group', group, '--evaluation_metrics', 'e_recall@1', 'dists@intra', *flags) == 0
    plain, most = (folder_of(tmp_path, f'{name}_s1') for name in ('plain', 'most'))
    states = [checkpoint.load(folder / 'checkpoint_last.pt') for folder in (plain, most)]
    assert all(torch.equal(value, states[0]['model'][name]) for name, value in states[1]['model'].items())
    rows = rows_of(most)
    for row, without in zip(rows, rows_of(plain), strict=True):
        assert {name: value for name, value in row.items() if not name.startswith('ema_')} == without
    averaged = {name for name in rows[0] if name.startswith('ema_')}
    assert 'ema_test_e_recall@1' in averaged
    assert all(rows[0][name] == rows[0][name.removeprefix('ema_')] for name in averaged)
    assert rows[-1]['ema_test_dists@intra'] != rows[-1]['test_dists@intra']
    capsys.readouterr()
    assert run('--evaluate', most, '--eval_ema') == 0
    printed = printed_metrics(capsys.readouterr().out)
    assert {f'ema_{name}': value for name, value in printed.items() if '@0' not in name}.items() <= rows[-1].items()
    assert 'test_dists@intra' in printed
    assert run('--evaluate', plain, '--eval_ema') == 2
    assert f'--eval_ema: {plain} has no moving average of the weights' in capsys.readouterr().err


@pytest.mark.parametrize('flags', [
    '--lr_warmup 4 --lr_warmup_unit steps --scheduler cosine --lr_floor 0.1 --layer_decay 0.5 '
    '--decay_exclude norms biases --optim adamw --adam_eps 1e-4 --optim_args {"betas":[0.8,0.9]}',
    '--optim Adafactor --optim_args {"d":1.5,"eps":[null,1e-3]} --embed_optim nadam --scheduler onecycle '
    '--onecycle_peak 0.5',
    '--ema 0.5 --lr_warmup 1 --warmup 1 --freeze stem --pool avg_max --embed_norm layer',
])
def test_a_resumed_run_ends_as_if_never_stopped(flags, quick, run, tmp_path):
    assert_resumes_exactly(run, tmp_path, [*quick, '--evaluation_metrics', 'e_recall@1', *flags.split()])


def begun(name, n_dims, *flags):
    opt = configuration.parse(['--optim', name, *flags])
    opt.device = torch.device('cpu')
    parameter = torch.nn.Parameter(torch.ones((3,) * n_dims))
    return parameter, optimization.build(opt, 'optim', [{'params': [parameter], 'lr': .1, 'weight_decay': .1}])


def step(parameter, optimizer):
    parameter.grad = parameter.detach() * 2
    optimizer.step()


@pytest.mark.parametrize('n_dims', [1, 2])
@pytest.mark.parametrize('name', optimization.OPTIMIZERS)
def test_an_optimizer_goes_on_from_its_state_and_refuses_that_of_another_kind(name, n_dims):
    if name == 'muon' and n_dims == 1:
        pytest.skip('Muon takes matrices only')
    trained, resumed = begun(name, n_dims), begun(name, n_dims)
    step(*trained)
    state = copy.deepcopy(trained[1].state_dict())
    resumed[1].load_state_dict(state)
    with torch.no_grad():
        resumed[0].copy_(trained[0])
    step(*trained)
    step(*resumed)
    assert torch.equal(trained[0], resumed[0])
    if name != 'adam':
        with pytest.raises(ValueError, match='of another kind of optimizer'):
            begun('adam', n_dims)[1].load_state_dict(state)


def test_settings_that_training_has_changed_are_kept_unless_flags_change_them():
    _, trained = begun('sgd', 1, '--momentum', '0')
    group, = trained.param_groups
    group |= {'momentum': .5, 'nesterov': True, 'lr': 7., 'weight_decay': 7., 'fused': True}
    state = copy.deepcopy(trained.state_dict())
    for flags, expected in (([], {'momentum': .5, 'nesterov': True}),
                            (['--optim_args', '{dampening: 0.1}'], {'momentum': .5, 'dampening': .1})):
        _, resumed = begun('sgd', 1, '--momentum', '0', *flags)
        resumed.load_state_dict(copy.deepcopy(state))
        again, = resumed.param_groups
        assert again.items() >= {**expected, 'lr': .1, 'weight_decay': .1}.items() and not again['fused']
    _, changed = begun('adam', 1)
    state = changed.state_dict()
    state['param_groups'][0]['betas'] = (.5, .6)
    _, resumed = begun('adam', 1, '--optim_args', '{betas: [.8, .9]}')
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]['betas'] == (.8, .9)
