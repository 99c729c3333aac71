"""tuning/optimize.py: stopped, killed and silent workers lose no trial and repeat none."""
import os
import signal

import pytest
from optuna.trial import TrialState

import Hyperparameter_Search
from tests.helpers import rows_of, wait_for
from tests.tuning.stub import TUNE, processes, started, study_of, table_of
from tuning import folds, trials
from tuning.optimize import optimize
from tuning.search import parse
from tuning.study import open_study


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
    monkeypatch.setattr(trials, 'GRACE', 1)
    monkeypatch.setattr(optuna.study._optimize, 'get_heartbeat_thread', stopped)
    assert Hyperparameter_Search.main(arguments) == 130
    assert [trial.state for trial in study_of(folder).trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert Hyperparameter_Search.main(arguments) == 0
    assert 'waiting for trial_0001, which other workers are running' in capsys.readouterr().out
    assert [row['state'] for row in table_of(folder)] == ['complete'] * 2


@pytest.mark.filterwarnings('ignore')
def test_ctrl_c_leaves_a_trial_alone_that_failed_for_its_own_reason(flags, stub, monkeypatch):
    folder = stub()
    arguments = [*flags, '--tune', 'loss_triplet_margin', '0.1,0.85', '--sampler', 'grid']
    search = parse(*Hyperparameter_Search.build().parse_known_args(arguments))
    study = open_study(search)
    other = study.ask()                                             # another worker has the first point

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, 'requeue_unbegun', stopped)      # while the other one is waited for
    with pytest.raises(KeyboardInterrupt):
        optimize(search, study)
    assert [trial.state for trial in study_of(folder).trials] == [TrialState.RUNNING, TrialState.FAIL]
    assert other.number == 0


def test_a_worker_that_was_silent_too_long_leaves_its_trial_to_another(flags, stub, monkeypatch, capsys):
    folder, report = stub(), folds.Folds.report

    def taken_over(own):
        study = own.trial.study
        if own.trial.number == 0 and study.trials[0].state == TrialState.RUNNING:
            study.tell(0, state=TrialState.FAIL, skip_if_finished=True)         # what the other worker does
            trials.requeue(study, study.trials[0])
        return report(own)

    monkeypatch.setattr(folds.Folds, 'report', taken_over)
    assert Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2', '--n_epochs', '1', '--sampler', 'gp']) == 0
    assert 'trial_0000  another worker has taken it over' in capsys.readouterr().out
    assert {row['trial'] for row in table_of(folder)} > {'trial_0000'} and len(table_of(folder)) == 2


def test_an_error_of_the_program_in_a_trial_ends_the_search(flags, stub, monkeypatch):
    stub()
    errors = iter([ValueError('on purpose'), KeyboardInterrupt])

    def broken(_):
        raise next(errors)

    monkeypatch.setattr(folds.Folds, 'run', broken)
    with pytest.raises(ValueError, match='on purpose'):
        Hyperparameter_Search.main([*flags, *TUNE, '--n_trials', '2'])


def test_two_workers_share_a_study(flags, stub):
    folder = stub(pace=0.1)
    workers = processes(folder, [*flags, *TUNE, '--n_trials', '3'], 2)
    for worker, out, errors in workers:
        assert worker.wait(timeout=300) == 0, out.read_text() + errors.read_text()
    rows = table_of(folder)
    assert len(rows) == 3 and all(row['state'] == 'complete' for row in rows)
    assert len({row['lr'] for row in rows}) == 3
    assert set(started(folder).values()) == {1}


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_search_goes_on_without_loss_or_repetition(how, flags, stub):
    folder = stub(pace="0.15 if flags['group'].startswith('trial_0001') else 0")
    arguments = [*flags, *TUNE, '--n_trials', '2', '--n_epochs', '5']
    (first, _, _), = processes(folder, arguments)
    log = folder / 'study/trials/folder/trial_0001_fold0_s1/log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    os.kill(first.pid, how)
    assert first.wait(timeout=60) == (-9 if how == signal.SIGKILL else 130)
    (second, out, errors), = processes(folder, arguments)
    assert second.wait(timeout=300) == 0, out.read_text() + errors.read_text()
    rows = table_of(folder)
    assert len(rows) == 2 and all(row['state'] == 'complete' for row in rows) and rows[0]['lr'] != rows[1]['lr']
    assert {'trial_0000', 'trial_0001'} == {row['trial'] for row in rows}          # the name of the first try stays
    again = started(folder)
    assert again['trial_0000_fold0_s1'] == again['trial_0000_fold1_s1'] == 1
    assert again['trial_0001_fold0_s1'] == (1 if how == signal.SIGKILL else 2)     # the run outlives a killed search
    assert len(rows_of(log.parent)) == 6
