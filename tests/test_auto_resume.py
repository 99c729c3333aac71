"""--auto_resume: one command line starts, continues and extends a run, for schedulers and restarts by torchrun."""
import functools
import os
import random
import shutil
import signal
import subprocess
import time
from unittest import mock

import pytest

import main
from records import reading, run_folder
from tests.helpers import ROOT, assert_same_end, content_of, folder_of, started, wait_for

FEW = ['--evaluation_metrics', 'e_recall@1', '--iterations_per_epoch', '2', '--auto_resume']


def test_the_same_command_continues_and_extends_a_run(quick, run, tmp_path, monkeypatch, capsys):
    arguments = [*quick, *FEW, '--xbm_size', '30', '--loss', 'contrastive', '--batch_mining', 'all']
    assert run(*arguments, '--n_epochs', '3', '--group', 'whole') == 0
    folder = folder_of(tmp_path)

    def stopped(opt, built, loader, epoch, train_epoch=main.train_epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return train_epoch(opt, built, loader, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(main, 'train_epoch', stopped)
        assert run(*arguments) == 130
    assert run(*arguments, '--kernels', '1') == 0                 # what belongs to the machine may differ
    before = content_of(folder)
    capsys.readouterr()
    assert run(*arguments) == 0 and f'{folder}: this run is finished' in capsys.readouterr().out
    assert content_of(folder) == before
    assert run(*arguments, '--n_epochs', '3') == 0
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder)
    assert [entry['at_epoch'] for entry in run_folder.read(folder)['resumed']] == [2, 3]
    with monkeypatch.context() as patch:                          # before the first of the new epochs is recorded
        patch.setattr(main, 'train_epoch', mock.Mock(side_effect=KeyboardInterrupt))
        assert run(*arguments, '--n_epochs', '4') == 130
    assert not reading.is_finished(folder) and run(*arguments, '--n_epochs', '4') == 0
    assert reading.is_finished(folder) and reading.last_epoch(folder) == 4
    assert run(*arguments, '--n_epochs', '1') == 2 and 'has trained 4 epochs already' in capsys.readouterr().err


def test_another_setting_is_another_run_and_a_run_without_checkpoint_starts_again(quick, run, tmp_path, capsys):
    arguments = [*quick, *FEW, '--n_epochs', '1']
    assert run(*arguments) == 0 and run(*arguments, '--lr', '0.1') == 0 and run(*arguments, '--seed', '2') == 0
    parent = folder_of(tmp_path).parent
    assert {path.name for path in parent.iterdir()} == {'quick_s1', 'quick_s1_1', 'quick_s2'}
    for path in folder_of(tmp_path).iterdir():
        if path.name not in ('config.yaml', 'splits.yaml'):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run(*arguments) == 0
    assert {path.name for path in parent.iterdir()} == {'quick_s1', 'quick_s1_1', 'quick_s2'}
    run(*arguments, '--group', 'again')
    assert_same_end(folder_of(tmp_path, 'again_s1'), folder_of(tmp_path))
    (folder_of(tmp_path) / 'checkpoint_last.pt').unlink()          # never replaces records by fewer
    assert run(*arguments, '--n_epochs', '2') == 2 and 'it has records up to epoch 1' in capsys.readouterr().err
    assert run(*quick, '--auto_resume', '--reproduce', folder_of(tmp_path)) == 2
    assert '--auto_resume goes with a training run' in capsys.readouterr().err


def test_a_batch_size_that_the_run_has_chosen_is_no_other_setting(quick, run, tmp_path):
    place = quick.index('--bs')
    small = quick[:place] + quick[place + 4:]
    small += ['--n_epochs', '1', *FEW]
    assert not {'--bs', '--samples_per_class'} & {*small} and run(*small) == 0 and run(*small, '--n_epochs', '2') == 0
    assert [path.name for path in folder_of(tmp_path).parent.iterdir()] == ['quick_s1']


def workers_of(torchrun):
    """The process ids of the processes that torchrun has started, those that run."""
    listed = subprocess.run(['ps', '-o', 'pid=,stat=', '--ppid', str(torchrun.pid)], capture_output=True, text=True)
    return [int(pid) for pid, state in map(str.split, listed.stdout.splitlines()) if not state.startswith('Z')]


@pytest.mark.skipif(not shutil.which('ps'), reason='ps lists the processes')
def test_torchrun_restarts_after_kills_and_ends_with_the_same_bits(quick, tmp_path):
    """One of two processes is killed at two moments; compared with an undisturbed run of two."""
    def start(group):
        flags = ['--rdzv_backend=c10d', '--rdzv_endpoint=localhost:0', '--nproc_per_node=2', '--max-restarts=2']
        return started(tmp_path / group, ROOT / 'tests' / 'torchrun.py', *flags, 'main.py', *quick, *FEW, '--n_epochs',
                       '8', '--loss', 'margin', '--data_sampler', 'd2_coreset', '--data_batchmatch_bigbs', '30',
                       '--group', group)

    generator, folder = random.Random(0), folder_of(tmp_path, 'killed_s1')
    whole, killed = start('whole'), start('killed')

    def has_reached(n_rows):
        return killed.poll() is not None or len(workers_of(killed)) == 2 and n_rows_of(folder) >= n_rows

    for n_rows, longest in ((0, 1), (2, .2)):                          # much shorter than what is left of the run
        wait_for(functools.partial(has_reached, n_rows), 600)
        time.sleep(generator.uniform(0, longest))
        chosen = generator.choice(workers_of(killed))
        os.kill(chosen, signal.SIGKILL)
        wait_for(lambda: chosen not in workers_of(killed))             # noqa: B023
    for process, group in ((killed, 'killed'), (whole, 'whole')):
        assert process.wait(timeout=1200) == 0, (tmp_path / group).read_text()
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder)
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith('killed')] == ['killed_s1']


def n_rows_of(folder):
    log = folder / 'log.csv'
    return len(log.read_text().splitlines()) - 1 if log.exists() else 0
