"""Launch_Runs.py on this machine: nothing runs twice, and a killed launcher loses no run."""
import os
import shlex
import signal

import pytest

import Launch_Runs
import main
from launching import local, plan, pool, process
from records import run_folder
from tests import helpers
from tests.conftest import quick_flags
from tests.helpers import assert_same_end, executing, folder_of, rows_of, wait_for


def test_runs_in_parallel_are_those_of_main_and_finished_ones_are_skipped(script, run, quick, tmp_path, capsys):
    runs = script([], [], ['--lr', '1e30', '--loss', 'npair', '--batch_mining', 'npair', '--arch', 'conv4'])
    assert Launch_Runs.main([runs, '--workers', '2']) == 1
    out = capsys.readouterr().out
    assert '2 finished, 0 had been finished before, 1 failed' in out
    assert 'folder/r_s2: FAILED with exit code 1' in out and 'the loss is' in out
    assert run(*quick, '--group', 'alone', '--seed', '1') == 0
    assert rows_of(folder_of(tmp_path, 'alone_s1')) == rows_of(folder_of(tmp_path, 'r_s1'))

    capsys.readouterr()
    assert Launch_Runs.main([runs, '--status']) == 0
    status = capsys.readouterr().out
    assert 'folder/r_s0  finished    2/2' in status and 'folder/r_s2  failed' in status
    assert '3 runs: 2 finished, 1 failed' in status and 'a lower --lr' in status.lower()
    assert Launch_Runs.main([runs, '--only', 'r_s1', 'r_s0', '--workers', '1']) == 0
    assert '0 finished, 2 had been finished before, 0 failed' in capsys.readouterr().out
    assert Launch_Runs.main([runs, '--dry_run']) == 0
    assert 'folder/r_s0: finished' in capsys.readouterr().out
    assert Launch_Runs.main([script(['--lr', '0.5']), '--dry_run']) == 0        # another run, whatever its name
    assert 'folder/r_s0: would be started' in capsys.readouterr().out


def launcher(folder, *arguments):
    """As a script starts it in the background, where Ctrl-C does not reach."""
    code = ('import runpy, signal, sys; from tests import forks; signal.signal(signal.SIGINT, signal.SIG_IGN); '
            'forks.install(); runpy.run_path(sys.path[0] + "/Launch_Runs.py", run_name="__main__")')
    return executing(folder, code, *arguments)


FEW = ['--evaluation_metrics', 'e_recall@1']
MORE = [*FEW, '--n_epochs', '6', '--iterations_per_epoch', '12']


@pytest.fixture(scope='module')
def whole(patterns, tmp_path_factory):
    """The folder of a run with MORE that nothing interrupts."""
    folder = tmp_path_factory.mktemp('whole')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['main.py'])
        assert main.main([*quick_flags(patterns, folder), *MORE, '--group', 'r', '--seed', '0']) == 0
    return folder_of(folder, 'r_s0')


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_launcher_loses_no_run(end, script, whole, tmp_path):
    runs = script(MORE, [*FEW, '--n_epochs', '1'])
    first, printed, _ = launcher(tmp_path, runs, '--workers', '1')
    log = folder_of(tmp_path, 'r_s0') / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    os.kill(first.pid, end)
    assert first.wait(timeout=60) == (-end if end == signal.SIGKILL else 130)
    second, out, errors = launcher(tmp_path, runs, '--workers', '1')      # while the run may still go on by itself
    assert second.wait(timeout=300) == 0, errors.read_text()
    out = out.read_text()
    assert {path.name for path in (tmp_path / 'runs' / 'folder').iterdir()} == {'r_s0', 'r_s0.log', 'r_s1', 'r_s1.log'}
    assert_same_end(whole, folder_of(tmp_path, 'r_s0'))
    if end == signal.SIGKILL:
        assert 'is being trained by another process' in out or '1 had been finished before' in out     # by itself
        assert not run_folder.read(folder_of(tmp_path, 'r_s0'))['resumed']
    else:
        assert run_folder.read(folder_of(tmp_path, 'r_s0'))['resumed']
        assert 'Stopped 1 run(s); the same command resumes them.' in printed.read_text()


def test_a_run_on_two_gpus_is_two_processes(script, tmp_path, capsys):
    """On a machine without GPUs, on the CPU."""
    few = [*FEW, '--n_epochs', '1']
    runs = script(few, [*few, '--samples_per_class', '5'])
    assert Launch_Runs.main([runs, '--gpus', '0,1', '--gpus_per_run', '2']) == 1
    out = capsys.readouterr().out
    assert 'folder/r_s0: finished' in out and 'folder/r_s1: FAILED with exit code 2' in out
    assert '--gpu 0 1' in (tmp_path / 'runs' / 'folder' / 'r_s0.log').read_text()
    assert Launch_Runs.main([runs, '--only', 'r_s0', '--workers', '1']) == 0
    assert '1 had been finished before' in capsys.readouterr().out        # the GPUs are no setting of a run


def test_one_line_is_what_a_job_of_slurm_runs(quick, tmp_path, capsys):
    line = shlex.join([*quick, '--n_epochs', '0'])
    assert Launch_Runs.main(['--line', line]) == 0 and Launch_Runs.main(['--line', line]) == 0
    assert 'had been finished before' in capsys.readouterr().out
    assert Launch_Runs.main(['--line', "--loss 'x"]) == 2 and 'No closing quotation' in capsys.readouterr().err
    assert [path.name for path in (tmp_path / 'runs' / 'folder').iterdir() if path.is_dir()] == ['quick_s1']


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """planned(name): a run whose process waits for the file `end`."""
    (tmp_path / 'main.py').write_text('import pathlib, time\nend = pathlib.Path(__file__).with_name("end")\n'
                                      'while not end.exists():\n    time.sleep(0.05)\n')
    monkeypatch.setattr(process, 'MAIN', tmp_path / 'main.py')
    return lambda name: plan.Planned([], {}, tmp_path / 'runs', name)


def test_a_run_that_cannot_be_started_does_not_stop_the_others(planned, tmp_path, capsys):
    """Since its folder is damaged, or since there is no place for its log."""
    runs = [planned(name) for name in ('a', 'b', 'c')]
    helpers.recorded_run(runs[0])
    log = tmp_path / 'runs' / 'a' / 'log.csv'
    log.write_text(log.read_text()[:-1])
    runs[1].log.mkdir()
    (tmp_path / 'end').touch()
    assert local.launch(runs, [[]]) == 1
    out = capsys.readouterr().out
    assert f'runs/a: FAILED: {log}: cut off in its last line' in out and 'runs/b: FAILED: [Errno' in out
    assert 'runs/c: finished' in out and '1 finished, 0 had been finished before, 2 failed' in out


def test_an_unexpected_error_stops_the_runs(planned, monkeypatch):
    run = planned('a')

    def broken(self):
        raise RuntimeError('on purpose')

    monkeypatch.setattr(pool.Pool, 'collect', broken)
    with pytest.raises(RuntimeError, match='on purpose'):
        local.launch([run], [[]])
    assert process.exit_code(run) == process.STOPPED and not process.is_running(run)
