"""Runs whose parts keep state in all forms, stopped after two of four epochs and resumed: the same bits."""
import collections
import copy
import io
import itertools

import numpy as np
import pytest
import torch

import batch_mining
import criteria
import datasampler
import main
import training_step
from records import checkpoint
from tests.helpers import assert_same_end, folder_of, kept_by
from tests.test_processes import runs

FEW = ['--iterations_per_epoch', '3', '--evaluation_metrics', 'e_recall@1', '--loss', 'softmax+triplet',
       '--batch_mining', 'none+semihard', '--n_epochs', '4', '--check_untrained_accuracy', 'false']
SOFTMAX, TRIPLET = (criteria.CRITERIA[name].Criterion for name in ('softmax', 'triplet'))
SEMIHARD, SAMPLER = batch_mining.BATCHMINERS['semihard'].BatchMiner, datasampler.SAMPLERS['class_random'].Sampler


class Loss(SOFTMAX):
    """Its value depends on a buffer of the first call, a deque, a set, a generator, an alias, a counter, a leaf."""

    def __init__(self, opt):
        super().__init__(opt)
        self.queue, self.seen = collections.deque(maxlen=4), set()
        self.watched = self.weights.detach()
        self.a = self.b = []
        self.generator = np.random.default_rng(1)
        self._count = 0
        self.centre = torch.zeros(opt.embed_dim, requires_grad=True)

    def forward(self, batch, labels, reduction='mean', **kwargs):
        if not hasattr(self, 'mean'):
            self.register_buffer('mean', torch.zeros(batch.shape[1]))
        self.mean += 0.1 * batch.detach().mean(dim=0)
        self.queue.append(batch.detach().mean(dim=0))
        self.seen.update(labels.tolist())
        self.a.append(len(self.seen))
        self._count += 1
        towards = self.mean + sum(self.queue) + self.watched.mean(dim=0) + 0.01 * (len(self.b) + self._count)
        self.centre = (0.9 * self.centre.detach() + batch.detach().mean(dim=0)).requires_grad_()
        term = ((batch - self.centre) * (towards + self.generator.random())).sum(dim=1).square().mean()
        return super().forward(batch, labels, reduction) + term


class Miner(SEMIHARD):
    """Leaves out images that it was given often; from the third epoch on it remembers more."""

    def __init__(self, opt):
        super().__init__(opt)
        self.counts = collections.Counter()

    def __call__(self, batch, labels, indices, epoch):
        self.counts.update(indices.tolist())
        if epoch > 2:
            self.late = getattr(self, 'late', 0) + 1
        triplets = super().__call__(batch, labels)
        often = torch.tensor([self.counts[index] + getattr(self, 'late', 0) > 9 for index in indices.tolist()])
        return triplets[~often[triplets[:, 0]]] if (~often).any() else triplets


class Sampler(SAMPLER):
    """Its batches begin at a number that it keeps."""
    offset = 0

    def __iter__(self):
        self.offset = self.offset + 1
        return iter([batch[self.offset % len(batch):] + batch[:self.offset % len(batch)]
                     for batch in super().__iter__()])


class Step(training_step.TrainingStep):
    """Counts, keeps a frozen copy of the network at the start, and accumulates the gradients of four steps."""

    def __init__(self, opt, parts):
        super().__init__(opt, parts)
        self.n = 0
        self.start = copy.deepcopy(parts.model).requires_grad_(False).eval()

    def loss(self, outputs, **more):
        assert not self.start.training                        # no epoch begins for a copy of the network
        first = next(self.start.parameters()).mean()
        return super().loss(outputs, **more) + 0.01 * self.n * first * outputs['batch'].square().sum()

    def update(self, loss):
        self.n += 1
        if self.n % 4:
            return {'loss': loss, **self.parts.log(), 'grad_norm': loss.new_zeros(())}
        return super().update(loss)


def edit(replace=setattr):
    replace(criteria.CRITERIA['softmax'], 'Criterion', Loss)
    replace(batch_mining.BATCHMINERS['semihard'], 'BatchMiner', Miner)
    replace(datasampler.SAMPLERS['class_random'], 'Sampler', Sampler)
    replace(training_step, 'TrainingStep', Step)


@pytest.fixture
def edited(monkeypatch):
    edit(monkeypatch.setattr)


@pytest.mark.parametrize('more', [[], ['--eval_every', '2'], ['--micro_bs', '5'], ['--start_from']],
                         ids=['plain', 'every second epoch', 'in pieces', 'from a trained network'])
def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(more, quick, run, tmp_path, edited, capsys):
    """After two epochs of three steps, the gradients of two steps are accumulated."""
    if more == ['--start_from']:
        assert run(*quick, *FEW, '--n_epochs', '1', '--group', 'before') == 0
        more = ['--start_from', folder_of(tmp_path, 'before_s1')]
    assert run(*quick, *FEW, *more) == 0
    assert run(*quick, *FEW, *more, '--group', 'half', '--n_epochs', '2') == 0
    half = folder_of(tmp_path, 'half_s1')
    state = checkpoint.load(half / 'checkpoint_last.pt')['state']
    assert len(state['gradients']) > 5 and kept_by(half, 'step')['n'] == 6
    assert run('--resume', half, '--n_epochs', '4') == 0
    assert_same_end(folder_of(tmp_path), half)
    assert 'no checkpoint can hold' not in capsys.readouterr().err


def test_so_does_a_run_of_two_processes(quick, tmp_path):
    edited = 'from tests import test_state_of_runs; test_state_of_runs.edit()'
    half = folder_of(tmp_path, 'half_s1')
    codes, _, errors = runs(tmp_path, (2, [*quick, *FEW], edited),
                            (2, [*quick, *FEW, '--group', 'half', '--n_epochs', '2'], edited),
                            (2, ['--resume', half, '--n_epochs', '4'], edited))
    assert codes == [0, 0, 0], errors
    assert_same_end(folder_of(tmp_path), half)
    assert 'no checkpoint can hold' not in errors


def test_an_iterator_is_named_before_the_run_is_stopped(quick, run, tmp_path, monkeypatch, capsys):
    (tmp_path / 'lines.txt').write_text('1\n2\n3\n4\n')

    class Reading(TRIPLET):
        def forward(self, batch, labels, **kwargs):
            self.lines = getattr(self, 'lines', None) or itertools.cycle(open(tmp_path / 'lines.txt'))
            return super().forward(batch, labels, **kwargs) * float(next(self.lines))

    monkeypatch.setattr(criteria.CRITERIA['triplet'], 'Criterion', Reading)
    assert run(*quick, *FEW, '--loss', 'triplet', '--batch_mining', 'semihard', '--n_epochs', '2') == 0
    found = capsys.readouterr().err
    assert found.count('Note: criterion.lines is an iterator (cycle)') == 1 and 'count what was taken' in found


def test_a_part_inside_a_wrapper_is_called_once():
    class Annealed:
        margin = 0.8

        def start_epoch(self, epoch):
            self.margin /= 2

    class Wrapper:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(vars(self)['inner'], name)

    class Table(dict):
        __getattr__ = dict.__getitem__

    built = main.parts.Parts(torch.nn.Linear(1, 1), None, miner=Wrapper(Annealed()), transform=Table(a=1))
    built.call('start_epoch', 1)
    assert built.miner.margin == 0.4


def test_an_annealed_margin_starts_fresh_only_if_its_flag_has_changed(quick, run, tmp_path, monkeypatch, capsys):
    class Annealed(TRIPLET):
        def __init__(self, opt, batchminer):
            super().__init__(opt, batchminer)
            self.margin, self.n = opt.loss_triplet_margin, 0

        def start_epoch(self, epoch):
            self.margin, self.n = self.margin / 2, self.n + 1

    monkeypatch.setattr(criteria.CRITERIA['triplet'], 'Criterion', Annealed)
    arguments = [*quick, *FEW, '--loss', 'triplet', '--batch_mining', 'semihard', '--loss_triplet_margin', '0.8']
    assert run(*arguments, '--n_epochs', '2') == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder, '--n_epochs', '3', '--merge_argparse_when_resuming', '--lr', '0.01') == 0
    assert 'start fresh' not in capsys.readouterr().out and kept_by(folder, 'criterion')['margin'] == 0.1
    changed = ['--merge_argparse_when_resuming', '--loss_triplet_margin', '4']
    assert run('--resume', folder, '--n_epochs', '4', *changed) == 0
    assert 'start fresh: criterion.margin\n' in capsys.readouterr().out
    assert kept_by(folder, 'criterion') == {'margin': 2, 'n': 4}


def test_a_trained_network_has_its_attributes(quick, run, tmp_path, monkeypatch, capsys):
    """By --evaluate, and of the best checkpoint."""
    network = main.parts.architectures.embedding_network.EmbeddingNetwork

    def embedded(self, features):
        return original(self, features) + getattr(self, 'shift', 0)

    original = network.embedded
    monkeypatch.setattr(network, 'embedded', embedded)
    monkeypatch.setattr(network, 'stepped', lambda self, *more: setattr(self, 'shift', torch.arange(16.)),
                        raising=False)
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    from retrieval import loading
    found, _ = loading.load(folder_of(tmp_path) / 'checkpoint_test_e_recall@1.pt')
    assert torch.equal(found.model.shift, torch.arange(16.))


def test_a_plain_run_keeps_next_to_nothing(quick, run, tmp_path):
    """Beside its weights and its optimizer."""
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    content = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    sizes = []
    for part in (content, {name: value for name, value in content.items() if name != 'state'}):
        file = io.BytesIO()
        torch.save(part, file)
        sizes.append(file.tell())
    assert sizes[0] - sizes[1] < 1000 and 'gradients' not in content['state']
