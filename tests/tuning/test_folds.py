"""tuning/folds.py: pruning by the epochs of the folds, and what a search asks of main.py's runs."""
import pytest
import yaml
from optuna.trial import TrialState

import Evaluate_Ensemble
import Hyperparameter_Search
from tests.helpers import after_training, rows_of
from tests.tuning.stub import started, study_of, table_of


@pytest.mark.parametrize('pruner, rates', [('median', '0.001,0.0011,0.0012,0.0013,0.1'), ('hyperband', '0.001,0.1')])
def test_hopeless_trials_are_pruned_epoch_by_epoch(pruner, rates, flags, stub):
    # slow enough to be pruned before its last epoch
    folder = stub(pace="0.2 if flags['lr'] == 0.1 else 0" if pruner == 'median' else '0')
    tune = ['--tune', 'lr', rates, '--sampler', 'grid']                                # the last is far worse
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


def test_a_search_with_real_runs_reproduces_the_best_setting(flags, tmp_path, capsys):
    """With cascaded embeddings; its reproductions are the members of an ensemble."""
    arguments = [*flags, '--tune', 'lr', '1e-4,1e-2', '--sampler', 'grid', '--workers', '2', '--reproductions', '1',
                 '--n_epochs', '1', '--cascade', '1', '--cascade_fractions', '0.5']
    assert Hyperparameter_Search.main(arguments) == 0
    out = capsys.readouterr().out
    study = tmp_path / 'study'
    runs = study / 'trials' / 'folder'
    first, second = (rows_of(runs / f'trial_{number:04d}_fold0_s1') for number in range(2))
    assert first[0] == second[0] and first[1] != second[1]
    best = max(table_of(tmp_path), key=lambda row: float(row['map_at_r']))['trial']
    kept = {path.parent.name for path in runs.glob('*/checkpoint_*.pt')}
    assert kept == {f'{best}_fold0_s1', f'{best}_fold1_s1'}
    made = study / 'reproductions' / best / 'folder'
    assert {folder.name for folder in made.iterdir() if folder.is_dir()} == {'study_fold0_s2', 'study_fold1_s2'}
    assert 'python Evaluate_Ensemble.py' in out and f'reproductions of {best}, seeds 2: ' in out
    split = yaml.safe_load((made / 'study_fold1_s2' / 'splits.yaml').read_text())
    assert 'val' in split['splits'] and 'test_map_at_r' not in rows_of(made / 'study_fold1_s2')[0]

    lines = (study / 'trials' / 'trial_0001.sh').read_text().splitlines()
    assert len(lines) == 2 and all(line.startswith('python main.py --config ') for line in lines)
    assert lines[0].endswith('--group=trial_0001_fold0')

    folders = [str(made / f'study_fold{fold}_s2') for fold in (0, 1)]
    assert Evaluate_Ensemble.main([*folders, '--save_path', str(tmp_path / 'E')]) == 0
    log, = (tmp_path / 'E').glob('*/*/log.csv')
    scores = {row['form']: float(row['test_map_at_r']) for row in rows_of(log.parent, ())
              if row['trained_status'] == 'trained'}
    assert scores.keys() == {'separated', 'concatenated'} and all(0 < score < 1 for score in scores.values())


def test_notes_of_the_first_trial_are_printed(flags, capsys):
    tune = ['--tune', 'lr', '1e-4,1e-3', '--tune', 'loss_margin_beta', '0.5,0.7']
    assert Hyperparameter_Search.main([*flags, *tune, '--n_trials', '1', '--n_epochs', '1', '--workers', '2']) == 0
    note, = [line for line in capsys.readouterr().out.splitlines() if 'without effect' in line]
    assert note.startswith('trial_0000_fold0_s1: Note: without effect in this run: --loss_margin_beta 0.')
    assert '--lr' not in note


@pytest.mark.parametrize('more, kept', [([], {'trial_0001'}), (['--keep_checkpoints'], {'trial_0000', 'trial_0001'})])
def test_whose_checkpoints_are_kept(more, kept, flags, stub):
    folder = stub()
    main = folder / 'main.py'
    main.write_text(main.read_text() + "(folder / 'checkpoint_last.pt').touch()\n")
    tune = ['--tune', 'lr', '0.1,0.001', '--sampler', 'grid', '--n_epochs', '0']
    assert Hyperparameter_Search.main([*flags, *tune, *more]) == 0
    runs = (folder / 'study' / 'trials' / 'folder').glob('*/')
    assert {run.name[:10] for run in runs if (run / 'checkpoint_last.pt').exists()} == kept


def test_the_untrained_network_does_not_count(flags, stub, capsys):
    folder = stub()
    tune = ['--tune', 'lr', '0.001,10', '--sampler', 'grid', '--n_epochs', '3']       # lr 10 is worse in each epoch
    assert Hyperparameter_Search.main([*flags, *tune]) == 0
    assert [row['best_epochs'] for row in table_of(folder)] == ['3 3', '1 1']
    for row in table_of(folder):
        runs = [rows_of(folder / f'study/trials/folder/{row["trial"]}_fold{fold}_s1') for fold in (0, 1)]
        assert float(row['map_at_r']) == pytest.approx(
            sum(max(float(epoch['val_map_at_r']) for epoch in run[1:]) for run in runs) / 2, abs=1e-12)
    study_of(folder).set_user_attr('first_epoch', 0)                                  # as earlier versions could
    assert Hyperparameter_Search.main([*flags, *tune, '--n_trials', '3']) == 2
    assert 'was begun with --count_epoch_0' in capsys.readouterr().err


def test_a_run_that_judges_no_test_classes_shows_none(quick, run, tmp_path):
    assert run(*quick, '--use_tv_split', '--bs', '6', '--splits_to_eval', 'val', '--n_epochs', '1',
               '--pictures', 'spectrum', '--no_train_metrics', 'false') == 0
    folder = tmp_path / 'runs' / 'folder' / 'quick_s1'
    assert (folder / 'retrieval_val.png').exists() and not (folder / 'retrieval_test.png').exists()
    assert (folder / 'plots' / 'spectrum_val.png').exists()
    for flags, split in ([], 'val'), (['--splits_to_eval', 'train'], 'train'):
        assert after_training(folder, 'pictures', tmp_path / split, *flags) == 0
        assert {file.stem for file in (tmp_path / split).iterdir()} == {f'spectrum_{split}'}
