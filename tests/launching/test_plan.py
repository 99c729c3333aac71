"""launching/plan.py: a line that main.py would refuse starts nothing. launching/status.py: epochs of a run."""
import fcntl

import pytest

import Launch_Runs
from launching import plan, status
from records import reading, run_folder
from tests.helpers import FROM_COPY, ROOT, executed, folder_of, recorded_run


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


def test_lines_that_main_would_refuse_or_that_share_a_run_folder_can_be_left_out(script, capsys):
    file = script(['--lr', '1'], ['--seed', '0', '--lr', '2'], ['_3'], ['--seed', '0', '--lr', '3'])
    problems = ('runs 1 and 2: both would be folder/r_s0', 'run 3: unrecognized arguments: _3', 'runs 1 and 4: both')
    assert Launch_Runs.main([file, '--dry_run']) == 2
    printed = capsys.readouterr().err
    assert all(problem in printed for problem in (*problems, '--skip_refused leaves out 3 of 4 lines'))
    assert [run.settings['lr'] for run in plan.runs_of_script(file, skip_refused=True)] == [1]
    printed = capsys.readouterr().err
    assert printed.startswith('Left out:\n') and all(problem in printed for problem in problems)


def test_a_run_that_chose_its_batch_is_still_that_of_its_line(run, quick, tmp_path):
    small = quick[:quick.index('--bs')] + quick[quick.index('--lr'):]
    assert run(*small, '--n_epochs', '0') == 0
    flags = run_folder.read(folder_of(tmp_path))['flags']
    line = [*small, '--n_epochs', '0']
    assert flags['bs'] == 36 and reading.are_same(plan.planned_run(line).settings, {'flags': flags})
    assert not reading.are_same(plan.planned_run([*line, '--bs', '12']).settings, {'flags': flags})
    for given in ([], ['--bs', '36', '--samples_per_class', '6']):
        assert plan.planned_run([*line, *given]).folder() == folder_of(tmp_path)


def test_a_run_with_a_given_batch_is_not_that_of_a_line_without(run, quick, tmp_path):
    line = [*quick, '--n_epochs', '0']
    assert run(*line) == 0 and plan.planned_run(line).folder() == folder_of(tmp_path)
    at = quick.index('--bs')
    other = line[:at] + line[at + 4:]
    assert '--bs' not in other and '--samples_per_class' not in other and plan.planned_run(other).folder() is None
    assert run(*other, '--auto_resume') == 0 and plan.planned_run(other).folder() == folder_of(tmp_path, 'quick_s1_1')


def test_the_status_of_a_run_counts_the_epochs_that_are_not_evaluated(script, tmp_path):
    planned, = plan.runs_of_script(script(['--eval_every', '6', '--n_epochs', '20']))
    recorded_run(planned, n_epochs=7, eval_every=6)
    assert status.progress(planned) == ('stopped', 7, 0.6)
    with open(planned.log, 'w') as log:
        fcntl.flock(log, fcntl.LOCK_EX)                           # as the process of the run
        assert status.progress(planned) == ('running', 7, 0.6)


def test_a_damaged_run_folder_is_named_and_hides_no_other_run(script, tmp_path, capsys):
    runs = plan.runs_of_script(script(['--n_epochs', '4'], ['--n_epochs', '4', '--seed', '2']))
    for run in runs:
        recorded_run(run, n_epochs=2)
    log = runs[0].folder() / 'log.csv'
    log.write_text(log.read_text()[:-4])
    for listing in (status.show, status.dry_run):
        listing(runs)
        printed = capsys.readouterr().out
        assert 'damaged' in printed and 'log.csv: cut off in its last line' in printed and runs[1].name in printed


def test_flags_after_two_dashes_go_to_every_run(script, patterns, tmp_path, capsys):
    """They override those of the lines; a key among them is in no argument of a run."""
    file = script(['--lr', '1'], ['--bs', '6'])
    more = ['--lr', '0.5', '--wandb_key', 'hunter2', '--source_path', str(tmp_path / 'nowhere')]
    runs = plan.runs_of_script(file, more=more)
    assert [run.settings['lr'] for run in runs] == [0.5, 0.5] and [run.settings['bs'] for run in runs] == [12, 6]
    assert 'hunter2' not in str([run.arguments for run in runs])
    assert [run.environment for run in runs] == [{'WANDB_API_KEY': 'hunter2'}] * 2
    assert Launch_Runs.main([file, '--dry_run', '--', *more]) == 0
    printed = capsys.readouterr().out
    assert f'Note: 2 of them cannot find their data: --dataset folder: expected {tmp_path}/nowhere/images' in printed
    assert 'hunter2' not in printed
    assert Launch_Runs.main([file, '--dry_run']) == 0 and 'Note' not in capsys.readouterr().out
    assert Launch_Runs.main([file, '--status', '--', '--los', 'x']) == 2
    assert 'run 1: --los: unknown flag' in capsys.readouterr().err
    assert Launch_Runs.main([file, '--status', '--', '--group', 'other']) == 0
    assert 'folder/other_s1  waiting' in capsys.readouterr().out


def test_without_fcntl_as_on_windows_the_scripts_can_be_used(script, tmp_path):
    code = ("import sys\nsys.modules['fcntl'] = None\n" + FROM_COPY + 'import Launch_Runs\nimport tuning.search\n'
            'sys.exit(Launch_Runs.main(sys.argv[2:]))')
    code, out, errors = executed(tmp_path, code, ROOT, script([]), '--status')
    assert code == 0 and '1 waiting' in out, errors
