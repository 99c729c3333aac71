"""Hyperparameter_Search.py: what it refuses, what it finds, and that killed workers lose and repeat nothing."""
import csv
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import optuna
import pytest
import yaml
from optuna.trial import TrialState

import Hyperparameter_Search
import Launch_Runs
import parameters
from tests.helpers import rows_of
from utilities.errors import UserError

ROOT = Path(__file__).parents[1]

# Takes the place of main.py where only the search is tested: the score of an epoch is a function of the flags.
STUB = '''
import json, math, pathlib, sys, time, yaml
given = dict(word.removeprefix('--').split('=', 1) for word in sys.argv[1:] if '=' in word)
parent = pathlib.Path(given['save_path']) / 'folder'
flags = json.loads((parent / f'{given["group"]}_s{given.get("seed", 1)}.json').read_text())
folder = parent / f'{flags["group"]}_s{flags["seed"]}'
folder.mkdir(exist_ok=True)
margin, place = flags['loss_triplet_margin'], math.log10(flags['lr'])
with open(parent / 'started.txt', 'a') as file:
    print(folder.name, 'again' if '--resume' in sys.argv else '', file=file)
(folder / 'splits.yaml').write_text('hash: x')
(folder / 'config.yaml').write_text(yaml.safe_dump({'flags': flags, 'split_hash': 'x', 'run_id': 'y'}))
lines = (folder / 'log.csv').read_text().splitlines() if (folder / 'log.csv').exists() else ['epoch,val_map_at_r']
for epoch in range(len(lines) - 1, flags['n_epochs'] + 1):
    score = (1 - (place + 3) ** 2 / 4 - margin / 10) * (1 - math.exp(-epoch - 1)) + flags['fold'] / 100
    lines.append(f'{epoch},{math.nan if margin > 0.9 else score}')
    (folder / '.new').write_text('\\n'.join(lines) + '\\n')
    (folder / '.new').rename(folder / 'log.csv')
    time.sleep(PACE)
    if 0.8 < margin <= 0.9:
        print('main.py: the run failed: the loss is nan')
        sys.exit(1)
(folder / 'summary.json').write_text(json.dumps({'finished': True, 'last_epoch': {'epoch': flags['n_epochs']}}))
'''
# Hyperparameter_Search.py with the stub, in a process of its own. argv: the folder of the stub, heartbeat, arguments.
DRIVER = '''
import sys
from pathlib import Path
from tests import test_search
import Hyperparameter_Search
test_search.with_stub(Path(sys.argv[1]))
Hyperparameter_Search.HEARTBEAT, Hyperparameter_Search.GRACE, Hyperparameter_Search.POLL = 1, 3, 0.1
sys.exit(Hyperparameter_Search.main(sys.argv[2:]))
'''


def with_stub(folder):
    original = Launch_Runs.start

    def start(run, more=()):
        (run.parent).mkdir(parents=True, exist_ok=True)
        file = run.parent / f'{run.savename}.json'
        if not file.exists():
            file.write_text(__import__('json').dumps(run.settings))
        return original(run, more)

    Launch_Runs.ROOT, Launch_Runs.start = folder, start


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """stub(pace) makes the runs of a search in this process those of STUB; returns its folder."""
    def make(pace=0):
        (tmp_path / 'main.py').write_text(STUB.replace('PACE', str(pace)))
        monkeypatch.setattr(Launch_Runs, 'ROOT', tmp_path)
        monkeypatch.setattr(Launch_Runs, 'start', Launch_Runs.start)
        monkeypatch.setattr(Hyperparameter_Search, 'POLL', 0.1)
        with_stub(tmp_path)
        return tmp_path
    return make


@pytest.fixture
def flags(patterns, tmp_path):
    """Of a search over two folds of `patterns`."""
    return ['--study_path', str(tmp_path / 'study'), '--dataset', 'folder', '--source_path', str(patterns),
            '--arch', 'conv4_normalize', '--not_pretrained', '--input_size', '16', '--bs', '6', '--kernels', '0',
            '--device', 'cpu', '--embed_dim', '8', '--iterations_per_epoch', '2', '--n_epochs', '2', '--n_folds', '2',
            '--loss', 'triplet', '--batch_mining', 'random']


TUNE = ['--tune', 'lr', '1e-5', '1e-1', 'log', '--tune', 'loss_triplet_margin', '0.01', '0.7']


def study_of(folder):
    return optuna.load_study(study_name='study', storage=f'sqlite:///{folder / "study" / "study.sqlite"}')


def table_of(folder):
    with open(folder / 'study' / 'trials.csv', newline='') as file:
        return list(csv.DictReader(file))


def started(folder):
    """How often each run was started."""
    return Counter(line.split()[0] for line in (folder / 'study/trials/folder/started.txt').read_text().splitlines())


@pytest.mark.parametrize('changed, sentence', [
    (['--tune', 'learning', '1', '2'], '--tune learning: unknown flag'),
    (['--tune', 'loss_triplet_margn', '1', '2'], 'did you mean loss_triplet_margin?'),
    (['--tune', 'lr', '0.1', '0.1'], 'LOW must be less than HIGH'),
    (['--tune', 'lr', '0.2', '0.1'], 'LOW must be less than HIGH'),
    (['--tune', 'lr', '0', '1', 'log'], 'a log range must begin above 0'),
    (['--tune', 'lr', 'a', 'b'], 'expected two numbers, not a and b'),
    (['--tune', 'lr', '-1', '1'], '--lr: expected a number of at least 0, not -1'),
    (['--tune', 'bs', '6', '12'], 'write --tune bs 6 12 int'),
    (['--tune', 'lr', '1', '2', 'lin'], 'LOW HIGH [log] [int]'),
    (['--tune', 'lr'], 'LOW HIGH [log] [int]'),
    (['--tune', 'optim', 'adam,adam'], 'two choices or more'),
    (['--tune', 'optim', 'adam,adamm'], 'invalid choice'),
    (['--tune', 'seed', '1', '5', 'int'], 'not a flag to tune'),
    (['--tune', 'n_epochs', '1', '5', 'int'], 'not a flag to tune'),
    (['--tune', 'lr', '1e-4', '1', '--tune', 'lr', '1e-3', '1'], '--tune lr: given twice'),
    ([], 'at least one --tune'),
    ([*TUNE, '--n_folds', '20'], '--n_folds 20: only 6 of the 12 classes are not test classes'),
    ([*TUNE, '--split_scheme', 'mlrc', '--n_folds', '7'], 'the val split is empty'),
    ([*TUNE, '--split_scheme', 'half', '--n_folds', '4'], 'half has no folds'),
    ([*TUNE, '--split_scheme', 'class_folds', '--splits_to_eval', 'test'], 'validation classes only'),
    ([*TUNE, '--fold', '1'], '--fold: a search sets it itself'),
    ([*TUNE, '--save_path', 'here'], '--save_path: a search sets it itself'),
    ([*TUNE, '--resume', 'here'], '--resume goes with main.py'),
    ([*TUNE, '--nonsense'], '--nonsense: unknown flag'),
    ([*TUNE, '--gpus', '0', '--workers', '1'], '--gpus and --workers'),
    ([*TUNE, '--storage', 'nonsense'], '--storage: not the URL of a database'),
    ([*TUNE, '--storage', 'postgresql://me:secret@127.0.0.1:1/none'], '--storage postgresql://me:***@127.0.0.1'),
    ([*TUNE, '--dataset', 'cub200'], '--dataset cub200: expected'),
])
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing_behind(changed, sentence, flags, tmp_path, capsys):
    assert Hyperparameter_Search.main([*flags, *changed]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith('Hyperparameter_Search.py: error: ') and 'secret' not in error
    assert not (tmp_path / 'study').exists()


def test_the_grid_has_all_combinations():
    tuned = dict(Hyperparameter_Search.read_tuned(words.split()) for words in
                 ('lr 1e-4 1e-2 log', 'bs 2 3 int', 'optim adam,sgd'))
    points = Hyperparameter_Search.grid(tuned, 3)
    expected = itertools.product([1e-4, 1e-3, 1e-2], [2, 3], ['adam', 'sgd'])
    assert len(points) == 12
    for point, (lr, bs, optim) in zip(points, expected, strict=True):
        assert point == {'lr': pytest.approx(lr), 'bs': bs, 'optim': optim}
        assert 1e-4 <= point['lr'] <= 1e-2


@pytest.mark.parametrize('sampler', ['tpe', 'gp', 'random'])
def test_a_search_is_a_function_of_its_seed(sampler, flags, stub, tmp_path):
    folder = stub()
    found = []
    for repetition in range(2):
        flags[1] = str(tmp_path / f'{repetition}' / 'study')
        assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '5', '--sampler', sampler, '--workers', '2',
                                           '--n_epochs', '0']) == 0
        found.append([(row['lr'], row['map_at_r']) for row in table_of(folder / f'{repetition}')])
    assert found[0] == found[1] and len(set(found[0])) == 5


def test_the_objective_the_table_and_the_best_config(flags, stub):
    folder = stub()
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '4', '--workers', '2']) == 0
    rows = table_of(folder)
    assert [row['trial'] for row in rows] == [f'trial_{number:04d}' for number in range(4)]
    for row in rows:
        lr, margin = float(row['lr']), float(row['loss_triplet_margin'])
        folds = [(1 - (np.log10(lr) + 3) ** 2 / 4 - margin / 10) * (1 - np.exp(-np.arange(3) - 1)) + fold / 100
                 for fold in range(2)]
        assert float(row['map_at_r']) == pytest.approx(np.mean([scores.max() for scores in folds]))
    best = max(rows, key=lambda row: float(row['map_at_r']))
    opt = parameters.parse(['--config', str(folder / 'study' / 'best.yaml'), '--fold', '1'])
    assert (opt.lr, opt.loss_triplet_margin) == (float(best['lr']), float(best['loss_triplet_margin']))
    assert opt.split_scheme == 'class_folds' and opt.splits_to_eval == ['val'] and opt.bs == 6
    assert {file.name for file in (folder / 'study' / 'plots').glob('*.png')} == {
        'history.png', 'slice.png', 'contour.png', 'importances.png'}
    kept = {path.parent.name for path in (folder / 'study').rglob('checkpoint_*.pt')}
    assert not kept                                                # the stub writes none


def test_the_first_trial_that_fails_is_recorded_with_its_reason(flags, stub, capsys):
    folder = stub()
    tune = ['--tune', 'loss_triplet_margin', '0.1,0.5,0.85,0.95', '--sampler', 'grid']
    assert Hyperparameter_Search.main([*flags, *tune]) == 0
    rows = {row['loss_triplet_margin']: row for row in table_of(folder)}
    assert [rows[margin]['state'] for margin in ('0.1', '0.5', '0.85', '0.95')] == ['complete'] * 2 + ['fail'] * 2
    assert 'exit code 1: main.py: the run failed: the loss is nan' in rows['0.85']['reason']
    assert 'val_map_at_r is not a number in any epoch' in rows['0.95']['reason']
    assert 'failed: trial_0002_fold0_s1' in capsys.readouterr().out


def test_a_search_in_which_everything_fails_ends(flags, stub, capsys):
    folder = stub()
    assert Hyperparameter_Search.main([*flags, '--tune', 'loss_triplet_margin', '0.81', '0.89']) == 2
    assert 'all of the first 3 trials failed' in capsys.readouterr().err
    assert len(table_of(folder)) == 3
    repaired = (folder / 'main.py').read_text().replace('0.8 < margin', '0.85 < margin')
    (folder / 'main.py').write_text(repaired)                       # the reason was not in the settings
    assert Hyperparameter_Search.main([*flags, '--tune', 'loss_triplet_margin', '0.81', '0.89', '--n_trials', '6']) == 0
    assert len(table_of(folder)) == 6


def test_an_extended_grid_has_all_points(flags, stub):
    folder = stub()
    grid = [*flags, '--n_epochs', '0', '--tune', 'loss_triplet_margin', '0.1', '0.7', '--sampler', 'grid',
            '--grid_points']
    assert Hyperparameter_Search.main([*grid, '3']) == 0 and len(table_of(folder)) == 3
    assert Hyperparameter_Search.main([*grid, '4']) == 0
    assert sorted(float(row['loss_triplet_margin']) for row in table_of(folder)) == pytest.approx([.1, .3, .4, .5, .7])


def test_stopped_before_its_heartbeat_a_trial_is_run_all_the_same(flags, stub, monkeypatch, capsys):
    import optuna.study._optimize
    folder, begin, n = stub(), optuna.study._optimize.get_heartbeat_thread, 0

    def stopped(*arguments):
        nonlocal n
        n += 1
        if n == 2:
            raise KeyboardInterrupt
        return begin(*arguments)

    arguments = [*flags, *TUNE, '--n_trials', '2', '--n_epochs', '0']
    monkeypatch.setattr(Hyperparameter_Search, 'GRACE', 3)
    monkeypatch.setattr(optuna.study._optimize, 'get_heartbeat_thread', stopped)
    assert Hyperparameter_Search.main(arguments) == 130
    assert [trial.state for trial in study_of(folder).trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert Hyperparameter_Search.main(arguments) == 0
    assert 'waiting for trial_0001, which other workers have' in capsys.readouterr().out
    assert [row['state'] for row in table_of(folder)] == ['complete'] * 2


@pytest.mark.filterwarnings('ignore')
def test_ctrl_c_leaves_a_trial_alone_that_failed_for_its_own_reason(flags, stub, monkeypatch):
    folder = stub()
    search = Hyperparameter_Search.read([*flags, '--tune', 'loss_triplet_margin', '0.1,0.85', '--sampler', 'grid'])
    study = Hyperparameter_Search.open_study(search)
    other = study.ask()                                             # another worker has the first point

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Hyperparameter_Search, 'requeue_unbegun', stopped)      # while the other one is waited for
    with pytest.raises(KeyboardInterrupt):
        Hyperparameter_Search.optimize(search, study)
    assert [trial.state for trial in study_of(folder).trials] == [TrialState.RUNNING, TrialState.FAIL]
    assert other.number == 0


def test_a_worker_that_was_silent_too_long_leaves_its_trial_to_another(flags, stub, monkeypatch, capsys):
    folder, report = stub(), Hyperparameter_Search.Folds.report

    def taken_over(folds):
        study = folds.trial.study
        if folds.trial.number == 0:
            study.tell(0, state=TrialState.FAIL, skip_if_finished=True)         # what the other worker does
            Hyperparameter_Search.requeue(study, study.trials[0])
        return report(folds)

    monkeypatch.setattr(Hyperparameter_Search.Folds, 'report', taken_over)
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2', '--n_epochs', '1']) == 0
    assert 'trial_0000  another worker has taken it over' in capsys.readouterr().out
    assert {row['trial'] for row in table_of(folder)} > {'trial_0000'} and len(table_of(folder)) == 2


@pytest.mark.parametrize('pruner', ['median', 'hyperband'])
def test_hopeless_trials_are_pruned_epoch_by_epoch(pruner, flags, stub):
    folder = stub(pace=0.3)
    tune = ['--tune', 'lr', '0.001,0.0011,0.0012,0.0013,0.1', '--sampler', 'grid']     # the last is far worse
    assert Hyperparameter_Search.main([*flags, *tune, '--pruner', pruner, '--n_epochs', '6', '--n_trials', '5']) == 0
    trials = study_of(folder).trials
    assert trials[0].state == TrialState.COMPLETE
    if pruner == 'median':
        assert trials[4].state == TrialState.PRUNED
        assert len(rows_of(folder / 'study/trials/folder/trial_0004_fold0_s1')) < 7
        assert 'trial_0004_fold1_s1' not in started(folder)
    for trial in trials:
        values = [value for _, value in sorted(trial.intermediate_values.items())]
        assert values == sorted(values)                            # what is earned is not lost
        assert trial.state != TrialState.COMPLETE or values[-1] == trial.value
    assert all(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)


def test_a_finished_search_is_extended_and_its_ranges_stay(flags, stub, capsys):
    folder = stub()
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2']) == 0
    before = table_of(folder)
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '3']) == 0
    after = table_of(folder)
    assert after[:2] == before and len(after) == 3
    for changed, sentence in ((['--tune', 'lr', '1e-5', '1', 'log', *TUNE[5:]], 'lr 1e-05 0.1 log, not 1e-05 1.0 log'),
                              (TUNE[5:], '--tune lr 1e-05 0.1 log, not nothing'),
                              ([*TUNE, '--tune', 'decay', '0', '1'], '--tune decay nothing, not 0.0 1.0'),
                              ([*TUNE, '--embed_dim', '4'], '--embed_dim 8, not 4')):
        capsys.readouterr()
        stored = {file: file.read_bytes() for file in (folder / 'study').glob('*.*')}
        assert Hyperparameter_Search.main([*flags, *changed, '--n_trials', '4']) == 2
        assert sentence in capsys.readouterr().err
        assert {file: file.read_bytes() for file in (folder / 'study').glob('*.*')} == stored


def processes(folder, arguments, n=1):
    """Starts searches with the stub as processes of their own."""
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    return [subprocess.Popen([sys.executable, '-c', DRIVER, str(folder), *arguments], cwd=ROOT, env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(n)]


def test_two_workers_share_a_study(flags, stub):
    folder = stub(pace=0.2)
    workers = processes(folder, [*flags, *TUNE, '--n_trials', '5'], 2)
    for worker in workers:
        out, error = worker.communicate(timeout=300)
        assert worker.returncode == 0, out + error
    rows = table_of(folder)
    assert len(rows) == 5 and all(row['state'] == 'complete' for row in rows)
    assert len({row['lr'] for row in rows}) == 5
    assert set(started(folder).values()) == {1}


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_search_goes_on_without_loss_or_repetition(how, flags, stub):
    folder = stub(pace=0.3)
    arguments = [*flags, *TUNE, '--n_trials', '3', '--n_epochs', '5']
    first, = processes(folder, arguments)
    log = folder / 'study/trials/folder/trial_0001_fold0_s1/log.csv'
    for _ in range(600):
        if log.exists() and len(log.read_text().splitlines()) > 2:
            break
        time.sleep(0.1)
    first.send_signal(how)
    assert first.wait(timeout=60) == (-9 if how == signal.SIGKILL else 130)
    second, = processes(folder, arguments)
    out, error = second.communicate(timeout=300)
    assert second.returncode == 0, out + error
    rows = table_of(folder)
    assert len(rows) == 3 and all(row['state'] == 'complete' for row in rows)
    assert len({row['lr'] for row in rows}) == len({row['trial'] for row in rows}) == 3
    assert {'trial_0000', 'trial_0001'} < {row['trial'] for row in rows}           # the name of the first try stays
    again = started(folder)
    assert again['trial_0000_fold0_s1'] == again['trial_0000_fold1_s1'] == 1
    assert again['trial_0001_fold0_s1'] == (1 if how == signal.SIGKILL else 2)     # the run outlives a killed search
    assert len(rows_of(log.parent)) == 6


def test_a_search_with_real_runs_shares_the_untrained_network_and_reproduces(flags, tmp_path, capsys):
    arguments = [*flags, '--tune', 'lr', '1e-4,1e-2', '--sampler', 'grid', '--workers', '2', '--reproductions', '1']
    assert Hyperparameter_Search.main(arguments) == 0
    out = capsys.readouterr().out
    study = tmp_path / 'study'
    runs = study / 'trials' / 'folder'
    first, second = (rows_of(runs / f'trial_{number:04d}_fold0_s1') for number in range(2))
    assert first[0] == second[0] and first[1] != second[1]
    assert '--untrained' in (runs / 'trial_0001_fold0_s1.log').read_text()
    best = max(table_of(tmp_path), key=lambda row: float(row['map_at_r']))['trial']
    kept = {path.parent.name for path in runs.glob('*/checkpoint_*.pt')}
    assert kept == {f'{best}_fold0_s1', f'{best}_fold1_s1'}
    made = study / 'reproductions' / best / 'folder'
    assert {folder.name for folder in made.iterdir() if folder.is_dir()} == {'study_fold0_s2', 'study_fold1_s2'}
    assert 'python Evaluate_Ensemble.py' in out
    split = yaml.safe_load((made / 'study_fold1_s2' / 'splits.yaml').read_text())
    assert 'val' in split['splits'] and 'test_map_at_r' not in rows_of(made / 'study_fold1_s2')[0]

    lines = (study / 'trials' / 'trial_0001.sh').read_text().splitlines()
    assert len(lines) == 2 and all(line.startswith('python main.py --config ') for line in lines)
    assert lines[0].endswith('--group=trial_0001_fold0')


def test_the_metrics_of_the_untrained_network_are_taken_from_another_run(quick, run, tmp_path, capsys):
    assert run(*quick, '--evaluation_metrics', 'map_at_r', 'e_recall@1', 'rho_spectrum@0') == 0
    other = tmp_path / 'runs' / 'folder' / 'quick_s1'
    metrics = ['--evaluation_metrics', 'map_at_r', 'e_recall@1', 'rho_spectrum@0']
    assert run(*quick, *metrics, '--lr', '0.01', '--group', 'next', '--untrained', other) == 0
    mine = other.with_name('next_s1')
    assert rows_of(mine)[0] == rows_of(other)[0] and rows_of(mine)[1] != rows_of(other)[1]
    spectra = [(folder / 'spectrum.csv').read_text().splitlines()[:2] for folder in (mine, other)]
    assert spectra[0] == spectra[1]
    for changed, sentence in ((['--embed_dim', '8'], 'its --embed_dim is 16'), (['--seed', '2'], 'its --seed is 1'),
                              (['--evaluation_metrics', 'e_recall@1'], 'its --evaluation_metrics is'),
                              (['--loss', 'hyperbolic'], 'ranks by a distance of its own')):
        capsys.readouterr()
        assert run(*quick, *metrics, '--group', 'bad', '--untrained', other, *changed) == 2
        assert sentence in capsys.readouterr().err
        assert not list(other.parent.glob('bad*'))


def test_a_run_that_judges_no_test_classes_shows_none(quick, run, tmp_path):
    assert run(*quick, '--use_tv_split', '--bs', '6', '--splits_to_eval', 'val', '--n_epochs', '1',
               '--pictures', 'spectrum') == 0
    folder = tmp_path / 'runs' / 'folder' / 'quick_s1'
    assert (folder / 'retrieval_val.png').exists() and not (folder / 'retrieval_test.png').exists()
    assert (folder / 'plots' / 'spectrum_val.png').exists()


def test_a_choice_that_main_refuses_is_refused():
    with pytest.raises(UserError, match='invalid choice'):
        Hyperparameter_Search.read_tuned(['scheduler', 'step,cosinus'])
