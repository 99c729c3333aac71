"""launching/plan.py: a line that main.py would refuse starts nothing."""
import pytest

import Launch_Runs
from launching import plan
from tests.helpers import folder_of
from utilities import run_folder, run_records


@pytest.mark.parametrize('flags, sentence', [
    (['--los', 'x'], 'run 1: --los: unknown flag; did you mean loss?'),
    (['--loss', 'x'], 'run 1: --loss x: unknown'),
    (['--loss', 'triplet', '--batch_mining', 'none'], 'run 1: --loss triplet needs a miner'),
    (['--data_sampler', 'x'], 'run 1: --data_sampler x: unknown'), (['--arch', 'x'], 'run 1: --arch x: unknown'),
    (['--dataset', 'x'], 'run 1: --dataset x: unknown'), (['--resume', 'x'], 'run 1: x: not a run folder'),
])
def test_a_line_that_main_would_refuse_starts_nothing(flags, sentence, script, tmp_path, capsys):
    assert Launch_Runs.main([script(flags, []), '--workers', '1']) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / 'runs').exists()


def test_two_lines_must_not_share_a_run_folder(script, capsys):
    assert Launch_Runs.main([script([], ['--seed', '0', '--lr', '1']), '--dry_run']) == 2
    assert 'runs 1 and 2: both would be folder/r_s0' in capsys.readouterr().err


def test_a_run_that_chose_its_batch_is_still_that_of_its_line(run, quick, tmp_path):
    small = quick[:quick.index('--bs')] + quick[quick.index('--lr'):]
    assert run(*small, '--n_epochs', '0', '--no_train_metrics') == 0
    flags = run_folder.read(folder_of(tmp_path))['flags']
    line = [*small, '--n_epochs', '0', '--no_train_metrics']
    assert flags['bs'] == 36 and run_records.are_same(plan.of_line(line).settings, {'flags': flags})
    assert not run_records.are_same(plan.of_line([*line, '--bs', '12']).settings, {'flags': flags})
    for given in ([], ['--bs', '36', '--samples_per_class', '6']):
        assert plan.of_line([*line, *given]).folder() == folder_of(tmp_path)


def test_a_run_with_a_given_batch_is_not_that_of_a_line_without(run, quick, tmp_path):
    line = [*quick, '--n_epochs', '0', '--no_train_metrics']
    assert run(*line) == 0 and plan.of_line(line).folder() == folder_of(tmp_path)
    at = quick.index('--bs')
    other = line[:at] + line[at + 4:]
    assert '--bs' not in other and '--samples_per_class' not in other and plan.of_line(other).folder() is None
    assert run(*other, '--auto_resume') == 0 and plan.of_line(other).folder() == folder_of(tmp_path, 'quick_s1_1')
