"""What the loop offers to parts of one's own: start_epoch(), a sampler's criterion, scalars for the log."""
import numpy as np
import pytest
import torch

import batch_mining
import criteria
import datasampler
import parts
from architectures import depth
from records import checkpoint
from tests.helpers import assert_resumes_exactly, folder_of, kept_by
from training_step import TrainingStep

FEW = ['--iterations_per_epoch', '2', '--evaluation_metrics', 'e_recall@1', '--loss', 'triplet', '--batch_mining',
       'semihard']
TRIPLET, SEMIHARD, SAMPLER = (criteria.CRITERIA['triplet'].Criterion, batch_mining.BATCHMINERS['semihard'].BatchMiner,
                              datasampler.SAMPLERS['class_random'].Sampler)


def test_parts_hear_of_each_epoch_also_inside_sums_and_wrappers(quick, run, monkeypatch):
    heard = []
    for part in (TRIPLET, SEMIHARD, SAMPLER):
        monkeypatch.setattr(part, 'start_epoch', lambda self, epoch, name=part.__name__: heard.append((name, epoch)),
                            raising=False)
    flags = ['--loss', 'triplet+softmax', '--batch_mining', 'semihard+none', '--dr_weight', '0.1']
    assert run(*quick, *FEW, *flags) == 0
    assert heard == [(name, epoch) for epoch in (1, 2) for name in ('Criterion', 'BatchMiner', 'Sampler')]


def test_parts_hear_of_each_step_and_evaluation(quick, run, monkeypatch):
    """Every part, also a memory bank inside a sampler and an object that is put on the parts."""
    heard = []

    class Heard:
        def stepped(self, embeddings, labels, indices, step):
            heard.append(('step', step, [*embeddings.shape], len(labels), len(indices)))

        def evaluated(self, row, embedded, epoch):
            heard.append(('evaluated', epoch, 'test_e_recall@1' in row, [*embedded]))

    def build(opt):
        built = original(opt)
        built.sampler.inner, built.own = Heard(), Heard()
        return built

    original = parts.build
    monkeypatch.setattr(parts, 'build', build)
    assert run(*quick, *FEW, '--no_train_metrics') == 0
    once = [('evaluated', 0, True, ['test']), ('step', 1, [12, 16], 12, 12), ('step', 2, [12, 16], 12, 12),
            ('evaluated', 1, True, ['test']), ('step', 3, [12, 16], 12, 12), ('step', 4, [12, 16], 12, 12),
            ('evaluated', 2, True, ['test'])]
    assert heard == [one for one in once for _ in range(2)]


def test_a_miner_gets_what_it_names_of_indices_step_and_epoch(quick, run, monkeypatch):
    given = []

    class Remembering(SEMIHARD):
        def __call__(self, batch, labels, indices, epoch, step):
            assert len(indices) == len(labels) == len(batch)
            given.append((epoch, step))
            return super().__call__(batch, labels)

    monkeypatch.setattr(batch_mining.BATCHMINERS['semihard'], 'BatchMiner', Remembering)
    assert run(*quick, *FEW) == 0
    assert given == [(1, 1), (1, 2), (2, 3), (2, 4)]


class Learned:
    def __init__(self):
        self.weight, self.own = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.own], lr=1.)

    def parameter_groups(self):
        return [{'params': [self.weight], 'lr': 1.}]

    def optimizers(self):
        return [self.optimizer]

    def get_gradients(self):
        with torch.enable_grad():
            (self.weight + self.own).sum().backward()


class LearningMiner(Learned, SEMIHARD):
    def __init__(self, opt):
        super().__init__()
        SEMIHARD.__init__(self, opt)

    def __call__(self, batch, labels):
        self.get_gradients()
        self.log = {'weight': self.weight.detach().mean()}
        return super().__call__(batch, labels)


class LossWithLearned(TRIPLET):
    def __init__(self, opt, batchminer):
        super().__init__(opt, batchminer)
        self.learned = Learned()                                  # no module

    def forward(self, batch, labels):
        self.learned.get_gradients()
        return super().forward(batch, labels)


@pytest.mark.parametrize('module, name, kind, place', [
    (batch_mining.BATCHMINERS['semihard'], 'BatchMiner', LearningMiner, 'miner'),
    (criteria.CRITERIA['triplet'], 'Criterion', LossWithLearned, 'criterion.learned')], ids=['miner', 'in a loss'])
def test_parts_may_have_optimizer_groups_optimizers_and_scalars(
        module, name, kind, place, quick, run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, name, kind)
    assert_resumes_exactly(run, tmp_path, [*quick, *FEW, '--optim', 'sgd'])
    kept = kept_by(folder_of(tmp_path), place)
    assert kept['own'].item() == 1 - 4 and kept['weight'].item() < 0
    states = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    part = place.partition('.')[0]
    assert [group['name'] for group in states['optimizer']['param_groups']][-1] == part
    assert f'{part}_optimizer_1' in states


def test_a_sampler_with_set_epoch_is_refused(quick, run, monkeypatch, capsys):
    class Old(SAMPLER):
        def set_epoch(self, epoch):
            self.epoch = epoch

    monkeypatch.delattr(SAMPLER, 'start_epoch')
    monkeypatch.setattr(datasampler.SAMPLERS['class_random'], 'Sampler', Old)
    assert run(*quick, *FEW) == 2
    assert 'its method set_epoch is never called; name it start_epoch' in capsys.readouterr().err


def test_a_sampler_may_ask_for_the_criterion(quick, run, monkeypatch):
    module, given = datasampler.SAMPLERS['class_random'], []

    class Asking(SAMPLER):
        def __init__(self, opt, image_dict, image_list, criterion):
            super().__init__(opt, image_dict, image_list)
            given.append(criterion)

    monkeypatch.setattr(module, 'REQUIRES_CRITERION', True, raising=False)
    monkeypatch.setattr(module, 'Sampler', Asking)
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    assert [type(criterion) for criterion in given] == [TRIPLET]


@pytest.mark.parametrize('name, value, words', [
    ('spread', torch.ones(3), 'a loss or miner: spread is a value of the shape [3]; expected'),
    ('spread', np.ones((2, 1)), 'a loss or miner: spread is a value of the shape [2, 1]; expected'),
    ('loss', 1., 'the loss: loss is a scalar that the run logs itself; choose another name')])
def test_what_cannot_be_in_the_log_is_named(name, value, words, quick, run, tmp_path, monkeypatch, capsys):
    forward = TRIPLET.forward

    def logging(self, batch, labels, **kwargs):
        loss = forward(self, batch, labels, **kwargs)
        self.log[name] = value
        return loss

    monkeypatch.setattr(TRIPLET, 'forward', logging)
    assert run(*quick, *FEW) == 2
    error = capsys.readouterr().err
    assert f'self.log of {words}' in error and 'Traceback' not in error


def test_a_loss_in_float64_has_the_type_of_the_zeros_of_the_other_processes(quick, run, monkeypatch):
    forward, backward = TRIPLET.forward, TrainingStep.backward
    types = set()

    def noting(self, loss, outputs):
        types.add(loss.dtype)
        backward(self, loss, outputs)

    monkeypatch.setattr(TRIPLET, 'forward', lambda *given, **named: forward(*given, **named).double())
    monkeypatch.setattr(TrainingStep, 'backward', noting)
    assert run(*quick, *FEW) == 0 and types == {torch.float32}


class Inside(torch.nn.Module):
    """A network that is one module of another."""

    def __init__(self, network, *more):
        super().__init__()
        self.network = network
        self.more = torch.nn.ModuleList(more)


def test_a_backbone_inside_another_module_has_the_blocks_of_the_inner_one():
    inner = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.Conv2d(3, 3, 3))
                                  for _ in range(4)))
    alone = [[f'network.{name}' for name in names] for names in depth.blocks(inner)]
    for network in (Inside(inner), Inside(inner, torch.nn.Linear(3, 2)), Inside(Inside(inner))):
        found = depth.blocks(network)
        expected = [[f'{"network." * isinstance(network.network, Inside)}{name}' for name in names] for names in alone]
        assert found[:len(expected)] == expected
