"""--distill: the similarities of a teacher as a term beside any loss; its value, its runs and what it refuses."""
import argparse
import shutil

import pytest
import torch

import batch_mining
import configuration
import criteria
import main
import parts
from criteria.distillation import Distilled, distillation_loss
from datasets.loading import TrainingLoader
from evaluation.embedding import network_input
from records import checkpoint
from tests.helpers import assert_resumes_exactly, assert_same_end, folder_of, printed_metrics, rows_of

F64 = torch.float64
FEW = ['--evaluation_metrics', 'e_recall@1']
TEACHER = ['--group', 'teacher', '--embed_dim', '7', '--seed', '5', '--arch', 'conv4', '--input_mean', '0.4',
           '--input_std', '0.3', '--input_bgr', '--loss', 'proxyanchor', '--batch_mining', 'none', '--ema', '0.5']


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def slow(batch, teacher_batch, temperature):
    """Each image's distribution over the images of the batch, the teacher's against the student's, in loops."""
    def rows_of_similarities(points):
        exponentials = [[(torch.dot(x, y) / x.norm() / y.norm() / temperature).exp() for y in points] for x in points]
        return [[value / sum(row) for value in row] for row in exponentials]

    total = 0
    for own, wanted in zip(rows_of_similarities(batch), rows_of_similarities(teacher_batch.detach()), strict=True):
        total = total + sum(q * torch.log(q / p) for p, q in zip(own, wanted, strict=True))
    return temperature ** 2 * total / len(batch)


# The term

@pytest.mark.parametrize('temperature', [1., .3])
def test_value_and_gradient_are_those_of_loops_and_the_teacher_gets_none(temperature):
    batch, teacher_batch = random(7, 4).requires_grad_(), random(7, 3, seed=1).requires_grad_()
    found, expected = distillation_loss(batch, teacher_batch, temperature), slow(batch, teacher_batch, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    gradient, nothing = torch.autograd.grad(found, [batch, teacher_batch], allow_unused=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, batch)[0], rtol=1e-9, atol=1e-9)
    assert nothing is None


@pytest.mark.parametrize('loss, more', [
    ('proxyanchor', {}), ('margin', {'batch_mining': 'all'}), ('supcon', {'xbm_size': 12, 'xbm_start': 0}),
    ('triplet', {'batch_mining': 'all', 'dr_weight': .3}), ('s2sd', {'loss_s2sd_target_dims': [5]}),
    ('multisimilarity+linear_classifier', {'loss_weights': [1., .5]}), ('hyperbolic', {})])
def test_it_is_added_to_any_loss_with_its_weight(loss, more, opt):
    namespace = opt(loss=loss, **{'batch_mining': 'none', 'embed_dim': 4, 'n_features': 4, 'bs': 6} | more)
    labels, batch, teacher_batch = torch.tensor([0, 0, 1, 1, 2, 2]), random(6, 4).float(), random(6, 3).float()
    values, built = [], []
    for given in ({}, {'distill': 'elsewhere', 'distill_w': 4., 'distill_T': .5},
                  {'distill': 'elsewhere', 'distill_w': 0.}):
        vars(namespace).update({'distill': None} | given)
        torch.manual_seed(0)
        built.append(criteria.select(namespace, batch_mining.select(namespace)))
        taught = {'teacher_batch': teacher_batch} if isinstance(built[-1], Distilled) else {}
        values.append(built[-1](batch=batch, labels=labels, batch_features=batch, f_embed=None, **taught).item())
    assert values[1] == pytest.approx(values[0] + 4 * distillation_loss(batch, teacher_batch, .5).item(), rel=1e-5)
    assert values[2] == values[0] != values[1] and type(built[2]) is type(built[0])
    groups = [[(group['lr'], sum(p.numel() for p in group['params'])) for group in criterion.parameter_groups()]
              for criterion in built]
    assert groups[0] == groups[1] and built[1].log['distillation'] > 0
    assert hasattr(built[0], 'ranking_embeddings') == hasattr(built[1], 'ranking_embeddings') == (loss == 'hyperbolic')


def test_a_loss_that_takes_the_teachers_embeddings_has_them_too(opt, monkeypatch):
    class Criterion(torch.nn.Module):
        def __init__(self, opt):
            super().__init__()

        def forward(self, batch, teacher_batch, **kwargs):
            return (batch.norm() - teacher_batch.norm()).square()
    monkeypatch.setitem(criteria.CRITERIA, 'own', argparse.Namespace(
        ALLOWED_MINING_OPS=None, REQUIRES_BATCHMINER=False, REQUIRES_OPTIM=False, Criterion=Criterion))
    batch, teacher_batch = random(6, 4).float(), random(6, 3).float()
    criterion = criteria.select(opt(loss='own', embed_dim=4, distill='elsewhere', distill_w=4., distill_T=.5), None)
    assert criterion(batch=batch, labels=torch.arange(6), teacher_batch=teacher_batch).item() == pytest.approx(
        ((batch.norm() - teacher_batch.norm()) ** 2 + 4 * distillation_loss(batch, teacher_batch, .5)).item())


# Runs

@pytest.fixture(scope='module')
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp('kept') / 'teacher_s5'


@pytest.fixture
def teacher(quick, run, tmp_path, kept):
    """The folder of a run with another network, dimension and input format: trained for the first test, then copied."""
    folder = folder_of(tmp_path, 'teacher_s5')
    if not kept.exists():
        assert run(*quick, *FEW, '--n_epochs', '1', *TEACHER) == 0
        shutil.copytree(folder, kept)
    return shutil.copytree(kept, folder, dirs_exist_ok=True)


def test_a_run_with_a_trained_teacher_is_continued_exactly(teacher, quick, run, tmp_path):
    assert_resumes_exactly(run, tmp_path, [*quick, *FEW, '--distill', teacher / 'checkpoint_last.pt', '--micro_bs', '5',
                                           '--distill_T', '0.2', '--loss', 'margin+softmax'])


def test_weight_0_is_no_teacher_to_the_bit_and_no_forward_pass(teacher, quick, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, 'load_teacher', None)
    arguments = [*quick, *FEW, '--ema', '0.9', '--n_epochs', '1']
    assert run(*arguments) == 0
    for name in (teacher, 'ema'):
        assert run(*arguments, '--distill', name, '--distill_w', '0', '--group', 'zero') == 0
        assert 'without effect in this run: ' in (error := capsys.readouterr().err) and f'--distill {name}' in error
    for name in ('zero_s1', 'zero_s1_1'):
        assert_same_end(folder_of(tmp_path), folder_of(tmp_path, name))
    opt = configuration.parse([*arguments, '--distill', 'ema', '--distill_w', '0'])
    assert parts.build(opt).step.teacher is None


def test_the_teacher_sees_the_same_images_and_stays_as_it_is(teacher, quick):
    opt = configuration.parse([*quick, '--distill', str(teacher)])
    built = parts.build(opt)
    alone = parts.restore(configuration.parse(['--evaluate', str(teacher)]), teacher).model.eval()
    before = {name: value.clone() for name, value in built.teacher.state_dict().items()}
    main.train_epoch(opt, built, TrainingLoader(opt, built.data.train, built.sampler), 1)
    assert not built.teacher.training and built.model.training
    assert all(torch.equal(value, before[name]) for name, value in built.teacher.state_dict().items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in built.teacher.parameters())
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        expected = alone(network_input(images, opt.device))[0]
    taught = torch.cat([built.step.costly(piece)['teacher_batch'] for piece in (images[:2], images[2:])])
    torch.testing.assert_close(taught, expected, rtol=1e-5, atol=1e-5)
    assert taught.shape == (5, 7) and built.teacher.bgr and not built.model.bgr
    assert built.teacher.mean.flatten().tolist() != built.model.mean.flatten().tolist()


def test_a_resumed_run_refuses_another_teacher(teacher, quick, run, tmp_path, capsys):
    assert run(*quick, *FEW, '--distill', teacher, '--n_epochs', '1') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2', '--distill', 'ema') == 2
    assert 'cannot change within a run: --distill ema' in capsys.readouterr().err
    assert run('--resume', teacher, '--n_epochs', '2') == 0                            # which trains it on
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 2
    assert 'the file of --distill has changed since the run began' in capsys.readouterr().err


def test_a_distilled_network_is_evaluated_without_its_teacher(teacher, quick, run, tmp_path, capsys):
    assert run(*quick, *FEW, '--distill', teacher, '--loss', 'hyperbolic', '--batch_mining', 'none') == 0
    shutil.rmtree(teacher)
    capsys.readouterr()
    assert run('--evaluate', folder_of(tmp_path)) == 0
    printed = printed_metrics(capsys.readouterr().out)
    assert printed['test_e_recall@1'] == rows_of(folder_of(tmp_path))[-1]['test_e_recall@1']


def test_what_cannot_teach_is_refused_in_a_sentence(teacher, quick, run, tmp_path, capsys):
    def refused(*arguments):
        assert run(*quick, *arguments) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) <= 2 and 'Traceback' not in error and not folder_of(tmp_path).exists()
        return error

    assert '--distill: nowhere: not a run folder: nowhere/config.yaml: No such file' in refused('--distill', 'nowhere')
    assert '--distill ema: the teacher is the moving average of the weights' in refused('--distill', 'ema')
    assert '--distill_w: expected a number of at least 0, not -1' in refused('--distill', teacher, '--distill_w', '-1')
    assert '--distill_T: expected a number above 0, not 0' in refused('--distill', teacher, '--distill_T', '0')
    assert (f'--distill {teacher}: its network takes images of 16 pixels, and this run\'s network images of 24; give '
            'this run --input_size 16') in refused('--distill', teacher, '--input_size', '24')
    last = teacher / checkpoint.LAST
    states = checkpoint.load(last)
    torch.save(states | {'model': {'f_embed.weight': torch.zeros(3)}}, last)
    assert f'--distill {teacher}: its weights do not fit the flags' in refused('--distill', teacher)
    last.unlink()
    assert f'--distill: {teacher}: there is no checkpoint' in refused('--distill', teacher)


def test_the_checksum_depends_on_names_types_shapes_and_bytes():
    state = {'a': torch.arange(6.).view(2, 3), 'b': torch.tensor(3), 'c': torch.zeros(2, dtype=torch.bfloat16)}
    same = {'a': torch.arange(6.).view(3, 2).T.contiguous().T.reshape(2, 3), 'b': torch.tensor(3), 'c': state['c']}
    others = [state | {'a': state['a'] + 1e-6}, state | {'a': state['a'].view(3, 2)}, state | {'b': torch.tensor(4)},
              state | {'c': state['c'].half()}, {'A': state['a'], 'b': state['b'], 'c': state['c']}]
    assert checkpoint.checksum(same) == checkpoint.checksum(state)
    assert len({checkpoint.checksum(other) for other in [state, *others]}) == 6
