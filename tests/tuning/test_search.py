"""Hyperparameter_Search.py: what it refuses, what it finds, and how a study is extended."""
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import configuration
import Hyperparameter_Search
from launching import process
from tests.tuning.stub import TUNE, processes, study_of, table_of
from tuning import report, search


@pytest.mark.parametrize('changed, sentence', [
    (['--tune', 'learning', '1', '2'], '--tune learning: unknown flag'),
    (['--tune', 'loss_triplet_margn', '1', '2'], 'did you mean loss_triplet_margin?'),
    (['--tune', 'lr', '0.1', '0.1'], 'LOW must be less than HIGH'),
    (['--tune', 'lr', '0', '1', 'log'], 'a log range must begin above 0'),
    (['--tune', 'lr', 'a', 'b'], 'expected two numbers, not a and b'),
    (['--tune', 'lr', '-1', '1'], '--lr: expected a number of at least 0, not -1'),
    (['--tune', 'bs', '6', '12'], 'write --tune bs 6 12 int'),
    (['--tune', 'lr', '1', '2', 'lin'], 'LOW HIGH [log] [int [STEP]]'),
    (['--tune', 'optim', 'adam,adam'], 'two choices or more'),
    (['--tune', 'optim', 'adam,adamm'], '--optim: adamm is unknown; choose from '),
    (['--tune', 'scheduler', 'step,cosinus'], 'invalid choice'),
    (['--tune', 'loss', 'margin,nope'], '--loss nope: unknown; choose from '),
    ([*TUNE, '--lr', '0.5'], '--tune lr and --lr: the flag is tuned, or has the given value; leave one out'),
    (['--tune', 'optim_args.nesterov', '0', '1', '--optim', 'sgd', '--optim_args', '{nesterov: 1}'],
     '--tune optim_args.nesterov and --optim_args.nesterov: the flag is tuned, or has the given value; leave one out'),
    (['--tune', 'seed', '1', '5', 'int'], 'not a flag to tune'),
    (['--tune', 'lr', '1e-4', '1', '--tune', 'lr', '1e-3', '1'], '--tune lr: given twice'),
    (['--tune', 'bs', '8', '112', 'int', '5'], 'steps of 5 from 8 do not reach 112; give 108 as HIGH'),
    (['--tune', 'bs', '8', '112', 'int', '0'], 'STEP must be at least 1'),
    (['--tune', 'bs', '8', '112', 'log', 'int', '8'], 'a log range has none'),
    (['--tune', 'bs', '8', '112', 'int', 'x'], '[int [STEP]]'),
    ([], 'at least one --tune'),
    ([*TUNE, '--n_folds', '20'], '--n_folds 20: only 6 of the 12 classes are not test classes'),
    ([*TUNE, '--split_scheme', 'mlrc', '--n_folds', '7'], 'the val split is empty'),
    ([*TUNE, '--split_scheme', 'half', '--n_folds', '4'], 'half has no folds'),
    ([*TUNE, '--splits', '{splits}'], 'splits.json has no folds; a search needs --split_scheme class_folds or mlrc or'),
    ([*TUNE, '--study_name', 'a/b', '--reproductions', '1'], '--study_name a/b: not a name for its --reproductions'),
    ([*TUNE, '--study_name', 'a' * 195, '--reproductions', '1'], 'at most 200 fit'),
    ([*TUNE, '--split_scheme', 'class_folds', '--splits_to_eval', 'test'], 'validation classes only'),
    ([*TUNE, '--fold', '1'], '--fold: a search sets it itself'),
    ([*TUNE, '--resume', 'here'], '--resume goes with main.py'),
    ([*TUNE, '--gpus', '0', '--workers', '1'], '--gpus and --workers'),
    ([*TUNE, '--dataset', 'cub200'], '--dataset cub200: expected'),
])
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing_behind(changed, sentence, flags, tmp_path, capsys):
    (tmp_path / 'splits.json').write_text('{"train": ["class_00"], "test": ["class_01"]}')
    changed = [word.replace('{splits}', f'{tmp_path}/splits.json') for word in changed]
    assert Hyperparameter_Search.main([*flags, *changed]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith('Hyperparameter_Search.py: error: ')
    assert not (tmp_path / 'study').exists()


@pytest.mark.parametrize('sampler, n_folds, batch', [('class_random', 4, (24, 6)), ('image_random', 4, (24, 2)),
                                                     ('class_random', 2, (18, 6))])
def test_a_default_batch_is_one_that_every_fold_allows(sampler, n_folds, batch, flags, capsys):
    """6 of the 12 classes, with 6 images each, are divided into folds; with 4 folds, 4 or 5 are training classes."""
    at = flags.index('--bs')
    arguments = [*flags[:at], *flags[at + 2:], *TUNE, '--n_folds', str(n_folds), '--data_sampler', sampler]
    settings = search.parse(*Hyperparameter_Search.build().parse_known_args(arguments)).settings
    assert (settings['bs'], settings['samples_per_class']) == batch
    assert f'; using --bs {batch[0]} --samples_per_class {batch[1]}' in capsys.readouterr().out
    settings = search.parse(*Hyperparameter_Search.build().parse_known_args([*arguments, '--bs', '8'])).settings
    assert (settings['bs'], settings['samples_per_class']) == (8, 2)


def test_a_search_is_a_function_of_its_seed(flags, stub, tmp_path):
    folder = stub()
    found = []
    for repetition in range(2):
        flags[1] = str(tmp_path / f'{repetition}' / 'study')
        assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2', '--workers', '2', '--n_epochs', '0']) == 0
        found.append([(row['lr'], row['map_at_r']) for row in table_of(folder / f'{repetition}')])
    assert found[0] == found[1] and len(set(found[0])) == 2


def test_the_objective_the_table_and_the_best_config(flags, stub):
    folder = stub(has_plots=True)
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '3', '--workers', '2']) == 0
    rows = table_of(folder)
    assert [row['trial'] for row in rows] == [f'trial_{number:04d}' for number in range(3)]
    for row in rows:
        lr, margin = float(row['lr']), float(row['loss_triplet_margin'])
        folds = [(1 - (np.log10(lr) + 3) ** 2 / 4 - margin / 10) * (1 - np.exp(-np.arange(3) - 1)) + fold / 100
                 for fold in range(2)]
        assert float(row['map_at_r']) == pytest.approx(np.mean([scores.max() for scores in folds]))
    best = max(rows, key=lambda row: float(row['map_at_r']))
    opt = configuration.parse(['--config', str(folder / 'study' / 'best.yaml'), '--fold', '1'])
    assert (opt.lr, opt.loss_triplet_margin) == (float(best['lr']), float(best['loss_triplet_margin']))
    assert opt.split_scheme == 'class_folds' and opt.splits_to_eval == ['val'] and opt.bs == 6
    plain = configuration.parse(['--config', str(folder / 'study' / 'best.yaml'), '--split_scheme', 'half',
                              '--splits_to_eval', 'test'])
    assert (plain.lr, plain.split_scheme) == (opt.lr, 'half')
    assert 'n_folds' in configuration.unread(plain, trained=True, evaluated=False)
    assert '--split_scheme half --splits_to_eval test\n' in (folder / 'study' / 'best.yaml').read_text()
    assert {file.name for file in (folder / 'study' / 'plots').glob('*.png')} == {
        'history.png', 'slice.png', 'contour.png', 'importances.png'}


def test_the_first_trial_that_fails_is_recorded_with_its_reason(flags, stub, capsys):
    folder = stub()
    tune = ['--tune', 'loss_triplet_margin', '0.1,0.85,0.95', '--sampler', 'grid']
    assert Hyperparameter_Search.main([*flags, *tune]) == 0
    rows = {row['loss_triplet_margin']: row for row in table_of(folder)}
    assert [rows[margin]['state'] for margin in ('0.1', '0.85', '0.95')] == ['complete', 'fail', 'fail']
    assert 'trial_0001_fold0_s1: exit code 1: the loss is nan' in rows['0.85']['reason']
    assert 'val_map_at_r is not a number in any epoch' in rows['0.95']['reason']
    assert 'failed: trial_0001_fold0_s1' in capsys.readouterr().out


def test_a_search_in_which_everything_fails_ends(flags, stub, capsys):
    folder = stub()
    assert Hyperparameter_Search.main([*flags, '--tune', 'loss_triplet_margin', '0.81', '0.89']) == 2
    assert 'all of the first 3 trials failed' in capsys.readouterr().err
    assert len(table_of(folder)) == 3
    repaired = (folder / 'main.py').read_text().replace('0.8 < margin', '0.9 < margin')
    (folder / 'main.py').write_text(repaired)                       # the reason was not in the settings
    assert Hyperparameter_Search.main([*flags, '--tune', 'loss_triplet_margin', '0.81', '0.89', '--n_trials', '4']) == 0
    assert len(table_of(folder)) == 4


def test_a_search_without_success_says_so_and_why(flags, stub, capsys):
    stub()
    assert Hyperparameter_Search.main([*flags, '--tune', 'loss_triplet_margin', '0.81', '0.89', '--n_trials', '2']) == 2
    error = capsys.readouterr().err
    assert 'none of the 2 trials has succeeded, the last one that failed: trial_0001_fold0_s1: exit code 1: ' in error
    assert 'the loss is nan; trials.csv has all reasons' in error


@pytest.mark.parametrize('tail, reason', [
    # what main.py prints at its end in each case
    ('''main.py: the run failed: The loss is not finite in epoch 3.
The last checkpoint: Runs/checkpoint_last.pt. To continue: python main.py --resume Runs
''', 'The loss is not finite in epoch 3.'),
    ('''main.py: error: --bs 7 is not divisible by --samples_per_class 2
wandb: You can sync this run to the cloud by running:
''', '--bs 7 is not divisible by --samples_per_class 2'),
    ('''Traceback (most recent call last):
  File "main.py", line 3, in <module>
RuntimeError: at first

''', 'RuntimeError: at first'),
    ('epoch 1\nKilled\n', 'Killed'), ('', 'it printed nothing'),
])
def test_the_reason_of_a_failed_run(tail, reason, tmp_path):
    run = SimpleNamespace(log=tmp_path / 'run.log')
    run.log.write_text('\n2026-01-01 10:00:00 python main.py --seed 1\nmain.py: error: of the attempt before\n'
                       f'Launch_Runs.py: exit code 2\n\n2026-01-02 10:00:00 python main.py\n{tail}'
                       'Launch_Runs.py: exit code 1\n')
    assert process.reason(run) == reason


def test_two_workers_on_a_grid_leave_points_for_a_larger_search(flags, stub):
    folder = stub(pace=0.1)
    grid = [*flags, *TUNE, '--n_epochs', '1', '--sampler', 'grid', '--grid_points', '2', '--n_trials']
    for worker, out, errors in processes(folder, [*grid, '3'], 2):
        assert worker.wait(timeout=300) == 0, out.read_text() + errors.read_text()
    assert len(table_of(folder)) == 3
    assert Hyperparameter_Search.main([*grid, '4']) == 0
    rows = table_of(folder)
    assert len({(row['lr'], row['loss_triplet_margin']) for row in rows}) == 4 == len(rows)


def test_an_extended_grid_has_all_points(flags, stub):
    folder = stub()
    grid = [*flags, '--n_epochs', '0', '--tune', 'loss_triplet_margin', '0.1', '0.7', '--sampler', 'grid',
            '--grid_points']
    assert Hyperparameter_Search.main([*grid, '2']) == 0 and len(table_of(folder)) == 2
    assert Hyperparameter_Search.main([*grid, '3']) == 0
    assert sorted(float(row['loss_triplet_margin']) for row in table_of(folder)) == pytest.approx([.1, .4, .7])


def test_a_finished_search_is_extended_and_its_ranges_stay(flags, stub, capsys):
    folder = stub()
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '1']) == 0
    before = table_of(folder)
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2']) == 0
    after = table_of(folder)
    assert after[:1] == before and len(after) == 2
    for changed, sentence in ((['--tune', 'lr', '1e-5', '1', 'log', *TUNE[5:]], 'lr 1e-05 0.1 log, not 1e-05 1.0 log'),
                              (TUNE[5:], '--tune lr 1e-05 0.1 log, not nothing'),
                              ([*TUNE, '--tune', 'decay', '0', '1'], '--tune decay nothing, not 0.0 1.0'),
                              ([*TUNE, '--embed_dim', '4'], '--embed_dim 8, not 4')):
        capsys.readouterr()
        stored = {file: file.read_bytes() for file in (folder / 'study').glob('*.*')}
        assert Hyperparameter_Search.main([*flags, *changed, '--n_trials', '4']) == 2
        assert sentence in capsys.readouterr().err
        assert {file: file.read_bytes() for file in (folder / 'study').glob('*.*')} == stored


@pytest.mark.parametrize('more', [['--study_name', 'second'], ['--storage', 'sqlite:///{folder}/other.sqlite']])
def test_a_folder_has_the_trials_of_one_study(more, flags, stub, capsys):
    folder = stub()
    arguments = [*flags, *TUNE, '--n_trials', '1', '--n_epochs', '0']
    assert Hyperparameter_Search.main(arguments) == 0
    files = sorted((folder / 'study').rglob('*'))
    assert Hyperparameter_Search.main([*arguments, *(word.format(folder=folder) for word in more)]) == 2
    assert 'study: its trials are of another study than ' in capsys.readouterr().err
    assert sorted((folder / 'study').rglob('*')) == files
    assert Hyperparameter_Search.main(arguments) == 0


def test_a_file_of_a_study_may_move_but_not_change(flags, stub, tmp_path, capsys):
    folder = stub()
    first, second = tmp_path / 'first.pth', tmp_path / 'second.pth'
    first.write_text('weights')
    arguments = [*[flag for flag in flags if flag != '--not_pretrained'], *TUNE, '--n_epochs', '0', '--n_trials']
    assert Hyperparameter_Search.main([*arguments, '1', '--weights', str(first)]) == 0
    first.rename(second)
    assert Hyperparameter_Search.main([*arguments, '2', '--weights', str(second)]) == 0
    assert len(table_of(folder)) == 2
    second.write_text('others')
    assert Hyperparameter_Search.main([*arguments, '3', '--weights', str(second)]) == 2
    assert f'was begun with another content of --weights {second}; give that file' in capsys.readouterr().err
    study_of(folder).set_user_attr('files', {})                     # as in studies of earlier versions
    assert Hyperparameter_Search.main([*arguments, '3', '--weights', str(second)]) == 0


def test_tuned_arguments_of_a_loss_are_merged_with_the_given_ones(flags):
    at = flags.index('--loss')
    arguments = [*flags[:at], *flags[at + 2:], '--loss', 'pml:TripletMarginLoss', '--loss_pml_args', '{swap: true}',
                 '--tune', 'loss_pml_args.margin', '0.1', '0.3']
    found = search.parse(*Hyperparameter_Search.build().parse_known_args(arguments))
    found.folder.mkdir()
    (found.folder / 'base.yaml').write_text(yaml.safe_dump(found.settings))
    for command in found.commands({'loss_pml_args.margin': .25}, 'trial', 'trials'):
        assert configuration.parse(command).loss_pml_args == [{'swap': True, 'margin': .25}]
    best = report.all_settings(found, SimpleNamespace(params={'loss_pml_args.margin': .25}))
    assert next(iter(best.items())) == ('loss_pml_args', [{'swap': True, 'margin': .25}])
