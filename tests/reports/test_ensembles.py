"""Evaluate_Ensemble.py: scores against main.py and a brute force, records, restarts, refusals, intervals and tests."""
import itertools
import shutil
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

import Evaluate_Ensemble
import main
from evaluation.embedding import Embedded
from records import checkpoint, run_folder
from reports import ensembles
from reports.significance import t_interval
from tests.conftest import draw_classes
from tests.helpers import after_training, csv_rows, printed_metrics

METRICS = ('precision_at_1', 'r_precision', 'map_at_r')
LOSSES = {'A': ['--loss', 'multisimilarity'], 'B': ['--loss', 'contrastive', '--batch_mining', 'random']}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return draw_classes(tmp_path_factory.mktemp('data') / 'images', 12, 5).parent


def common(data, place):
    return ['--dataset', 'folder', '--source_path', str(data), '--arch', 'conv4_normalize', '--not_pretrained',
            '--input_size', '16', '--bs', '6', '--lr', '0.01', '--n_epochs', '1', '--iterations_per_epoch', '2',
            '--embed_dim', '8', '--kernels', '0', '--device', 'cpu', '--save_path', str(place), '--pictures', 'none',
            '--split_scheme', 'class_folds', '--n_folds', '2', '--splits_to_eval', 'val', 'test',
            '--evaluation_metrics', 'map_at_r', '--storage_metrics', 'map_at_r']


@pytest.fixture(scope='module')
def runs(data, tmp_path_factory):
    """Two methods, two seeds, two folds: {(method, fold, seed): run folder}."""
    place, folders = tmp_path_factory.mktemp('runs'), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('evaluation.curves.plot', lambda *arguments: None)
        patch.setattr('evaluation.pictures.save', lambda *arguments: [])
        patch.setattr('sys.argv', ['main.py'])
        for method, fold, seed in itertools.product(LOSSES, (0, 1), (0, 1)):
            assert main.main([*common(data, place), *LOSSES[method], '--fold', str(fold), '--seed', str(seed),
                              '--group', f'{method}_fold{fold}']) == 0
            folders[method, fold, seed] = place / 'folder' / f'{method}_fold{fold}_s{seed}'
    return folders


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Runs Evaluate_Ensemble.py; returns (exit code, output, errors). Records go to tmp_path / 'E'."""
    def call(*arguments):
        code = Evaluate_Ensemble.main([*map(str, arguments), '--save_path', str(tmp_path / 'E')])
        return code, *capsys.readouterr()
    return call


def embedded(run, split, tmp_path):
    """(embeddings, labels), by path, of the best network by validation, as main.py --embed writes them."""
    file = tmp_path / 'embedded.npz'
    assert after_training(run / 'checkpoint_val_map_at_r.pt', 'embeddings', file, '--splits_to_eval', *split) == 0
    written = np.load(file)
    order = np.argsort(written['paths'])
    return written['embeddings'][order].astype(float), written['class_names'][order]


def brute_force(embeddings, labels, rounding=1e-6):
    """
    The three metrics, query by query: {metric: [lowest, highest]}, where images of nearly one distance, which float32
    cannot tell apart, are in the worst and in the best order.
    """
    bounds = []
    for shift in (rounding, -rounding):
        found = []
        for i, query in enumerate(embeddings):
            others = np.delete(np.arange(len(labels)), i)
            distances = ((embeddings[others] - query) ** 2).sum(axis=1) + shift * (labels[others] == labels[i])
            matches = labels[others[np.argsort(distances, kind='stable')]] == labels[i]
            r = matches.sum()
            precision = matches[:r].cumsum() / np.arange(1, r + 1)
            found.append((matches[0], matches[:r].mean(), (precision * matches[:r]).sum() / r))
        bounds.append(np.mean(found, axis=0))
    return dict(zip(METRICS, np.transpose(bounds).tolist(), strict=True))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_scores_equal_main_py_and_a_brute_force(runs, evaluate, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('sys.argv', ['main.py'])
    code, out, error = evaluate(*runs.values(), '--untrained', '--latex', tmp_path / 't.tex', '--csv',
                                tmp_path / 't.csv', '--markdown', tmp_path / 't.md')
    assert code == 0, error
    for method in LOSSES:                                # the validation scores: over folds, then over seeds
        best = [[max(float(row['val_map_at_r']) for row in csv_rows(runs[method, fold, seed] / 'log.csv'))
                 for fold in (0, 1)] for seed in (0, 1)]
        mean, half = t_interval(100 * np.mean(best, axis=1))
        assert f'| folder | {method} | {mean:.2f} ± {half:.2f} |' in out.partition('\n| data set |')[2]
    together = {}
    for method, seed in itertools.product(LOSSES, (0, 1)):
        log = csv_rows(tmp_path / 'E' / 'folder' / f'{method}_ensemble_s{seed}' / 'log.csv')
        for metric in METRICS:
            together.setdefault((method, metric), []).append(100 * float(log[-1][f'test_{metric}']))
    for method, seed in (('A', 0), ('B', 1)):
        members = [runs[method, fold, seed] for fold in (0, 1)]
        folder = tmp_path / 'E' / 'folder' / f'{method}_ensemble_s{seed}'
        log = {(row['form'], row['trained_status']): row for row in csv_rows(folder / 'log.csv')}
        folds = [row for row in csv_rows(folder / 'folds.csv') if row['trained_status'] == 'trained']
        capsys.readouterr()
        for run, row in zip(members, folds, strict=True):
            best = run / 'checkpoint_val_map_at_r.pt'
            assert main.main(['--evaluate', str(best), '--splits_to_eval', 'test', '--evaluation_metrics',
                              *METRICS]) == 0
            printed = printed_metrics(capsys.readouterr().out)
            assert printed == {name: row[name] for name in printed} and len(printed) == 3
            assert int(row['epoch']) == checkpoint.load(best)['epoch'] and row['run'] == str(run)
        images = [embedded(run, ['test'], tmp_path) for run in members]
        expected = brute_force(unit(np.hstack([unit(part) for part, _ in images])), images[0][1])
        for metric in METRICS:
            values = [float(row[f'test_{metric}']) for row in folds]
            separated = log['separated', 'trained']
            assert float(separated[f'test_{metric}']) == pytest.approx(np.mean(values), rel=1e-12)
            assert float(separated[f'sem_test_{metric}']) == pytest.approx(stats.sem(values), rel=1e-12)
            low, high = expected[metric]
            assert low - 1e-9 <= float(log['concatenated', 'trained'][f'test_{metric}']) <= high + 1e-9
        assert [log[form, 'trained']['dim'] for form in ('separated', 'concatenated')] == ['8', '16']
        assert log['concatenated', 'untrained_trunk']['dim'] == '128'
        for run in members:
            assert csv_rows(run / 'log.csv')[0]['test_map_at_r'] == log['separated', 'untrained_trunk_and_embedder'][
                'test_map_at_r']
        database = sqlite3.connect(folder / 'records.sqlite')
        for table in ('log', 'folds'):
            stored = database.execute(f'SELECT test_map_at_r FROM {table}').fetchall()
            assert [value for value, in stored] == [float(row['test_map_at_r']) for row in csv_rows(
                folder / f'{table}.csv')]
        settings = yaml.safe_load((folder / 'ensemble.yaml').read_text())
        assert settings['n_folds_of'] == '2/2' and settings['flags']['loss'] == LOSSES[method][1]
        assert [member['run_id'] for member in settings['identity']['members']] == [
            run_folder.read(run)['run_id'] for run in members]
    lines = [line for line in out.partition('| data set |')[0].splitlines() if line.startswith('| ')]
    assert lines[0].startswith('| method | Concatenated (16-dim) P@1 | ') and 'Separated (8-dim) MAP@R' in lines[0]
    assert [line.split(' | ')[0] for line in lines[1:]] == ['| untrained trunk (64 dim)', '| untrained', '| A', '| B']
    for line in lines[3:]:
        cells = [cell.strip(' *†') for cell in line.strip('|').split('|')]
        for metric, cell in zip(METRICS, cells[1:4], strict=True):
            mean, half = t_interval(together[cells[0], metric])
            assert cell == f'{mean:.2f} ± {half:.2f}'
    latex = (tmp_path / 't.tex').read_text()
    assert '\\multicolumn{3}{c}{Concatenated (16-dim)} & \\multicolumn{3}{c}{Separated (8-dim)}' in latex
    assert (tmp_path / 't.md').read_text() in out and len(csv_rows(tmp_path / 't.csv')) == 24


def test_each_network_has_the_same_weight():
    images = SimpleNamespace(class_names=['one', 'other'], labels=np.array([0, 0, 1]), sources='cab')
    parts = [factor * torch.rand(3, 2) for factor in (1, 9)]
    found = ensembles.joined([[Embedded(part, images)] for part in parts])
    assert found.numpy() == pytest.approx(np.hstack([unit(part.numpy()) for part in parts]))


def test_principal_components_are_those_of_the_development_images(runs, evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr('sys.argv', ['main.py'])
    members = [runs['A', fold, 1] for fold in (0, 1)]
    assert evaluate(*members, '--pca', '3')[0] == 0
    tests, developments = ([embedded(run, split, tmp_path) for run in members]
                           for split in (['test'], ['train', 'val']))
    development = np.hstack([unit(part) for part, _ in developments])
    assert len(development) == 30
    directions = np.linalg.svd(development - development.mean(axis=0), full_matrices=False)[2][:3]
    test = (np.hstack([unit(part) for part, _ in tests]) - development.mean(axis=0)) @ directions.T
    log = {row['form']: row for row in csv_rows(tmp_path / 'E' / 'folder' / 'A_ensemble_s1' / 'log.csv')}
    for metric, (low, high) in brute_force(unit(test), tests[0][1]).items():
        assert low - 1e-6 <= float(log['concatenated'][f'test_{metric}']) <= high + 1e-6
    assert log['concatenated']['dim'] == log['separated']['dim'] == '3'
    assert '--pca 17: the embeddings have 8 dimensions' in evaluate(*members, '--pca', '17')[2]


@pytest.fixture
def counted(monkeypatch):
    """The networks that embed; 'stop' at one of them is a Ctrl-C."""
    seen, embed = {'n': 0, 'stop': None}, ensembles.embed_member

    def count(*arguments):
        seen['n'] += 1
        if seen['n'] == seen['stop']:
            raise KeyboardInterrupt
        return embed(*arguments)

    monkeypatch.setattr(ensembles, 'embed_member', count)
    return seen


def test_interrupted_and_started_again(runs, evaluate, tmp_path, counted):
    counted['stop'], some = 4, [folder for (method, _, _), folder in runs.items() if method == 'A']
    code, out, error = evaluate(*some, '--latex', tmp_path / 't.tex')
    assert code == 130 and 'Stopped' in error and not (tmp_path / 't.tex').exists()
    assert [path.name for path in (tmp_path / 'E' / 'folder').iterdir()] == ['A_ensemble_s0']
    before = {path: path.read_bytes() for path in (tmp_path / 'E').rglob('*') if path.is_file()}
    counted |= {'n': 0, 'stop': None}
    code, whole, _ = evaluate(*some)
    assert code == 0 and counted['n'] == 2
    assert all(path.read_bytes() == content for path, content in before.items())
    counted['n'] = 0
    assert evaluate(*some)[1] == whole and counted['n'] == 0
    for n in (2, 0):
        counted['n'] = 0
        assert evaluate(*some[::2], '--evaluation_metrics', 'nmi')[0] == 0 and counted['n'] == n
    assert (tmp_path / 'E' / 'folder' / 'A_ensemble_s0_1').is_dir()


def test_killed_while_writing_leaves_nothing(runs, evaluate, tmp_path, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr('pandas.DataFrame.to_sql', interrupt)
    assert evaluate(runs['A', 0, 0], runs['A', 1, 0])[0] == 130
    assert not list((tmp_path / 'E' / 'folder').iterdir())


def test_untrained_networks_are_evaluated_once_for_all_methods(runs, evaluate, counted):
    some = [folder for (_, _, seed), folder in runs.items() if seed == 0]
    assert evaluate(*some, '--untrained')[0] == 0 and counted['n'] == 4 + 2 * 2         # two states of two folds


@pytest.mark.parametrize('flags', [['--embed_init', 'pca'], ['--cascade', '2', '--cascade_fractions', '0.5'],
                                   ['--loss', 'hyperbolic', '--batch_mining', 'none']],
                         ids=['pca', 'cascade', 'distance'])
def test_untrained_networks_are_those_that_the_runs_began_with(flags, data, runs, evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr('sys.argv', ['main.py'])
    assert main.main([*common(data, tmp_path), '--loss', 'triplet', '--batch_mining', 'random', *flags, '--seed', '0',
                      '--group', 'C_fold0']) == 0
    other = tmp_path / 'folder' / 'C_fold0_s0'
    assert evaluate(runs['A', 0, 0], other, '--untrained')[0] == 0
    for run, name in (runs['A', 0, 0], 'A'), (other, 'C'):
        log = {(row['form'], row['trained_status']): row for row in csv_rows(
            tmp_path / 'E' / 'folder' / f'{name}_ensemble_s0' / 'log.csv')}
        assert log['separated', 'untrained_trunk_and_embedder']['test_map_at_r'] == csv_rows(run / 'log.csv')[0][
            'test_map_at_r']


def test_missing_folds_and_seeds_are_named(runs, evaluate, tmp_path):
    some = [folder for key, folder in runs.items() if key not in (('A', 1, 0), ('B', 0, 1), ('B', 1, 1))]
    code, out, _ = evaluate(*some)
    assert code == 0 and '- A, seed 0: 1 of 2 folds' in out and '(n = 1)' in out and '‡' in out
    assert 'Concatenated (8/16-dim)' in out
    row, *_ = csv_rows(tmp_path / 'E' / 'folder' / 'A_ensemble_s0' / 'log.csv')
    assert row['n_folds_of'] == '1/2' and row['sem_test_map_at_r'] == ''


def change(folder, **flags):
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    config['flags'] |= flags
    run_folder.write_yaml(folder / 'config.yaml', config)


def change_splits(folder, edit):
    """Gives the run other splits, and their hash in both files."""
    content = yaml.safe_load((folder / 'splits.yaml').read_text())
    edit(content['splits'])
    for part in content['splits'].values():
        part['n_classes'] = len(part['classes'])
    run_folder.write_yaml(folder / 'splits.yaml', content | {'hash': 'other'})
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    run_folder.write_yaml(folder / 'config.yaml', config | {'split_hash': 'other'})


def other_test_classes(splits):
    splits['test'] |= {'hash': 'x', 'classes': {'class_99': 5}}


REFUSALS = {
    'test classes': (lambda one, other: change_splits(other, other_test_classes), 'folds have different test classes'),
    'trained on': (lambda one, other: change_splits(other, lambda splits: splits['train']['classes'].update(
        class_07=5)), 'A_fold1_s0: it trained on 1 of the test classes, the first: class_07'),
    'validated on': (lambda one, other: change_splits(other, lambda splits: splits['val']['classes'].update(
        class_06=5)), 'A_fold1_s0: it was validated on 1 of the test classes, the first: class_06'),
    'same fold': (lambda one, other: change(other, fold=0, group='A_fold0'), 'seed 0: fold 0 occurs twice'),
    'flags': (lambda one, other: change(other, lr=0.5, decay=0.1), 'its folds differ in --decay --lr ('),
    'unfinished': (lambda one, other: (other / 'summary.json').unlink(), 'A_fold1_s0: unfinished: 1 of 1 epochs; fin'),
    'merged': (lambda one, other: change_within(other), 'A_fold1_s0: its settings have changed within the run, as its'),
    'no checkpoint': (lambda one, other: (other / 'checkpoint_val_map_at_r.pt').unlink(),
                      'A_fold1_s0: there is no checkpoint_val_map_at_r.pt'),
    'other checkpoint': (lambda one, other: change_epoch(other), 'it is of epoch 7, but the best one in log.csv is'),
    'no validation': (lambda one, other: change(other, storage_metrics=['nmi']), 'it has no val_nmi, which chooses'),
    'other images': (lambda one, other: [change_splits(folder, lambda splits: splits['val'].update(n_images=3))
                                         for folder in (one, other)], '--source_path must lead to the same data'),
}


def change_within(folder):
    merged = [{'at_epoch': 1, 'flags': {'bs': {'from': 8, 'to': 4}}}]
    run_folder.write_yaml(folder / 'config.yaml', run_folder.read(folder) | {'merged': merged})


def change_epoch(folder):
    file = folder / 'checkpoint_val_map_at_r.pt'
    torch.save(checkpoint.load(file) | {'epoch': 7}, file)


@pytest.mark.parametrize('damage, sentence', REFUSALS.values(), ids=REFUSALS)
def test_refused_in_a_sentence_and_nothing_written(damage, sentence, runs, evaluate, tmp_path):
    folders = []
    for fold in (0, 1):
        folders.append(tmp_path / runs['A', fold, 0].name)
        shutil.copytree(runs['A', fold, 0], folders[-1])
    damage(*folders)
    code, out, error = evaluate(*folders, '--csv', tmp_path / 't.csv')
    assert code == 2 and sentence in error and len(error.splitlines()) == 1 and not out
    assert not (tmp_path / 'E').exists() and not (tmp_path / 't.csv').exists()


@pytest.mark.parametrize('arguments, sentence', [
    (['nowhere'], 'nowhere: not a run folder'),
    (['{A}', '--evaluation_metrics', 'precision'], '--evaluation_metrics precision: unknown'),
    (['{A}', '--evaluation_metrics', 'rho_spectrum@0'], 'rho_spectrum@0: it is a vector, not a number'),
    (['{A}', '--evaluation_metrics', 'c_r_auroc'], 'c_r_auroc: concatenated embeddings all have norm 1; leave it out'),
    (['{A}', '--latex', 'nowhere/t.tex'], '--latex nowhere/t.tex: there is no folder nowhere'),
    (['{A}', '--weights', 'a.pth'], '--weights goes with --untrained'),
    (['{A}', '--source_path', 'nowhere'], '--dataset folder: expected nowhere/images'),
])
def test_what_the_user_must_change(arguments, sentence, runs, evaluate, tmp_path):
    code, out, error = evaluate(*(argument.format(A=runs['A', 0, 0]) for argument in arguments))
    assert code == 2 and sentence in error and not out and not (tmp_path / 'E').exists()


def test_methods_with_other_test_classes_are_not_compared(runs, evaluate, tmp_path):
    other = shutil.copytree(runs['B', 0, 0], tmp_path / 'B_fold0_s0')
    change_splits(other, other_test_classes)
    code, _, error = evaluate(runs['A', 0, 0], other)
    assert code == 2 and 'they have other test classes and cannot be compared' in error


