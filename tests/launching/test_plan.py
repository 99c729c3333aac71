"""launching/plan.py: a line that main.py would refuse starts nothing. launching/status.py: epochs and pace of a run."""
import json
import os
import subprocess
import sys

import pytest

import Launch_Runs
from launching import plan, remembered, status
from records import reading, run_folder
from tests.helpers import ROOT, folder_of
from utilities.errors import UserError
from utilities.files import write_csv


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


def test_of_two_lines_with_a_run_folder_the_first_one_stays(script, capsys):
    file = script(['--lr', '1'], ['--seed', '0', '--lr', '2'], ['--seed', '0', '--lr', '3'])
    assert [run.settings['lr'] for run in plan.of_script(file, skip_refused=True)] == [1]
    printed = capsys.readouterr().err
    assert printed.startswith('Left out:\n') and 'runs 1 and 2: both' in printed and 'runs 1 and 3: both' in printed


def test_a_run_that_chose_its_batch_is_still_that_of_its_line(run, quick, tmp_path):
    small = quick[:quick.index('--bs')] + quick[quick.index('--lr'):]
    assert run(*small, '--n_epochs', '0', '--no_train_metrics') == 0
    flags = run_folder.read(folder_of(tmp_path))['flags']
    line = [*small, '--n_epochs', '0', '--no_train_metrics']
    assert flags['bs'] == 36 and reading.are_same(plan.of_line(line).settings, {'flags': flags})
    assert not reading.are_same(plan.of_line([*line, '--bs', '12']).settings, {'flags': flags})
    for given in ([], ['--bs', '36', '--samples_per_class', '6']):
        assert plan.of_line([*line, *given]).folder() == folder_of(tmp_path)


def test_a_run_with_a_given_batch_is_not_that_of_a_line_without(run, quick, tmp_path):
    line = [*quick, '--n_epochs', '0', '--no_train_metrics']
    assert run(*line) == 0 and plan.of_line(line).folder() == folder_of(tmp_path)
    at = quick.index('--bs')
    other = line[:at] + line[at + 4:]
    assert '--bs' not in other and '--samples_per_class' not in other and plan.of_line(other).folder() is None
    assert run(*other, '--auto_resume') == 0 and plan.of_line(other).folder() == folder_of(tmp_path, 'quick_s1_1')


def test_the_status_of_a_run_counts_the_epochs_that_are_not_evaluated(script, tmp_path):
    planned, = plan.of_script(script(['--eval_every', '6', '--n_epochs', '20']))
    folder = folder_of(tmp_path, 'r_s0')
    folder.mkdir(parents=True)
    config = {'flags': planned.settings, 'split_hash': 'x', 'run_id': 'y'}
    run_folder.write_yaml(folder / 'config.yaml', config)
    (folder / 'splits.yaml').write_text('hash: x')
    write_csv(folder / 'log.csv', [
        {'epoch': epoch, 'seconds': 11 if epoch % 6 == 0 else 1, 'test_e_recall@1': '' if epoch % 6 else epoch / 10}
        for epoch in range(8)])
    row = status.row_of(planned)
    assert (row['epoch'], row['score']) == (7, 0.6)
    assert row['pace'] == pytest.approx((5 * 1 + 11) / 6)                 # of epochs 2 to 7
    assert status.with_remaining_time([row])[0]['seconds'] == pytest.approx(13 * 16 / 6)


@pytest.fixture
def of_script(script, monkeypatch, tmp_path):
    """A function: lines -> the remembered runs of a script of these lines. of_script.checked: the lines checked."""
    def runs(*lines):
        return remembered.of_script(script(*lines))

    runs.checked = []
    of_line = plan.of_line
    monkeypatch.setattr(plan, 'of_line', lambda arguments: runs.checked.append(arguments) or of_line(arguments))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    return runs


def test_a_remembered_plan_is_the_plan(of_script, script):
    lines = [['--lr', '1'], ['--seed', '7', '--wandb_key', 'hunter2']]
    first = of_script(*lines)
    recalled = of_script(*lines)
    assert len(of_script.checked) == 2 and [run.name for run in recalled] == ['folder/r_s0', 'folder/r_s7']
    for run, then, now in zip(plan.of_script(script(*lines)), first, recalled, strict=True):
        assert (now.log, now.machine, now.chosen) == (run.log, [*run.machine], [*run.chosen])
        assert json.loads(json.dumps(run.settings)) == now.settings == json.loads(json.dumps(then.settings))
    kept, = remembered.place_of(script()).parent.iterdir()
    assert 'hunter2' not in kept.read_text()


@pytest.mark.parametrize('damage', [b'', b'[]', b'{"said": 1}', b'\xff'])
def test_a_damaged_plan_is_made_again(damage, of_script, script):
    of_script(['--lr', '1'])
    remembered.place_of(script(['--lr', '1'])).write_bytes(damage)
    assert [run.settings['lr'] for run in of_script(['--lr', '1'])] == [1] and len(of_script.checked) == 2


def test_a_plan_is_made_again_when_a_line_or_a_file_changes(of_script, tmp_path):
    config = tmp_path / 'config.yaml'
    for count, rate in enumerate((1, 22), start=1):
        config.write_text(f'decay: {rate}')
        assert [run.settings['decay'] for run in of_script(['--config', str(config)])] == [rate]
        assert len(of_script.checked) == count
    assert of_script(['--config', str(config), '--bs', '8'])[0].settings['bs'] == 8


def test_a_refused_line_is_not_remembered(of_script):
    for _ in range(2):
        with pytest.raises(UserError, match='unknown flag'):
            of_script(['--los', 'x'])


def test_the_status_of_a_known_script_imports_no_torch(script, tmp_path):
    file = script(['--lr', '1'], ['--seed', '3'])
    code = ("import sys, Launch_Runs; print(Launch_Runs.main([sys.argv[1], '--status']), "
            "'torch' in sys.modules or 'numpy' in sys.modules)")
    environment = os.environ | {'XDG_CACHE_HOME': str(tmp_path)}
    first, second = (subprocess.run([sys.executable, '-c', code, file], cwd=ROOT, env=environment, check=True,
                                    capture_output=True, text=True).stdout.splitlines() for _ in range(2))
    assert first[:-1] == second[:-1] and '2 runs: 2 waiting' in first
    assert (first[-1], second[-1]) == ('0 True', '0 False')
