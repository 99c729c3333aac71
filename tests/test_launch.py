"""The run scripts, and Launch_Runs.py on this machine: nothing runs twice, and a killed launcher loses no run."""
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import batch_mining
import Launch_Runs
from tests.helpers import assert_same_end, folder_of, rows_of
from utilities import run_folder, run_script, slurm
from utilities.errors import UserError

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in ROOT.glob('*_Runs.sh'))


@pytest.mark.parametrize('script', SCRIPTS)
def test_main_takes_every_line_of_the_run_scripts(script, capsys):
    if 'rho_distance' not in batch_mining.BATCHMINERS and script == 'Revisit_Runs.sh':
        pytest.skip('the miner rho_distance is not registered')
    assert Launch_Runs.main([str(ROOT / script), '--dry_run']) == 0
    assert 'main.py takes the flags of each' in capsys.readouterr().out


def groups_of(script):
    lines = [dict(zip(line[::2], line[1::2], strict=False)) for line in run_script.commands(ROOT / script)]
    seeds = {}
    for arguments in run_script.commands(ROOT / script):
        given = {name: arguments[place + 1] for place, name in enumerate(arguments[:-1]) if name.startswith('--')}
        seeds.setdefault(given['--group'], []).append(given['--seed'])
    assert len(lines) == sum(map(len, seeds.values()))
    return seeds


def test_the_runs_of_roth_et_al():
    seeds = groups_of('Revisit_Runs.sh')
    assert all(found == list('01234') for found in seeds.values())
    assert Counter(group.split('_')[0] for group in seeds) == {'CUB': 23, 'CARS': 23, 'SOP': 21}
    assert {group.removeprefix('CUB_') for group in seeds} - {group.removeprefix('SOP_') for group in seeds} > {
        'ProxyNCA', 'SoftTriple'}
    lines = {line[line.index('--group') + 1]: shlex.join(line) for line in run_script.commands(ROOT / SCRIPTS[-1])}
    assert '--loss_histogram_nbins 11' in lines['SOP_Histogram'] and '--n_epochs 100' in lines['SOP_Npair']
    assert '--arch resnet50_frozen ' in lines['CARS_Angular'] + ' ' and '--arch' not in lines['CARS_ArcFace']
    assert '--miner_rho_distance_cp 0.3 ' in lines['CUB_Rho_SNR'] and '_cp 0.15 ' in lines['SOP_Rho_Margin_b06']


def test_the_runs_of_direction_regularisation():
    seeds = groups_of('Direction_Runs.sh')
    methods = {'Triplet', 'DR_Triplet', 'ProxyNCA', 'DR_ProxyNCA', 'MS', 'DR_MS'}
    assert set(seeds) == {f'{data}_{method}' for data in ('CUB', 'CARS', 'InShop') for method in methods}
    lines = {line[line.index('--group') + 1]: line for line in run_script.commands(ROOT / 'Direction_Runs.sh')}
    with_term, without = ([word for word in lines[f'CUB_{name}'] if name not in word] for name in ('DR_MS', 'MS'))
    assert [pair for pair in zip(with_term, without, strict=False) if pair[0] != pair[1]][0] == ('0.28', '0')


def test_the_runs_of_the_reality_check():
    seeds = groups_of('Reality_Check_Runs.sh')
    assert len(seeds) == 224 and all(found == ['0'] for found in seeds.values())
    assert Counter(group.split('_')[0] for group in seeds) == dict.fromkeys(('CUB', 'CARS', 'SOP', 'CUB256'), 14 * 4)
    used = {file for line in run_script.commands(ROOT / 'Reality_Check_Runs.sh') for file in line if '/' in file}
    assert used == {str(file.relative_to(ROOT)) for file in (ROOT / 'configs' / 'mlrc').rglob('*.yaml')}


def test_a_run_script_runs_its_lines_and_passes_flags_on(tmp_path):
    """With a python that notes its arguments; exit code 1 lets the others run, 2 ends the script."""
    (tmp_path / 'python').write_text('#!/bin/sh\necho "$@" >> $NOTES\n'
                                     'echo "$@" | grep -q "seed 1" && exit $CODE\nexit 0\n')
    (tmp_path / 'python').chmod(0o755)
    for code, n_lines in ((0, 90), (1, 90), (2, 2)):
        notes = tmp_path / f'notes{code}'
        environment = os.environ | {'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'NOTES': str(notes), 'CODE': str(code)}
        done = subprocess.run(['bash', ROOT / 'Direction_Runs.sh', '--source_path', 'my data'], env=environment,
                              capture_output=True, cwd=tmp_path)
        lines = notes.read_text().splitlines()
        assert (done.returncode == 2) == (code == 2) and len(lines) == n_lines
        assert all(line.startswith('main.py --dataset') and line.endswith('--source_path my data') for line in lines)


@pytest.mark.parametrize('text, commands', [
    ('#!/bin/bash\n\n# a comment\npython main.py --bs 8 \\\n   --lr 1 # small\n', [['--bs', '8', '--lr', '1']]),
    ('python3 main.py --source $DATAPATH/x --loss_pml_args "{a: 1}"',
     [['--source', '/data/x', '--loss_pml_args', '{a: 1}']]),
])
def test_a_plain_file_of_commands(text, commands, tmp_path, monkeypatch):
    monkeypatch.setenv('DATAPATH', '/data')
    (tmp_path / 'runs.sh').write_text(text)
    assert run_script.commands(tmp_path / 'runs.sh') == commands


@pytest.mark.parametrize('text, sentence', [
    ('python main.py --seed 1\nfor seed in 1 2; do\n', 'line 2: expected python main.py ...'),
    ('python main.py --source $NOWHERE', r'line 1: \$NOWHERE is for a shell to read'),
    ('python main.py --seed 1 &', 'line 1: & is for a shell to read'),
    ('python main.py --group "a', 'line 1: no closing quotation'),
    ('# nothing\n', 'there is no line python main.py'),
    ('exit 3 # --list', '--list failed: exit code 3'),
])
def test_what_is_no_script_of_runs(text, sentence, tmp_path):
    (tmp_path / 'runs.sh').write_text(text)
    with pytest.raises(UserError, match=sentence):
        run_script.commands(tmp_path / 'runs.sh')


@pytest.fixture
def script(quick, tmp_path):
    """script([flags], ...): a file of quick runs named r_s0, r_s1 ..., with these flags each."""
    def write(*lines):
        commands = [shlex.join(['python', 'main.py', *quick, '--group', 'r', '--seed', str(seed), *flags])
                    for seed, flags in enumerate(lines)]
        (tmp_path / 'runs.sh').write_text('\n'.join(commands) + '\n')
        return str(tmp_path / 'runs.sh')
    return write


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


@pytest.mark.parametrize('arguments, sentence', [
    ([], 'give a script of runs'), (['nowhere.sh'], 'nowhere.sh: not a script of runs (No such file or directory)'),
    (['{script}', '--only', 'zzz'], '--only zzz: none of the 2 runs'),
    (['{script}', '--gpus', 'a'], '--gpus a: expected numbers'),
    (['{script}', '--gpus', '0', '--workers', '2'], 'give one of them'),
    (['{script}', '--slurm', '--slurm_args', 'x'], '--slurm_args x: expected NAME=VALUE'),
])
def test_flags_that_cannot_be(arguments, sentence, script, capsys, monkeypatch, tmp_path):
    if '--slurm' in arguments:
        submitit = pytest.importorskip('submitit')
        monkeypatch.setattr(submitit.SlurmExecutor, 'affinity', classmethod(lambda cls: 1))
        monkeypatch.chdir(tmp_path)
    runs = script([], [])
    assert Launch_Runs.main([argument.replace('{script}', runs) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_that_chose_its_batch_is_still_that_of_its_line(run, quick, tmp_path):
    small = quick[:quick.index('--bs')] + quick[quick.index('--lr'):]
    assert run(*small, '--n_epochs', '0', '--no_train_metrics') == 0
    flags = run_folder.read(folder_of(tmp_path))['flags']
    line = [*small, '--n_epochs', '0', '--no_train_metrics']
    assert flags['bs'] == 36 and Launch_Runs.planned(line).is_mine(flags)
    assert not Launch_Runs.planned([*line, '--bs', '12']).is_mine(flags)


def test_two_lines_must_not_share_a_run_folder(script, capsys):
    assert Launch_Runs.main([script([], ['--seed', '0', '--lr', '1']), '--dry_run']) == 2
    assert 'runs 1 and 2: both would be folder/r_s0' in capsys.readouterr().err


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
    assert 'folder/r_s0  finished        2/2' in status and 'folder/r_s2  failed' in status
    assert '3 runs: 2 finished, 1 failed' in status and 'a lower --lr' in status.lower()
    assert Launch_Runs.main([runs, '--only', 'r_s1', 'r_s0', '--workers', '1']) == 0
    assert '0 finished, 2 had been finished before, 0 failed' in capsys.readouterr().out
    assert Launch_Runs.main([runs, '--dry_run']) == 0
    assert 'folder/r_s0: finished' in capsys.readouterr().out
    assert Launch_Runs.main([script(['--lr', '0.5']), '--dry_run']) == 0        # another run, whatever its name
    assert 'folder/r_s0: would be started' in capsys.readouterr().out


def launcher(*arguments):
    """As a script starts it in the background, where Ctrl-C does not reach."""
    return subprocess.Popen([sys.executable, ROOT / 'Launch_Runs.py', *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))


def wait_for(condition, seconds=120):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError('it did not happen')


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_launcher_loses_no_run(end, script, run, quick, tmp_path):
    more = ['--n_epochs', '6', '--iterations_per_epoch', '20', '--no_train_metrics']
    runs = script(more, more)
    first = launcher(runs, '--workers', '1')
    log = folder_of(tmp_path, 'r_s0') / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    first.send_signal(end)
    first.wait(timeout=60)
    assert first.returncode == (-end if end == signal.SIGKILL else 130)
    second = launcher(runs, '--workers', '1')                 # while the run may still be going on by itself
    out, _ = second.communicate(timeout=300)
    assert second.returncode == 0, out
    assert {path.name for path in (tmp_path / 'runs' / 'folder').iterdir()} == {'r_s0', 'r_s0.log', 'r_s1', 'r_s1.log'}
    assert run(*quick, *more, '--group', 'alone', '--seed', '0') == 0
    assert_same_end(folder_of(tmp_path, 'alone_s0'), folder_of(tmp_path, 'r_s0'))
    if end == signal.SIGKILL:
        assert 'another process has it' in out and not run_folder.read(folder_of(tmp_path, 'r_s0'))['resumed']
    else:
        assert run_folder.read(folder_of(tmp_path, 'r_s0'))['resumed']


def test_one_line_is_what_a_job_of_slurm_runs(script, quick, tmp_path, capsys):
    line = shlex.join([*quick, '--n_epochs', '0'])
    assert Launch_Runs.main(['--line', line]) == 0 and Launch_Runs.main(['--line', line]) == 0
    assert 'had been finished before' in capsys.readouterr().out
    assert [path.name for path in (tmp_path / 'runs' / 'folder').iterdir() if path.is_dir()] == ['quick_s1']


def test_slots():
    def slots(*arguments):
        return Launch_Runs.slots_of(Launch_Runs.build().parse_args(arguments))
    assert slots('--gpus', '0,2', '--per_gpu', '2') == [['--gpu', '0'], ['--gpu', '2'], ['--gpu', '0'], ['--gpu', '2']]
    assert slots() == [[]]


@pytest.mark.parametrize('text, minutes', [('12:00:00', 720), ('1-12:00:00', 2160), ('00:30', 30), ('0:10:30', 11)])
def test_times_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    with pytest.raises(UserError, match='--time 12h: expected HH:MM:SS'):
        slurm.minutes('12h')


def test_slurm_jobs_go_on_after_a_pre_emption(script, quick, tmp_path, monkeypatch):
    """submitit's own local executor in the place of the cluster: the same job, signals and requeueing."""
    submitit = pytest.importorskip('submitit')
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    line = shlex.join([*quick, '--n_epochs', '6', '--iterations_per_epoch', '20'])
    executor = submitit.LocalExecutor(folder=tmp_path / 'logs')
    executor.update_parameters(timeout_min=10, signal_delay_s=120)        # patience with a busy machine
    job = executor.submit(slurm.Job([sys.executable, str(ROOT / 'Launch_Runs.py'), '--line', line]))
    log = folder_of(tmp_path) / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    job._interrupt()
    job.result()
    assert len(rows_of(folder_of(tmp_path))) == 7
