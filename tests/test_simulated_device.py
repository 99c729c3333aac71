"""
What trains and evaluates gives on a simulated accelerator what it gives on the CPU; `make test-device` runs this.

The accelerator, torch.sim, computes on the CPU, but refuses what a GPU refuses: tensors of two devices, generators and
indices of another one, .numpy(). It has two devices.
"""
import re
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import torch

import criteria
import datasampler
import evaluation
import optimization
from batch_mining import parametric
from criteria import hier
from evaluation import clustering
from records import checkpoint
from records.state import State
from records.trace import Trace
from retrieval import loading
from tests import shared_batches
from tests.helpers import ROOT, Holder, folder_of, hand_over, metric_names, rows_of
from tests.shared_batches import TRAINED, train
from utilities import device
from utilities.randomness import preserved, seeded

pytestmark = pytest.mark.gpu('sim')

ADDED = {
    **{f'sampler {name}': f'--data_sampler {name}' for name in datasampler.SAMPLERS},
    **{f'optimizer {name}': f'--optim {name} --clip_grad 1' for name in optimization.OPTIMIZERS if name != 'muon'},
    'foreach': '--optim_args "{foreach: true}"',
    'groups': '--decay_exclude norms biases --fc_lr 0.01 --scheduler cosine --lr_warmup 2',
    'class weights': '--loss softmax --batch_mining none --class_weights balanced',
    'tuple statistics': '--loss margin --batch_mining distance --tuple_statistics',
}


@pytest.fixture(autouse=True)
def as_a_run_begins(monkeypatch):
    """The losses of tests.shared_batches; device 0 is the current one."""
    monkeypatch.setattr(criteria, 'CRITERIA', dict(criteria.CRITERIA))
    shared_batches.prepare()
    torch.sim.set_device(0)


@pytest.fixture
def alike(monkeypatch):
    """
    What samples other numbers on the CPU by design samples the same: hier, which skips triplets of weight 0 there, and
    the miner parametric, whose float32 weights are summed in float64 elsewhere.
    """
    noise, sample = hier.gumbel(1, 1000, like=torch.ones(1)).double(), parametric.sample_weighted
    monkeypatch.setattr(hier, 'gumbel', lambda rows, columns, like: noise.to(like)[:, :columns].expand(rows, -1))
    monkeypatch.setattr(parametric, 'sample_weighted', lambda weights, n=1: sample(weights.double(), n))


def assert_equal(one, other, tolerance=1e-7):
    """Equal names, and numbers that differ by at most tolerance times the largest of each tensor."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        value, found = (torch.as_tensor(part).double().cpu() for part in (value, other[name]))
        largest = value.nan_to_num().abs().max() if value.numel() else 0
        torch.testing.assert_close(found, value, rtol=0, atol=float(tolerance * largest), equal_nan=True, msg=name)


@pytest.mark.parametrize('more', ['', '--micro_bs 3'], ids=['whole', 'in pieces'])
@pytest.mark.parametrize('case', [*TRAINED, *ADDED])
def test_training_is_that_of_the_cpu(case, more, alike):
    flags = f'{(TRAINED | ADDED)[case]} {more}'
    on_cpu, on_device = train(flags), train(flags, device='sim:1')
    assert_equal(on_cpu.pop('logs')[-1], on_device.pop('logs')[-1], 1e-6)
    for part, tensors in on_cpu.items():
        assert_equal(tensors, on_device[part])
    assert all(value.device == torch.device('sim', 1) for value in on_device['network'].values())


@pytest.mark.parametrize('flags', ['--amp float16', '--amp bfloat16', '--amp float16 --micro_bs 3'])
def test_a_step_in_half_precision(flags):
    result = train(f'--loss overflows --batch_mining none {flags}', torch.float32, 'sim:1')
    assert all(value.isfinite().all() for value in result['network'].values())
    assert result['logs'][0].get('train_skipped_steps') == (1 if 'float16' in flags.split() else None)


@pytest.mark.parametrize('own', [False, True], ids=['by distance', 'by scores of a criterion'])
def test_every_metric_is_that_of_the_cpu(own, monkeypatch):
    monkeypatch.setattr(clustering, 'faiss_or_none', lambda: None)           # faiss is for the CPU
    random = np.random.default_rng(0)
    labels = np.arange(12).repeat(8)
    points = torch.from_numpy(random.standard_normal((12, 6))[labels] + random.standard_normal((96, 6))).float()
    points[[3, 50]] = points[[4, 4]]                                         # ties
    names = [*metric_names(), 'c_recall@1', 'c_map_at_r', 'c_nmi']
    more = {'ranking': lambda embeddings: (embeddings, embeddings.roll(1, 1))} if own else {}

    def metrics(embeddings):
        pool = evaluation.Pool(embeddings, labels, levels=labels[:, None] // 3)
        return evaluation.compute(names, embeddings, labels, pool=pool, n_bootstrap=20, **more)

    on_cpu = metrics(points)
    on_device = metrics(points.to('sim:1'))
    assert_equal(on_cpu, on_device, 1e-5)
    assert {name.split('@')[0] for name in names if name in on_cpu} >= {*evaluation.METRICS}


def on_device(*flags):
    return ['--device', 'cuda', '--gpu', '1', '--evaluate_on_gpu', *flags]


def numbers_of(folder):
    return [{name: float(value or 'nan') for name, value in row.items()} for row in rows_of(folder)]


def assert_near(one, other):
    """Rounding errors of float32 may exchange two neighbours of an image."""
    for row, found in zip(numbers_of(one), numbers_of(other), strict=True):
        assert row == pytest.approx(found, rel=1e-3, abs=2e-3, nan_ok=True)


MORE = ['--embed_norm', 'layer', '--optim', 'adamw', '--ema', '0.9', '--loss', 'margin', '--batch_mining', 'semihard',
        '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'dists@intra', 'rho_spectrum@1', '--eval_reference', 'all']


def test_a_run_and_its_evaluation(quick, run, tmp_path, capsys):
    """Also what is done with the trained network: metrics, and embeddings by torch.hub's loader."""
    flags, folders = [*quick, *MORE], {name: folder_of(tmp_path, f'{name}_s1') for name in ('cpu', 'device')}
    assert run(*flags, '--group', 'cpu') == 0 == run(*flags, *on_device('--group', 'device'))
    assert torch.sim.current_device() == 1
    assert_near(*folders.values())
    printed = []
    for more in (['--device', 'cpu'], on_device()):
        capsys.readouterr()
        assert run('--evaluate', folders['device'], *more) == 0
        printed.append([*map(float, re.findall(r' (\d+\.\d+)$', capsys.readouterr().out, re.MULTILINE))])
    assert printed[0] == pytest.approx(printed[1], rel=1e-5) and len(printed[0]) == 4
    images = sorted(map(str, next((tmp_path.parent).glob('patterns*/images')).glob('*/0.png')))
    before = torch.sim.current_device()
    found = [loading.embed(*loading.load(folders['device'], where), images) for where in ('cpu', 'cuda')]
    torch.testing.assert_close(*found)
    assert torch.sim.current_device() == before


BANK = ['--data_sampler', 'greedy_coreset', '--data_mb_mom', '0.5', '--data_batchmatch_bigbs', '24']


@pytest.mark.parametrize('first, second, more', [('cuda', 'cpu', []), ('cpu', 'cuda', []), ('cpu', 'cuda', BANK),
                                                 ('cuda', 'cuda', BANK)])
def test_a_run_is_resumed_on_another_device(first, second, more, quick, run, tmp_path):
    """After its first epoch, or on the same device; the CPU alone trains the same."""
    flags = [*quick, *MORE, *more, '--n_epochs', '3']
    device_flags = {'cuda': on_device(), 'cpu': ['--device', 'cpu', '--evaluate_on_gpu', 'false']}
    assert run(*flags, '--group', 'whole') == 0
    assert run(*flags, *device_flags[first], '--n_epochs', '1', '--group', 'moved') == 0
    assert run('--resume', folder_of(tmp_path, 'moved_s1'), '--n_epochs', '3', *device_flags[second]) == 0
    assert_near(folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path, 'moved_s1'))
    state = checkpoint.load(folder_of(tmp_path, 'moved_s1') / 'checkpoint_last.pt')
    assert all(value.device.type == 'cpu' for value in state['model'].values())


def test_the_state_of_a_part_stays_on_its_device(tmp_path):
    """A tensor, a view of it, tensors on two devices in a list, and a generator."""
    where = torch.device('sim', 1)

    def make():
        part = types.SimpleNamespace(bank=torch.zeros(3, device=where), generator=torch.Generator(where).manual_seed(1))
        return part, State(Holder(criterion=part), [], where)

    (one, state), (other, of_other) = make(), make()
    one.bank += 2
    one.late, one.queue = one.bank[1:], [torch.ones(2, device=where), torch.ones(2)]
    torch.rand(3, generator=one.generator, device=where)
    hand_over(state, of_other, tmp_path)
    for part in (one, other):
        part.bank += 1
        assert part.late.device == where and (part.late == 3).all()
        assert [tensor.device for tensor in part.queue] == [where, torch.device('cpu')]
    numbers = [torch.rand(3, generator=part.generator, device=where) for part in (one, other)]
    assert torch.equal(*numbers)


def test_a_scalar_of_the_log_may_be_a_number_in_one_step_and_a_tensor_in_the_next():
    trace = Trace(1)
    for value in (1., torch.tensor(2., device='sim:1'), torch.tensor(6)):
        trace.add(loss=value, grad_norm=value)
    assert trace.summary()['train_loss'] == 3


def test_two_processes_on_two_devices(quick, run, tmp_path):
    """BatchNorm is frozen: the simulated accelerator does not synchronise it."""
    flags = [*quick, *MORE, '--arch', 'conv4_frozen_normalize']
    assert run(*flags, '--group', 'one') == 0
    command = [sys.executable, 'main.py', *flags, *on_device('--gpu', '0', '1', '--group', 'two')]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert_near(folder_of(tmp_path, 'one_s1'), folder_of(tmp_path, 'two_s1'))


def test_the_selected_device_is_the_current_one(opt):
    namespace = opt(gpu=[1], given=['gpu'])
    for wanted in ('auto', 'cuda'):
        torch.sim.set_device(0)
        namespace.device = wanted
        assert device.select(namespace) == torch.device('sim', 1) and torch.sim.current_device() == 1


def test_random_numbers_of_the_device_are_preserved_without_a_warning(monkeypatch):
    monkeypatch.setattr(torch.random, '_fork_rng_warned_already', False)
    where, numbers = torch.device('sim', 1), []
    torch.sim.set_device(1)
    for block in (preserved(), seeded(3, where)):
        before = torch.sim.default_generators[1].get_state()
        with warnings.catch_warnings(action='error'), block:
            torch.sim.set_device(0) if not numbers else None
            numbers.append(torch.rand(3, device=where))
        assert torch.equal(torch.sim.default_generators[1].get_state(), before) and torch.sim.current_device() == 1
