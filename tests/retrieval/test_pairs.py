"""Evaluate_Network.py RUN pairs, against loops over 600 pairs."""
import csv
import itertools
import re
import shutil

import numpy as np
import pytest
import torch

import parts
import retrieval
from retrieval import loading, pairs
from tests.conftest import draw_classes
from tests.helpers import after_training
from utilities import processes
from utilities.errors import UserError

FLAGS = ['--device', 'cpu', '--kernels', '0']


@pytest.fixture
def lists(tmp_path):
    """600 pairs of 48 images in 10 folds, half of them of one class, as a CSV file beside the images."""
    folder, random = draw_classes(tmp_path / 'images', 8, 6, seed=3), np.random.default_rng(0)
    names = sorted(str(path.relative_to(tmp_path)) for path in folder.rglob('*.png'))
    every = list(itertools.permutations(range(48), 2))
    rows = []
    for same in (True, False):
        found = [pair for pair in every if (pair[0] // 6 == pair[1] // 6) == same]
        chosen = random.choice(len(found), 300, replace=len(found) < 300)
        rows += [(*found[place], same, number % 10) for number, place in enumerate(chosen)]
    with open(tmp_path / 'pairs.csv', 'w', newline='') as file:
        csv.writer(file).writerows([('path_a', 'path_b', 'same', 'fold'), *(
            (names[one], names[other], int(same), f'f{fold}') for one, other, same, fold in rows)])
    return tmp_path / 'pairs.csv', [tmp_path / name for name in names], rows


def loops(similarity, rows):
    """accuracy, its standard error, AUC, EER and the three rates, by loops over pairs and thresholds."""
    same, folds = [row[2] for row in rows], [row[3] for row in rows]
    values = sorted({*similarity})
    edges = [-np.inf, *((one + other) / 2 for one, other in itertools.pairwise(values)), np.inf]

    def right(threshold, chosen):
        return sum((similarity[i] >= threshold) == same[i] for i in chosen)
    accuracies = []
    for fold in sorted({*folds}):
        own = [i for i in range(len(rows)) if folds[i] == fold]
        others = [i for i in range(len(rows)) if folds[i] != fold]
        best = max(edges, key=lambda threshold, others=others: right(threshold, others))        # the first, the lowest
        accuracies.append(right(best, own) / len(own))
    mean = sum(accuracies) / len(accuracies)
    error = (sum((value - mean) ** 2 for value in accuracies) / (len(accuracies) - 1) / len(accuracies)) ** .5
    positive, negative = ([s for s, kind in zip(similarity, same, strict=True) if kind == wanted]
                          for wanted in (True, False))
    auc = sum((p > n) + .5 * (p == n) for p in positive for n in negative) / len(positive) / len(negative)
    points = [(sum(n >= t for n in negative) / len(negative), sum(p >= t for p in positive) / len(positive))
              for t in [np.inf, *values[::-1]]]
    for before, after in itertools.pairwise(points):
        if after[0] >= 1 - after[1]:
            gaps = [before[0] + before[1] - 1, after[0] + after[1] - 1]
            eer = before[0] + (after[0] - before[0]) * gaps[0] / (gaps[0] - gaps[1])
            break
    return mean, error, auc, eer, [max(true for false, true in points if false <= rate) for rate in pairs.RATES]


def test_600_pairs_against_loops(trained, lists, tmp_path, capsys, monkeypatch):
    file, paths, rows = lists
    network, transform = retrieval.load(trained, 'cpu')
    points = retrieval.embed(network, transform, paths).double().numpy()
    similarity = [float(points[one] @ points[other]) for one, other, *_ in rows]                   # they have norm 1
    seen, embedded = [], loading.embed_in_batches

    def counted(network, transform, images, *more):
        seen.extend(images)
        return embedded(network, transform, images, *more)
    monkeypatch.setattr(loading, 'embed_in_batches', counted)
    assert after_training(trained, 'pairs', file, *FLAGS, '--rows', tmp_path / 'rows.csv') == 0
    assert len(seen) == len({*seen}) == 48                                     # each image once
    out = capsys.readouterr().out
    mean, error, auc, eer, rates = loops(similarity, rows)
    assert '600 pairs of 48 images in 10 folds, 300 of one class\n' in out
    assert [line.split('  (')[0].rstrip() for line in out.splitlines()[-6:]] == [
        f'accuracy          {mean:.4f} ± {error:.4f}', f'AUC               {auc:.4f}', f'EER               {eer:.4f}',
        *(f'TPR at FPR {rate:<5g}  {value:.4f}' for rate, value in zip(pairs.RATES, rates, strict=True))]
    with open(tmp_path / 'rows.csv', newline='') as opened:
        written = list(csv.DictReader(opened))
    np.testing.assert_allclose([float(row['similarity']) for row in written], similarity, atol=2e-6)
    right = [(row['accepted'] == row['same']) for row in written]
    assert np.mean(right) == pytest.approx(mean)


def test_a_gpu_is_used_where_there_is_one(trained, lists, monkeypatch, capsys):
    def built(opt, backbone):
        raise UserError(f'on {opt.device}')
    monkeypatch.setattr(processes, 'accelerator', lambda: 'cuda')
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    monkeypatch.setattr(torch.cuda, 'set_device', lambda index: None)
    monkeypatch.setattr(parts, 'build_network', built)
    assert after_training(trained, 'pairs', lists[0], '--device', 'auto') == 2
    assert 'on cuda:0' in capsys.readouterr().err


def test_ties_and_a_perfect_separation_against_loops():
    random = np.random.default_rng(0)
    for n_values, shift in ((5, 1), (60, 20), (3, 0), (4, 9)):
        is_same = random.random(80) < .5
        values = random.integers(0, n_values, 80) + shift * is_same
        rows = [(0, 0, bool(same), number % 4) for number, same in enumerate(is_same)]
        folds = np.array([str(row[3]) for row in rows])
        mean, error, auc, eer, rates = loops([float(value) for value in values], rows)
        accuracies = np.array([*pairs.by_folds(values, is_same, folds)[1].values()])
        assert accuracies.mean() == pytest.approx(mean) and accuracies.std(ddof=1) / 2 == pytest.approx(error)
        assert pairs.equal_error_rate(values, is_same) == pytest.approx(eer)
        assert [pairs.true_positive_rate(values, is_same, rate) for rate in pairs.RATES] == pytest.approx(rates)
        assert pairs.rank_metrics.auroc(values, is_same) == pytest.approx(auc)


LFW = """2\t2
Abel_Pacheco\t1\t4
Akhmed_Zakayev\t1\t3
Abdel_Madi_Shabneh\t1\tDean_Barker\t1
Abel_Pacheco\t2\tDean_Barker\t2
Dean_Barker\t2\t4
Abel_Pacheco\t3\t5
Dean_Barker\t3\tAkhmed_Zakayev\t1
Abdel_Madi_Shabneh\t2\tAbel_Pacheco\t5
"""


@pytest.fixture
def faces(tmp_path):
    """Images named as in LFW, and its list of pairs in the form in which it is published."""
    names = ['Abdel_Madi_Shabneh', 'Abel_Pacheco', 'Akhmed_Zakayev', 'Dean_Barker']
    for name, folder in zip(names, sorted(draw_classes(tmp_path / 'drawn', 4, 5).iterdir()), strict=True):
        (tmp_path / 'lfw' / name).mkdir(parents=True)
        for number, file in enumerate(sorted(folder.iterdir()), start=1):
            shutil.copy(file, tmp_path / 'lfw' / name / f'{name}_{number:04d}.png')
    (tmp_path / 'pairs.txt').write_text(LFW)
    return tmp_path


def test_the_list_of_lfw_is_read_as_it_is(trained, faces, capsys):
    found = pairs.read(faces / 'pairs.txt', faces / 'lfw')
    assert found.is_same.tolist() == [True, True, False, False] * 2
    assert found.fold.tolist() == ['1'] * 4 + ['2'] * 4
    assert found.first[1].endswith('lfw/Akhmed_Zakayev/Akhmed_Zakayev_0001.png')
    assert found.second[3].endswith('lfw/Dean_Barker/Dean_Barker_0002.png')
    (faces / 'pairsDevTest.txt').write_text('2\n' + ''.join(LFW.splitlines(keepends=True)[1:5]))        # no folds
    for file, sentence in (('pairs.txt', 'in 2 folds, 4 of one class'),
                           ('pairsDevTest.txt', 'accuracy          none: the threshold of a fold is chosen on the')):
        written = faces / f'{file}.csv'
        assert after_training(trained, 'pairs', faces / file, '--photos', faces / 'lfw', *FLAGS, '--rows', written) == 0
        assert sentence in capsys.readouterr().out
        with open(written, newline='') as opened:
            decisions = {(bool(row['threshold']), bool(row['accepted'])) for row in csv.DictReader(opened)}
        assert decisions == {(file == 'pairs.txt',) * 2}


def test_a_list_is_read_as_pandas_on_windows_writes_it(faces):
    names = [f'{name}\\{name}_000{number}.png' for name in ('Abel_Pacheco', 'Dean_Barker') for number in (1, 2)]
    (faces / 'pairs.csv').write_text('path_a,path_b,same,fold\n' + f'{names[0]},{names[1]} ,1.0,a\n'
                                     f'{names[2]},{names[3]}, True,b\n{names[0]},{names[2]},0.0,b\n')
    found = pairs.read(faces / 'pairs.csv', faces / 'lfw')
    assert found.is_same.tolist() == [True, True, False]
    assert found.second[0] == str(faces / 'lfw' / 'Abel_Pacheco' / 'Abel_Pacheco_0002.png')


def test_a_network_without_finite_embeddings_is_refused(trained, lists, tmp_path, capsys):
    states = torch.load(trained / 'checkpoint_last.pt', weights_only=True)
    for weights in states['model'].values():
        if weights.is_floating_point():
            weights.fill_(torch.nan)
    torch.save(states, tmp_path / 'broken.pt')
    assert after_training(tmp_path / 'broken.pt', 'pairs', lists[0], *FLAGS) == 1
    said = capsys.readouterr()
    assert 'AUC' not in said.out and re.search(r'the embedding of \S+\.png is not finite', said.err)


@pytest.mark.parametrize('name, text, sentence', [
    ('pairs.csv', 'a,b\n1,2\n', 'expected a header with the columns path_a, path_b, same, fold, found a, b'),
    ('pairs.csv', 'path_a,path_b,same,fold\nx,y,maybe,1\n', 'line 2: expected two paths, same as 1 or 0, and a fold'),
    ('pairs.csv', 'path_a,path_b,same,fold\nx,y\n', 'line 2: expected two paths, same as 1 or 0, and a fold'),
    ('pairs.csv', 'path_a,path_b,same,fold\nx,y,1,1\n', 'all pairs are of one class; both kinds are needed'),
    ('pairs.csv', 'path_a,path_b,same,fold\n', 'it has no pairs'),
    ('pairs.csv', 'path_a,path_b,same,fold\nx,y,1,1\nx,z,0,1\n', '3 of 3 images do not exist, such as'),
    ('pairs.csv', f'path_a,path_b,same,fold\n{"x" * 131_073},y,1,1\n', 'not a CSV file (field larger than field limit'),
    ('pairs.csv', f'path_a,path_b,same,fold\n{"x" * 300},y,1,1\nx,z,0,1\n', '4 of 4 images do not exist, such as'),
    ('pairs.txt', '10 0\na 1 b 2\n', "neither a .csv file nor LFW's pairs.txt"),
    ('pairs.txt', '10 00\na 1 b 2\n', "neither a .csv file nor LFW's pairs.txt"),
    ('pairs.txt', f'1 {"9" * 5000}\nAbel_Pacheco 1 4\n', "neither a .csv file nor LFW's pairs.txt"),
    ('pairs.txt', f'1 1\nAbel_Pacheco 1 {"9" * 5000}\nA 1 B 2\n', 'pair 1 is '),
    ('pairs.txt', 'Abel_Pacheco 1 4\n', "neither a .csv file nor LFW's pairs.txt"),
    ('pairs.txt', '2 2\nAbel_Pacheco 1 4\n', 'its first line says 8 pairs, but it has 1'),
    ('pairs.txt', '1 1\nAbel_Pacheco 1 4 5\n', "pair 1 is 'Abel_Pacheco 1 4 5'; expected name number number"),
    ('none.csv', None, 'not readable')])
def test_sentences(name, text, sentence, trained, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert after_training(trained, 'pairs', tmp_path / name, *FLAGS) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) == 1


def test_flags_that_cannot_act_are_refused(trained, lists, tmp_path, capsys):
    assert after_training(trained, 'pairs', lists[0], *FLAGS, '--pca', '0') == 0       # as the message on --pca says
    for flags, sentence in ((['--pca', '4'], 'Give --pca 0'),
                            (['--eval_level', 'parent'], '--eval_level has no effect'),
                            (['--loss', 'hyperbolic'], '--loss has no effect')):
        assert after_training(trained, 'pairs', lists[0], *FLAGS, *flags) == 2
        assert sentence in capsys.readouterr().err
    other = shutil.copytree(trained, tmp_path / 'hyperbolic')
    config = (other / 'config.yaml').read_text()
    loss = re.search(r'^  loss: .*$', config, re.MULTILINE)[0]
    (other / 'config.yaml').write_text(config.replace(loss, '  loss: hyperbolic'))
    assert after_training(other, 'pairs', lists[0], *FLAGS) == 2
    assert '--loss hyperbolic ranks by a distance of its own' in capsys.readouterr().err


def test_embeddings_of_any_norm_are_compared_by_their_distance():
    points = torch.tensor([[0., 0.], [3., 4.], [1e4, 1.], [1e4, 1.001]])
    some = pairs.Pairs(['a', 'c'], ['b', 'd'], np.array([True, False]), np.array(['1', '2']))
    found = pairs.similarities(points, ['a', 'b', 'c', 'd'], some)
    np.testing.assert_allclose(found, [1 - 25 / 2, 1 - .001 ** 2 / 2], rtol=1e-6)
