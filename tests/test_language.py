"""--language_distill_w: similarities of class names as a term beside any loss; its value, its runs, what it refuses."""
import shutil

import numpy as np
import pytest
import torch

import batch_mining
import configuration
import criteria
import effects
import parts
from criteria.language_guidance import LanguageGuided, language_guidance
from datasets import class_vectors
from tests.criteria.cases import F64, LABELS, UNIT
from tests.helpers import assert_same_end, folder_of, rows_of
from utilities.errors import UserError

NAMES = [f'class_{number:02d}' for number in range(12)]
VECTORS = torch.tensor([[(1, 0, 0), (.6, .8, 0)], [(0, 1, 0), (0, .6, .8)], [(0, 0, 1), (.8, 0, .6)]], dtype=F64)


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def file(tmp_path):
    """A file of two vectors for each class of the patterns, and for another class."""
    np.savez(tmp_path / 'vectors.npz', class_names=['another', *NAMES[::-1]], vectors=random(13, 2, 5).numpy())
    return str(tmp_path / 'vectors.npz')


def guided(file, *more):
    return ['--language_distill_w', '5', '--language_vectors', file, '--language_pseudoclass',
            '--language_pseudoclass_topk', '2', *more]


# The term

def slow(batch, labels, vectors, shift, temperature, direction):
    """The KL divergence of the definition, in loops over pairs and vectors."""
    n, k = len(batch), vectors.shape[1]
    ours, theirs = [], []
    for i in range(n):
        for similarities, of_pair in (
                (ours, lambda i, j: torch.dot(batch[i], batch[j])),
                (theirs, lambda i, j: shift + sum(torch.cosine_similarity(v, w, dim=0) for v, w in zip(
                    vectors[labels[i]], vectors[labels[j]], strict=True)) / k)):
            row = [batch.new_tensor(1 + shift) if labels[i] == labels[j] else of_pair(i, j) for j in range(n)]
            exponentials = [(value / temperature).exp() for value in row]
            similarities.append([value / sum(exponentials) for value in exponentials])
    wanted, given = (ours, theirs) if direction == 'backward' else (theirs, ours)
    return temperature ** 2 / n * sum(q * torch.log(q / p) for of_q, of_p in zip(wanted, given, strict=True)
                                      for q, p in zip(of_q, of_p, strict=True))


@pytest.mark.parametrize('flags, value', [
    ((1., 1., 'backward'), .1281249793), ((1., 1., 'forward'), .1590190834), ((1., .5, 'backward'), .0483457674)])
def test_known_numbers(flags, value):
    labels = torch.as_tensor(LABELS)
    assert language_guidance(UNIT, labels, VECTORS, *flags).item() == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize('flags', [(1., 1., 'backward'), (.3, .5, 'forward'), (0., 2., 'backward')])
def test_value_and_gradient_are_those_of_loops_and_the_vectors_get_none(flags):
    batch, vectors = random(7, 4).requires_grad_(), random(4, 3, 5, seed=1).requires_grad_()
    labels = torch.tensor([0, 3, 1, 1, 0, 3, 2])
    found = language_guidance(batch, labels, vectors, *flags)
    expected = slow(batch, labels.tolist(), vectors.detach(), *flags)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    gradient, nothing = torch.autograd.grad(found, [batch, vectors], allow_unused=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, batch)[0], rtol=1e-9, atol=1e-9)
    assert nothing is None


def test_a_batch_of_one_class_gives_zero_with_a_graph_and_half_precision_is_upcast():
    batch = random(4, 3).requires_grad_()
    value = language_guidance(batch, torch.zeros(4, dtype=torch.int64), VECTORS)
    value.backward()
    assert abs(value.item()) < 1e-12 and batch.grad.abs().max() < 1e-12
    assert language_guidance(UNIT.half(), torch.as_tensor(LABELS), VECTORS).dtype == torch.float32


@pytest.mark.parametrize('loss, more', [
    ('margin', {'batch_mining': 'all'}), ('triplet', {'batch_mining': 'all', 'dr_weight': .3}),
    ('supcon+softmax', {'loss_weights': [1., .5]}), ('hyperbolic', {}), ('s2sd', {'loss_s2sd_target_dims': [5]}),
    ('proxyanchor', {'distill': 'elsewhere'})])
def test_it_is_added_to_any_loss_with_its_weight_from_the_delay_on(loss, more, opt):
    batch, teacher = random(6, 4).float(), {'teacher_batch': random(6, 3).float()} if 'distill' in more else {}
    values, built = {}, {}
    for weight in (0., 4.):
        namespace = opt(loss=loss, n_classes=3, language_distill_w=weight, language_vectors='given', language_delay=2,
                        language_shift=.5, language_temp=2.,
                        **{'batch_mining': 'none', 'embed_dim': 4, 'n_features': 4} | more)
        torch.manual_seed(0)
        built[weight] = criteria.select(namespace, batch_mining.select(namespace), VECTORS)
        values[weight] = [built[weight](batch=batch, labels=torch.as_tensor(LABELS), batch_features=batch, f_embed=None,
                                        step=step, **teacher).item() for step in (1, 2)]
    guidance = language_guidance(batch, torch.as_tensor(LABELS), VECTORS, .5, 2.).item()
    assert values[4.] == [values[0.][0], pytest.approx(values[0.][1] + 4 * guidance, rel=1e-5)] and guidance > 0
    assert not any(isinstance(module, LanguageGuided) for module in built[0.].modules())
    assert built[4.].log['language_guidance'].item() == pytest.approx(guidance)
    rates = [[(group['lr'], sum(p.numel() for p in group['params'])) for group in criteria.parameter_groups(one)]
             for one in built.values()]
    assert rates[0] == rates[1] and len(built[0.].state_dict()) == len(built[4.].state_dict())
    assert {hasattr(one, 'ranking_embeddings') for one in built.values()} == {loss == 'hyperbolic'}


# Runs

def test_a_resumed_run_ends_with_the_same_bits_and_refuses_other_vectors(file, quick, run, tmp_path, capsys):
    """The guidance begins in the second epoch; its vectors may not change, and move with a merging resumption only."""
    arguments = [*quick, '--micro_bs', '5', '--loss', 'hyperbolic', '--batch_mining', 'none',
                 '--evaluation_metrics', 'e_recall@1', *guided(file, '--language_delay', '5')]
    assert run(*arguments, '--group', 'whole') == 0
    assert run(*arguments, '--n_epochs', '1') == 0
    whole, folder = folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path)
    moved = str(tmp_path / 'moved.npz')
    shutil.copy(file, moved)
    np.savez(file, class_names=NAMES, vectors=random(12, 2, 5, seed=1).numpy())
    capsys.readouterr()
    assert run('--resume', folder, '--n_epochs', '2') == 2
    assert f'the set of vectors of --language_vectors {file} is not the one' in capsys.readouterr().err
    moving = ['--language_vectors', moved, '--merge_argparse_when_resuming']
    assert run('--resume', folder, '--n_epochs', '2', *moving[:2]) == 2
    assert run('--resume', folder, '--n_epochs', '2', *moving) == 0
    shutil.copy(moved, file)
    assert_same_end(whole, folder)
    assert run(*arguments, '--language_distill_w', '0', '--group', 'without') == 0
    guided_rows, plain_rows = rows_of(whole), rows_of(folder_of(tmp_path, 'without_s1'))
    assert guided_rows[:-1] == plain_rows[:-1] and guided_rows[-1] != plain_rows[-1]
    (tmp_path / 'moved.npz').unlink()
    assert run('--evaluate', folder, '--evaluation_metrics', 'e_recall@1') == 0         # which needs no vectors


def test_weight_0_reads_no_file_and_is_noted(quick, capsys, monkeypatch):
    monkeypatch.setattr(class_vectors, 'read', None)
    opt = configuration.parse([*quick, '--language_vectors', 'nowhere.npz', '--language_shift', '2'])
    built = parts.build(opt)
    assert {'language_vectors', 'language_shift'} <= effects.unread(opt, trained=True, evaluated=False).keys()
    assert not any(isinstance(module, LanguageGuided) for module in built.criterion.modules())
    assert built.language_checksum is None


def test_vectors_are_those_of_the_training_classes_in_their_order(file, quick):
    built = parts.build(configuration.parse([*quick, *guided(file)]))
    expected = {name: row for name, row in zip(['another', *NAMES[::-1]], random(13, 2, 5).float(), strict=True)}
    names = built.data.train.class_names
    assert len(names) < 12 and built.criterion.vectors.equal(torch.stack([expected[name] for name in names]))


# What it refuses

def read(path, n_vectors=2, **arrays):
    np.savez(path, **arrays)
    with pytest.raises(UserError) as error:
        class_vectors.read(path, NAMES[:8], n_vectors)
    return str(error.value)


def test_files_that_do_not_fit(tmp_path):
    path, vectors = tmp_path / 'v.npz', np.ones((12, 2, 3), np.float16)
    missing = f'has no vectors for 6 of the 8 training classes: {", ".join(NAMES[2:7])} and 1 more'
    assert missing in read(path, class_names=NAMES[:2], vectors=vectors[:2])
    assert 'expected an .npz file with the arrays class_names and vectors' in read(path, names=NAMES, vectors=vectors)
    assert 'without pickled objects' in read(path, class_names=np.array(NAMES, object), vectors=vectors)
    assert 'found <U8 [12] and float16 [11, 2, 3]' in read(path, class_names=NAMES, vectors=vectors[1:])
    assert 'occurs twice' in read(path, class_names=[*NAMES[:11], NAMES[0]], vectors=vectors)
    assert 'zero or has a number that is not finite' in read(path, class_names=NAMES, vectors=vectors * np.nan)
    assert 'zero or has a number' in read(path, class_names=NAMES, vectors=vectors * 0)
    assert '2 vectors of each class; give --language_pseudoclass --language_pseudoclass_topk 2' in read(
        path, 1, class_names=NAMES, vectors=vectors)
    assert '2 vectors of each class, and --language_pseudoclass_topk is 5' in read(
        path, 5, class_names=NAMES, vectors=vectors)
    for content in (b'', b'no archive', b'PK\x03\x04 cut off'):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r'expected an \.npz file'):
            class_vectors.read(path, NAMES, 1)
    with pytest.raises(UserError, match='--language_vectors .*nowhere: No such file or directory'):
        class_vectors.read(tmp_path / 'nowhere', NAMES, 1)
    np.savez(path, class_names=NAMES, vectors=vectors[:, 0])
    assert class_vectors.read(path, NAMES[3:5], 1).shape == (2, 1, 3)


def test_without_a_file_a_sentence_says_so(quick):
    with pytest.raises(UserError, match='--language_distill_w needs --language_vectors FILE'):
        configuration.parse([*quick, '--language_distill_w', '7.5', '--language_pseudoclass'])
