"""The training step: in pieces, by several processes, in mixed precision, compiled; compared with the plain one."""
import argparse
import contextlib
import copy
import functools
import math
import os
import signal
import time
import traceback

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor import cpu_vec_isa

import architectures
import configuration
import criteria
import main
import optimization
from architectures import batch_norm, conv4
from architectures.embedding_network import Backbone, EmbeddingNetwork
from benchmarks.measure import peak_memory
from evaluation.embedding import network_input
from records import checkpoint
from records.trace import Trace
from tests.helpers import GPU, assert_resumes_exactly, executing, folder_of, wait_for, with_blocks
from tests.shared_batches import (
    LOSSES,
    TRAINED,
    AsksForAll,
    FeaturesAndLayer,
    build,
    cases_of,
    module_of,
    train,
    train_on_gpus,
)
from training_step import TrainingStep
from utilities import device, mined, stopping
from utilities.errors import RunFailed, UserError
from utilities.randomness import derive, seed_everything, seeded

WAYS = ['in pieces', '2 processes', '3 processes']
CPU = torch.device('cpu')
FEATURES = TRAINED['features and layer']


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """trained(way): what each process of tests.shared_batches wrote; the work of `apart` or `together` is done once."""
    folder = tmp_path_factory.mktemp('shared')

    @functools.cache
    def work(name, n):
        code = ('import sys; from pathlib import Path; from tests import shared_batches\n'
                f'shared_batches.{name}(int(sys.argv[1]), Path(sys.argv[2]))')
        begun = [executing(folder, code, rank, folder) for rank in range(n)]
        children = [process for process, _, _ in begun]
        while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
            time.sleep(0.1)
        failed = [child for child in children if child.poll()]
        for child in children:
            child.kill()
            child.wait()
        printed = '\n'.join(errors.read_text() for _, _, errors in begun)
        assert not failed, printed

    @functools.cache
    def of_way(way):
        work(*(('apart', 2) if way in ('alone', 'in pieces') else ('together', 3)))
        return [torch.load(file) for file in sorted(folder.glob(f'{way}_*.pt'))]
    return of_way


def assert_near(one, other, tolerance, case=''):
    """Tensors of equal names, whose elements differ by at most tolerance times the largest of each tensor."""
    assert one.keys() == other.keys() and one, case
    for name, value in one.items():
        assert value.dtype == other[name].dtype and value.shape == other[name].shape, (case, name)
        if value.numel():
            largest, difference = value.double().abs().max(), (value.double() - other[name].double()).abs().max()
            assert difference <= tolerance * largest, (case, name, float(difference), float(largest))


@pytest.mark.parametrize('way', WAYS)
def test_after_eight_steps_in_float64_all_is_equal(way, trained):
    for case in cases_of(way):
        plain, shared = trained('alone')[0][case], trained(way)[0][case]
        assert len(plain['losses']['losses']) == 8 and not torch.equal(*plain['losses']['losses'][[0, -1]]), case
        for part in ('network', 'losses', 'criterion') if plain['criterion'] else ('network', 'losses'):
            assert_near(plain[part], shared[part], 1e-6, case)
        for log, other in zip(plain['logs'], shared['logs'], strict=True):
            assert log == pytest.approx(other, rel=1e-6), case


@pytest.mark.parametrize('way', WAYS[1:])
def test_all_processes_have_the_same_bits(way, trained):
    first, *others = trained(way)
    assert len(others) == int(way[0]) - 1
    for other in others:
        assert first.keys() == other.keys()
        for case, results in first.items():
            for name, value in results['network'].items():
                assert torch.equal(value, other[case]['network'][name]), (case, name)
            assert torch.equal(results['losses']['losses'], other[case]['losses']['losses'])


@pytest.mark.parametrize('way', ['alone', *WAYS])
def test_a_step_in_float16_that_is_not_finite_is_skipped_by_all_processes(way, trained):
    """Also where only the gradient of the criterion's own parameter, in process 0, is not finite."""
    for results in trained(way):
        skipped = [log['train_skipped_steps'] for log in results['float16']['logs']]
        assert skipped[0] == 1 and not any(skipped[1:])
        assert all(math.isfinite(log['train_grad_norm']) for log in results['float16']['logs'])
        assert 'train_skipped_steps' not in results['bfloat16']['logs'][0]
    assert trained(way)[0]['float16']['criterion']['factor'].isfinite()


def test_a_gradient_penalty_acts_on_a_divided_batch_too(monkeypatch):
    flags, loss = '--loss proxyanchor --batch_mining none --n_epochs 1', TrainingStep.loss

    def penalised(self, outputs, **more):
        value = loss(self, outputs, **more)
        gradient, = torch.autograd.grad(value, outputs['batch'], create_graph=True)
        return value + 10 * gradient.square().sum()

    without = train(flags)['network']
    monkeypatch.setattr(TrainingStep, 'loss', penalised)
    whole, divided = (train(flags + more)['network'] for more in ('', ' --micro_bs 3'))
    assert_near(whole, divided, 1e-6)
    with pytest.raises(AssertionError):
        assert_near(whole, without, 1e-3)


def test_a_gradient_with_respect_to_the_images_is_refused_for_a_divided_batch(monkeypatch):
    flags, embed, loss = '--loss proxyanchor --batch_mining none --n_epochs 1', TrainingStep.embed, TrainingStep.loss

    def embedded(self, images):
        self.images = network_input(images, self.opt.device).requires_grad_()
        return embed(self, self.images)

    def penalised(self, outputs, **more):
        value = loss(self, outputs, **more)
        gradient, = torch.autograd.grad(value, self.images, create_graph=True)
        return value + 10 * gradient.square().sum()

    without = train(flags)['network']
    monkeypatch.setattr(TrainingStep, 'embed', embedded)
    monkeypatch.setattr(TrainingStep, 'loss', penalised)
    with pytest.raises(AssertionError):
        assert_near(train(flags)['network'], without, 1e-3)
    with pytest.raises(UserError, match='needs the graph of the whole batch'):
        train(f'{flags} --micro_bs 3')


def statistics_of(starts):
    """The BatchNorm statistics of the run `statistics` where the pieces of each batch begin at `starts`, by hand."""
    opt, built, loader = build('--lr 0', frozen=False)
    convolution, mean, variance = built.model.backbone[0], torch.zeros(6).double(), torch.ones(6).double()
    for epoch in range(1, opt.n_epochs + 1):
        built.call('start_epoch', epoch)
        for images, _, _ in loader.epoch(epoch):
            with torch.no_grad():
                outputs = convolution((images - built.model.mean) / built.model.std)
            new = []
            for piece in outputs.tensor_split(starts[1:]):
                new.append([.9 * mean + .1 * piece.mean((0, 2, 3)),
                            .9 * variance + .1 * piece.transpose(0, 1).flatten(1).var(1), len(piece) / len(images)])
            mean, variance = (sum(weight * values[i] for *values, weight in new) for i in (0, 1))
    return {'backbone.1.running_mean': mean, 'backbone.1.running_var': variance}


@pytest.mark.parametrize('way, starts', [('alone', [0]), ('2 processes', [0, 5]), ('3 processes', [0, 4, 7])])
def test_running_statistics_are_means_over_the_processes(way, starts, trained):
    expected = statistics_of(starts)
    state = trained(way)[0]['statistics']['network']
    assert_near(expected, {name: state[name] for name in expected}, 1e-6)


def test_a_second_pass_updates_no_running_statistics():
    opt, built, loader = build('--micro_bs 3 --lr 0 --iterations_per_epoch 1', frozen=False)
    images, labels, _ = next(iter(loader.epoch(1)))
    model = build('--lr 0', frozen=False)[1].model.train()
    for piece in images.tensor_split(4):
        model(piece)
    built.model.start_epoch(1)
    built.step(images, labels, torch.arange(len(labels)), 1, 1)
    for one, other in zip(model.buffers(), built.model.buffers(), strict=True):
        assert torch.equal(one, other)
    assert built.model.backbone[1].num_batches_tracked == 4 and built.model.backbone[1].track_running_stats


def with_graphs(flags, starts):
    """Trains as shared_batches.train, the pieces of each batch with their graphs kept, in a loop of its own."""
    opt, built, loader = build(flags, dropout=0.5)
    number = 0
    for epoch in range(1, opt.n_epochs + 1):
        seed_everything(derive(opt.seed, epoch))
        built.schedule.at((epoch - 1) * built.schedule.n_steps + 1)
        built.call('start_epoch', epoch)
        for images, labels, _ in loader.epoch(epoch):
            number += 1
            outputs = []
            for start, piece in zip(starts, images.tensor_split(starts[1:]), strict=True):
                with seeded(derive(opt.seed, 'piece', number, start), CPU):
                    outputs.append(built.model(piece))
            embeddings, features = map(torch.cat, zip(*outputs, strict=True))
            built.optimizer.zero_grad()
            built.criterion(batch=embeddings, labels=labels, batch_features=features,
                            f_embed=built.model.f_embed).backward()
            built.optimizer.step()
    return built.model.state_dict()


def test_with_dropout_pieces_are_embedded_twice_with_the_same_random_numbers(trained):
    """In one process and in two; the miner of the default flags is random, and does not notice the dropout."""
    alone = train('--micro_bs 3', dropout=0.5)['network']
    assert_near(with_graphs('', [0, 3, 6, 8]), alone, 1e-6)
    together = trained('dropout')[0]['network']
    assert_near(with_graphs('', [0, 2, 4, 5, 7, 9]), together, 1e-6)
    with pytest.raises(AssertionError):
        assert_near(alone, together, 1e-3)


def test_the_memory_of_a_step_is_that_of_a_piece():
    memory = {}
    for micro_bs in (0, 16):
        opt, built, _ = build(f'--bs 128 --samples_per_class 64 --micro_bs {micro_bs} --loss proxyanchor '
                             '--batch_mining none')
        images, labels = torch.rand(128, 3, 16, 16, dtype=torch.float64), torch.arange(128) % 6
        built.model.backbone = torch.nn.Sequential(*built.model.backbone[:4], torch.nn.AdaptiveAvgPool2d(2),
                                                   torch.nn.Flatten())
        memory[micro_bs] = peak_memory(lambda built=built, images=images, labels=labels: built.step(
            images, labels, labels, 1, 1))
    assert memory[16] < memory[0] / 4


@pytest.mark.parametrize('flags', [*LOSSES.values(), FEATURES, f'{FEATURES} --micro_bs 3'], ids=range(5))
def test_a_step_in_bfloat16_with_every_loss(flags, monkeypatch):
    """Features reach the criterion in float32, so that it can call f_embed on them."""
    monkeypatch.setitem(criteria.CRITERIA, 'features_and_layer', module_of(FeaturesAndLayer))
    opt, built, loader = build(f'{flags} --amp bfloat16', torch.float32)
    built.model.start_epoch(1)
    before = [parameter.clone() for parameter in built.model.parameters()]
    embeddings, scalars = built.step(*next(iter(loader.epoch(1))), 1, 1)
    assert embeddings.dtype == torch.float32 and scalars['loss'].isfinite() and scalars['grad_norm'] > 0
    assert all(parameter.isfinite().all() for parameter in built.model.parameters())
    assert not all(map(torch.equal, before, built.model.parameters()))


@pytest.mark.parametrize('arch', ['resnet50', 'googlenet', 'conv4', 'mobilenet_v2', 'efficientnet_lite0'])
def test_a_step_in_bfloat16(arch, monkeypatch):
    with_blocks(monkeypatch, (1, 1, 1, 1))
    opt, built, _ = build(f'--arch {arch}_normalize --not_pretrained --amp bfloat16 --loss proxyanchor '
                          '--batch_mining none --bs 4 --lr 0.001', torch.float32)
    opt.input_size = 32
    backbone = architectures.select_backbone(opt)
    torch.manual_seed(0)
    built.model = EmbeddingNetwork(opt, backbone, frozen=False, normalize=True)
    built.optimizer, _ = optimization.select(opt, built.model, built.criterion)
    step = TrainingStep(opt, built)
    built.model.start_epoch(1)
    images = torch.rand(4, 3, 32, 32)
    dtypes = set()
    convolution = next(module for module in built.model.modules() if isinstance(module, torch.nn.Conv2d))
    convolution.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    _, scalars = step(images, torch.tensor([0, 0, 1, 1]), torch.arange(4), 1, 1)
    assert dtypes == {torch.bfloat16} and scalars['loss'].isfinite() and 0 < scalars['grad_norm'] < math.inf
    assert all(parameter.isfinite().all() and parameter.dtype == torch.float32
               for parameter in built.model.parameters())


@pytest.mark.parametrize('flags', ['--clip_grad_value 0.003', '--clip_grad 0.05 --clip_grad_value 0.003',
                                   '--clip_grad 0.05 --amp float16'])
def test_gradients_are_clipped_after_they_are_unscaled_and_logged_as_they_were(flags):
    common = ('--loss proxyanchor --batch_mining none --loss_weights 0.02 --optim sgd --lr 0 --iterations_per_epoch 1 '
              f'--n_epochs 1 --amp {"float16" if "amp" in flags else "none"}')
    results = {name: train(f'{common} {more}', torch.float32) for name, more in (('whole', ''), ('clipped', flags))}
    whole, clipped = (list(results[name]['gradients'].values()) for name in ('whole', 'clipped'))
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in whole))
    assert results['clipped']['logs'][0]['train_grad_norm'] == pytest.approx(norm, rel=1e-5) and norm > 0.06
    factor = 0.05 / norm if '--clip_grad ' in flags else 1
    limit = 0.003 if 'value' in flags else math.inf
    for one, other in zip(whole, clipped, strict=True):
        torch.testing.assert_close((one * factor).clamp(-limit, limit), other, rtol=1e-4, atol=1e-9)


def step_of(trace, loss=1.0, norm=1.0, skipped=False):
    trace.add(loss=torch.tensor(loss), grad_norm=torch.tensor(norm), skipped_steps=torch.tensor(skipped))


def test_the_trace_of_skipped_steps():
    trace = Trace(1)
    for i in range(50):
        step_of(trace, norm=math.inf if i == 3 else 2.0, skipped=i == 3)
    step_of(trace, norm=math.inf, skipped=True)
    assert trace.summary() == {'train_loss': 1, 'train_grad_norm': 2, 'train_skipped_steps': 2}
    with pytest.raises(RunFailed, match='in each of 50 consecutive steps, a float16 gradient was not finite'):
        for _ in range(Trace.MOST_SKIPPED):
            step_of(trace, norm=math.inf, skipped=True)
    n_epochs = 0
    with pytest.raises(RunFailed, match='Epoch 3, step 10: in each of 50 consecutive steps'):          # short epochs
        for n_epochs in range(1, 9):
            trace = Trace(n_epochs, trace.skipped_in_a_row if n_epochs > 1 else 0)
            for _ in range(20):
                step_of(trace, norm=math.inf, skipped=True)
            trace.summary()
    with pytest.raises(RunFailed, match='step 1: the loss is nan'):
        trace = Trace(1)
        step_of(trace, math.nan, math.nan, True)
        trace.summary()


def test_the_trace_of_steps_with_different_names():
    """Means over the steps that have a name. A step that accumulates gradients does not say whether it is skipped."""
    trace = Trace(1)
    trace.add(loss=1.0, grad_norm=1.0)
    trace.add(loss=2.0, grad_norm=math.inf, skipped_steps=torch.tensor(True), late=3)
    trace.add(loss=3.0, grad_norm=3.0, skipped_steps=torch.tensor(False), late=torch.tensor(4.))
    assert trace.summary() == {'train_loss': 2, 'train_grad_norm': 2, 'train_skipped_steps': 1, 'train_late': 3.5}


@pytest.fixture
def compiler(monkeypatch):
    """
    Begins without the graphs of other tests, since torch compiles a function for eight kinds of input at most. The C++
    has no vector instructions: torch would compile a program for each kind of them to see which the processor has.
    """
    torch.compiler.reset()
    monkeypatch.setattr(cpu_vec_isa, 'valid_vec_isa_list', list)
    with inductor.patch(compile_threads=1):                            # others are processes that import torch
        try:
            device.check_compiler(CPU)
        except UserError:
            pytest.skip('torch.compile does not work here')
        counters.clear()
        yield
    assert counters['stats']['unique_graphs']


@pytest.fixture
def graphs(monkeypatch):
    """
    The number of images of each graph that torch.compile makes. The graphs are not turned into C++, which takes 20
    seconds and would compute the same. A graph for any number of images is an error.
    """
    sizes = []

    def noting(graph, inputs):
        for images in [given for given in inputs if isinstance(given, torch.Tensor) and given.dim() == 4
                       and given.shape[1] == 3 < given.shape[3]]:                      # not the kernels
            assert not any(isinstance(size, torch.SymInt) for size in images.shape)
            sizes.append(len(images))
        return graph

    torch.compiler.reset()
    monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend=noting))
    return sizes


def reset_before(begin):
    def beginning(*arguments):
        torch.compiler.reset()                                          # as in another process
        return begin(*arguments)
    return beginning


def one_block(opt):
    return Backbone(torch.nn.Sequential(conv4.block(3), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()), 16)


@pytest.mark.parametrize('flags', [
    '--compile --micro_bs 3 --bs 10',
    '--micro_bs 2 --amp float16 --bs 4 --iterations_per_epoch 1 --loss margin+softmax --batch_mining distance+none',
])
def test_resumed_runs_end_with_the_same_bits(flags, quick, run, tmp_path, monkeypatch, request):
    graphs = request.getfixturevalue('graphs') if 'compile' in flags else []
    if 'compile' in flags:                                              # conv4 takes three times as long
        monkeypatch.setitem(architectures.ARCHITECTURES, 'conv4', argparse.Namespace(backbone=one_block))
        monkeypatch.setattr(main, 'begin', reset_before(main.begin))
    assert_resumes_exactly(run, tmp_path, [*quick, *flags.split(), '--evaluation_metrics', 'e_recall@1'])
    state = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    assert ('step.scaler' in state['state'].get('attributes', {})) == ('float16' in flags.split())
    assert 'compile' not in flags or len({*graphs}) == 2, 'pieces of two sizes have graphs of their own'


def test_a_run_may_be_continued_in_other_pieces(quick, run, tmp_path, capsys):
    assert run(*quick, '--n_epochs', '0') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '1', '--micro_bs', '4') == 0
    assert 'BatchNorm uses the statistics of at most 4 images at a time' in capsys.readouterr().out


@pytest.mark.parametrize('more', ['--micro_bs 3', '--micro_bs 5 --embed_dim 6 --cascade 1 --cascade_fractions 0.5 '
                                                  '--batch_mining distance --loss margin'])
def test_a_compiled_network_computes_the_same(more, graphs):
    """With pieces of two sizes and of one; also where its random numbers are asked for twice."""
    flags = f'--loss proxyanchor --batch_mining none --n_epochs 1 {more}'
    plain, compiled = (train(f'{flags} {flag}', torch.float32, dropout=0.5) for flag in ('', '--compile'))
    assert_near(plain['network'], compiled['network'], 1e-4)
    assert len({*graphs}) == (2 if 'micro_bs 3' in more else 1)


# argv: the compiler, and arguments of main.py
COMPILING = """
import sys
from torch._inductor import config
from utilities import device, stopping
device.check_compiler = lambda device: None
config.cpp.cxx = (sys.argv[1],)
stopping.COMPILING = 1
stopping.install()
import main
sys.exit(main.main(sys.argv[2:]))
"""


def test_a_signal_to_all_processes_ends_a_run_that_compiles(quick, tmp_path):
    """Also where the compiler goes on."""
    compiler = tmp_path / 'compiler'
    compiler.write_text('#!/bin/sh\ncase "$*" in *version*) echo g++; exit;; esac\n'
                        f"touch {tmp_path}/begun\ntrap '' TERM; exec sleep 600\n")
    compiler.chmod(0o755)
    arguments = [*quick, '--compile', '--check_untrained_accuracy', 'false']
    process, _, errors = executing(tmp_path, COMPILING, compiler, *arguments,
                                   TORCHINDUCTOR_CACHE_DIR=str(tmp_path / 'compiled'))
    try:
        wait_for((tmp_path / 'begun').exists)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(10) == 130, errors.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert 'Traceback' not in errors.read_text() and folder_of(tmp_path).exists()


def test_an_error_of_a_compiler_that_a_signal_has_ended_is_no_error(monkeypatch):
    monkeypatch.setattr(stopping, 'requested', True)
    monkeypatch.setattr(torch, 'compile', lambda function: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        device.check_compiler(CPU)


# The main thread computes in C++ for a minute, where Python calls no handler.
IN_CPP = """
import torch
from utilities import stopping
stopping.COMPILING = 0.1
stopping.install()
with stopping.compiling():
    print('begun', flush=True)
    torch.linalg.svd(torch.rand(5000, 5000))
"""


def test_a_signal_ends_a_process_whose_main_thread_waits_for_others(tmp_path):
    process, out, errors = executing(tmp_path, IN_CPP)
    wait_for(lambda: 'begun' in out.read_text())
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 130
    assert 'Stopped while torch was compiling.' in out.read_text() + errors.read_text()


def test_the_two_passes_of_a_compiled_network_have_the_same_random_numbers(compiler):
    opt, built, _ = build('--compile --micro_bs 5', torch.float32, dropout=0.5)
    step = built.step
    built.model.backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(48, 24),
                                               torch.nn.Dropout(0.3))
    built.model.start_epoch(1)
    images = torch.rand(3, 3, 4, 4)
    with torch.no_grad():
        first, other = step.rows(images, 1), step.rows(images, 2)
    second = step.rows(images, 1)
    assert second.requires_grad and torch.allclose(first, second, atol=1e-6)
    assert not torch.allclose(first, other, atol=1e-2)


def test_without_a_compiler_a_sentence_says_so(quick, run, tmp_path, monkeypatch, capsys):
    torch.compiler.reset()
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path / 'cache'))
    with inductor.patch({'cpp.cxx': (None, str(tmp_path / 'none'))}):
        assert run(*quick, '--compile') == 2
    error = capsys.readouterr().err
    assert '--compile: torch.compile does not work on this machine' in error and len(error.splitlines()) <= 2
    assert not folder_of(tmp_path).exists()


def test_a_precision_that_the_device_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(torch, 'is_autocast_enabled', lambda kind: False)
    with pytest.raises(UserError, match='--amp float16: not available on this device .cpu.'):
        build('--amp float16')


@pytest.mark.parametrize('arch', ['conv4', 'timm:tf_efficientnet_b0'])
def test_synchronised_batch_norm_has_the_same_weights_and_activations(arch):
    if arch.startswith('timm'):
        pytest.importorskip('timm')
    opt = configuration.parse(['--arch', arch, '--not_pretrained', '--input_size', '32'])
    torch.manual_seed(0)
    model = architectures.select(opt).eval()
    images, keys = torch.rand(2, 3, 32, 32), model.state_dict().keys()
    before = model(images)[0]
    batch_norm.synchronise(model.backbone)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules())
    assert model.state_dict().keys() == keys and torch.allclose(model(images)[0], before, atol=1e-6)


def test_a_layer_that_waits_for_other_processes_is_refused_inside_a_criterion(monkeypatch):
    """Process 0 alone computes the loss, so that a SyncBatchNorm would wait there for ever."""
    monkeypatch.setitem(criteria.CRITERIA, 'features_and_layer', module_of(FeaturesAndLayer))
    opt, built, loader = build(f'{FEATURES} --embed_norm batch')
    batch = next(iter(loader.epoch(1)))
    built.step(*batch, 1, 1)
    built.model.f_embed = torch.nn.SyncBatchNorm.convert_sync_batchnorm(built.model.f_embed)
    built.model.eval()
    built.step(*batch, 2, 1)                                          # it uses its running statistics
    outputs = {'batch': torch.ones(10, 5).double(), 'batch_features': torch.ones(10, 24).double()}
    built.model.train()
    with pytest.raises(UserError, match='calls the embedding layer .* start one process, or use --embed_norm layer'):
        built.step.loss(outputs, labels=batch[1], indices=batch[2], step=3, epoch=1)


def test_the_optimizer_of_a_checkpoint_has_the_layouts_of_the_runs_parameters():
    """Convolutions are channels last on the CPU and not on a GPU, and fused optimizers walk through both alike."""
    opt, convolution, optimizers = build('')[0], torch.nn.Conv2d(3, 4, 3), []
    for layout in (torch.channels_last, torch.contiguous_format):
        own = copy.deepcopy(convolution).to(memory_format=layout)
        optimizers.append((optimization.build(opt, 'optim', [{'params': own.parameters()}]), own))
    (begun, own), (resumed, other) = optimizers
    own(torch.ones(1, 3, 4, 4)).square().sum().backward()
    begun.step()
    resumed.load_state_dict(begun.state_dict())
    moments = begun.state[own.weight]['exp_avg'], resumed.state[other.weight]['exp_avg']
    assert torch.equal(*moments) and moments[0].stride() != moments[1].stride() == other.weight.stride()


def test_the_optimizer_of_a_checkpoint_takes_the_device_of_the_run():
    """A checkpoint of a GPU has a fused optimizer; that of the CPU stays as it is."""
    _, built, _ = build('')
    state = built.optimizer.state_dict()
    for group in state['param_groups']:
        group['fused'] = True
    built.optimizer.load_state_dict(state)
    assert not any(group['fused'] for group in built.optimizer.param_groups)


# What a criterion is given, and its own optimizers

def test_at_most_eight_frames_lie_between_main_and_a_formula(quick, run, monkeypatch):
    """All frames count, those of torch's Module.__call__ too."""
    module, seen = criteria.CRITERIA['triplet'], []
    function = module.triplet_loss

    @functools.wraps(function)                                    # its file's flags are read from it
    def recorded(*arguments, **named):
        names = [frame.name for frame in traceback.extract_stack()[:-1]]
        seen.append(names[len(names) - names[::-1].index('main'):])
        return function(*arguments, **named)
    monkeypatch.setattr(module, 'triplet_loss', recorded)
    assert run(*quick, '--n_epochs', '1', '--loss', 'triplet') == 0
    assert len(seen) == 3 and len(seen[0]) <= 8, seen[0]


@pytest.fixture
def asks_for_all(monkeypatch):
    monkeypatch.setitem(criteria.CRITERIA, 'asks_for_all', module_of(AsksForAll))


def test_a_criterion_gets_the_images_as_the_backbone_does(monkeypatch):
    class Noting(AsksForAll):
        def forward(self, batch, images, indices, step, epoch, batch_features):
            self.given = images, indices
            return super().forward(batch, images, indices, step, epoch, batch_features)

    monkeypatch.setitem(criteria.CRITERIA, 'noting', module_of(Noting))
    for more in ('', ' --micro_bs 3'):
        _, built, loader = build('--loss noting --batch_mining none' + more)
        built.model.bgr = True
        images, labels, indices = next(iter(loader.epoch(1)))
        built.step(images, labels, indices, 1, 1)
        given, positions = built.criterion.given
        assert torch.equal(positions, indices) and not given.requires_grad
        assert torch.equal(given, (images.flip(1) - built.model.mean) / built.model.std)


def test_the_schedule_leaves_an_optimizer_of_the_criterions_own_alone(asks_for_all):
    _, built, _ = build('--loss asks_for_all --batch_mining none --scheduler step --tau 1 --clip_grad_value 0.001')
    own, = mined.optimizers(built.criterion)
    names = {group['name']: group for group in built.optimizer.param_groups}
    assert names['criterion']['params'] == [built.criterion.scale]
    built.schedule.at(100)
    assert own.param_groups[0]['lr'] == 0.1 and names['criterion']['lr'] < 0.01
    assert built.with_state()['criterion_optimizer_1'] is own
    before = built.criterion.head.bias.clone()
    built.step(torch.rand(6, 3, 4, 4, dtype=torch.float64), torch.arange(6), torch.arange(6), 1, 1)
    moved = (built.criterion.head.bias - before).abs()
    assert 0 < moved.max() <= 0.1 * 0.001 * (1 + 1e-6)                                  # its gradient was clipped


@pytest.mark.parametrize('later, is_fresh', [
    ({}, False), ({'kind': torch.optim.Adamax}, True), ({'kind': torch.optim.SGD, 'lr': 0.2}, True),
    ({'kind': torch.optim.SGD, 'lr': 0.2, 'shape': (5, 1)}, True), ({'lr': 0.2, 'shape': (5, 1)}, True)])
def test_an_optimizer_of_the_criterions_own_takes_over_the_state_of_its_kind(later, is_fresh, tmp_path, capsys):
    """In a run whose criterion changes. Where the criterion starts fresh, so do the settings of its optimizer."""
    def state_of(kind=torch.optim.Adam, lr=0.1, shape=(5,)):
        head = torch.nn.ParameterDict({'weight': torch.nn.Parameter(torch.ones(shape))})
        criterion = built.criterion = torch.nn.ModuleDict({'head': head})
        criterion.parameter_groups = list
        criterion.optimizers = functools.cache(lambda: [kind(head.parameters(), lr=lr)])
        _, built.schedule = optimization.select(opt, built.model, criterion)
        return criterion.optimizers()[0], checkpoint.Checkpoint(
            tmp_path, {}, [], built.with_state(), built.state(opt.device))

    opt, built, _ = build('')
    begun, state = state_of()
    begun.param_groups[0]['params'][0].grad = torch.ones(5)
    begun.step()
    state.save(1, {'epoch': 1})
    own, state = state_of(**later)
    settings = {name: value for name, value in own.param_groups[0].items() if name != 'params'}
    state.resume(lambda settings, merging: [], lambda epoch: True)
    assert ('criterion_optimizer_1' in capsys.readouterr().out) == is_fresh == (not own.state)
    parameter, = own.param_groups[0]['params']
    assert settings == {name: value for name, value in own.param_groups[0].items() if name != 'params'}
    parameter.grad = torch.ones_like(parameter)
    own.step()
    assert parameter.isfinite().all()


@pytest.mark.parametrize('where', ['head', 'network'])
def test_in_float16_all_optimizers_skip_a_step_or_none(where, asks_for_all):
    _, built, _ = build('--loss asks_for_all --batch_mining none --amp float16', torch.float32)
    part = built.criterion.head if where == 'head' else built.model.f_embed
    trained = [*built.model.parameters(), *built.criterion.parameters()]
    hook = next(part.parameters()).register_hook(lambda gradient: gradient * torch.inf)
    for skipped in (True, False):
        before = [parameter.clone() for parameter in trained]
        _, scalars = built.step(torch.rand(6, 3, 4, 4), torch.arange(6), torch.arange(6), 1, 1)
        assert bool(scalars['skipped_steps']) == skipped
        assert all(torch.equal(*pair) == skipped for pair in zip(before, trained, strict=True))
        hook.remove()


def test_with_images_no_features_of_training_images_are_kept(asks_for_all, quick, run, monkeypatch, capsys):
    flags = [*quick, '--n_epochs', '1', '--iterations_per_epoch', '4', '--freeze', 'backbone',
             '--augmentation', 'none', '--arch', 'conv4_frozen_normalize', '--loss', 'asks_for_all',
             '--batch_mining', 'none']
    assert run(*flags) == 0
    out = capsys.readouterr().out
    assert 'the features of the evaluated images are computed once' in out


class ImagesByFlag(torch.nn.Module):
    """Takes images, but needs them with a flag only."""

    def __init__(self, opt):
        super().__init__()
        self.inputs = ['images'] if opt.tuple_statistics else []

    def forward(self, batch, images=None, **kwargs):
        return batch.mean() + (0 if images is None else images.mean())


class TakesMaps(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()

    def forward(self, batch, feature_maps, **kwargs):
        return batch.mean()


class TakesTeacher(TakesMaps):
    def forward(self, batch, teacher_batch, **kwargs):
        return batch.mean()


class Mistyped(TakesMaps):
    inputs = ['image']


@pytest.mark.parametrize('flags, wanted', [('', set()), ('--tuple_statistics', {'images'})])
def test_an_input_that_only_a_flag_needs_is_named_by_the_constructor(flags, wanted, monkeypatch):
    monkeypatch.setitem(criteria.CRITERIA, 'own', module_of(ImagesByFlag))
    for loss in ('own', 'own+softmax'):
        _, built, loader = build(f'--loss {loss} --batch_mining none {flags}')
        assert built.step.inputs == wanted
        built.step(*next(iter(loader.epoch(1))), 1, 1)


@pytest.mark.parametrize('criterion, sentence', [
    (Mistyped, 'self.inputs of .*: image: unknown; choose from feature_maps, images, teacher_batch'),
    (TakesTeacher, '--loss own needs the embeddings of a teacher: give --distill'),
    (TakesMaps, '--loss own: --arch .* has no feature maps'),
])
def test_inputs_that_a_run_does_not_have_are_refused(criterion, sentence, monkeypatch):
    monkeypatch.setitem(criteria.CRITERIA, 'own', module_of(criterion))
    with pytest.raises(UserError, match=sentence):
        build('--loss own --batch_mining none')


def test_synthetic_negatives_have_no_images(monkeypatch):
    class OfTriplets(AsksForAll):
        def __init__(self, opt, batchminer):
            super().__init__(opt)
    module = module_of(OfTriplets)
    vars(module).update(REQUIRES_BATCHMINER=True, ALLOWED_MINING_OPS=None)
    monkeypatch.setitem(criteria.CRITERIA, 'own', module)
    with pytest.raises(UserError, match='--daml does not work with --loss own, which takes images, indices: synthetic'):
        build('--loss own --batch_mining distance --daml')


def test_a_parameter_of_two_optimizers_is_refused(asks_for_all, monkeypatch):
    monkeypatch.setattr(AsksForAll, 'optimizers', lambda self: [self.optimizer, torch.optim.SGD(self.parameters())])
    with pytest.raises(UserError, match='trained twice: leave the parameters of each of its optimizers'):
        build('--loss asks_for_all --batch_mining none')


def test_groups_beside_an_optimizer_of_the_criterions_own_keep_the_parameters_of_a_generator():
    own, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    group = {'params': (parameter for parameter in [other])}
    optimization.groups.check_once([group], [torch.optim.SGD([own])])
    assert group['params'] == [other]


# On GPUs

@pytest.mark.gpu
@pytest.mark.parametrize('flags', [
    '', pytest.param('--amp bfloat16 --compile', marks=pytest.mark.gpu('cuda')), '--amp float16',
    pytest.param('--compile --micro_bs 5', marks=pytest.mark.gpu('cuda')), '--clip_grad 1 --amp float16 --micro_bs 5'])
def test_runs_on_a_gpu(flags, quick, run, tmp_path):
    """Also what has been compiled goes on, on the CPU without compiling, which would take longer than all the rest."""
    arguments = [*quick, '--device', 'cuda', *flags.split()]
    with inductor.patch(compile_threads=1):                            # others are processes that import torch
        assert run(*arguments, '--n_epochs', '1') == 0
        assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    moved = ['--n_epochs', '3', '--device', 'cpu', '--compile', 'false']
    assert run('--resume', folder_of(tmp_path), *moved) == 0


@pytest.mark.gpu
def test_a_gpu_computes_the_gradients_of_the_cpu_in_pieces():
    flags = '--micro_bs 3 --loss proxyanchor --batch_mining none --optim sgd --iterations_per_epoch 1 --n_epochs 1'
    with device.full_float32():
        on_cpu, on_gpu = (train(flags, torch.float32, where)['gradients'] for where in ('cpu', GPU))
    assert_near(on_cpu, {name: gradient.cpu() for name, gradient in on_gpu.items()}, 1e-3)


@pytest.mark.gpu('cuda')
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two NVIDIA GPUs')
def test_batch_norm_is_synchronised_on_two_gpus(tmp_path):
    flags = '--loss proxyanchor --batch_mining none --optim sgd --lr 0.01 --iterations_per_epoch 5 --n_epochs 1'
    for n in (1, 2):
        torch.multiprocessing.spawn(train_on_gpus, (n, flags, tmp_path), n)
    one, *two = (torch.load(tmp_path / name, map_location='cpu') for name in ('1_0.pt', '2_0.pt', '2_1.pt'))
    assert_near(one['network'], two[0]['network'], 1e-3)
    assert all(torch.equal(value, two[1]['network'][name]) for name, value in two[0]['network'].items())
