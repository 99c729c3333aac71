"""The flags of Launch_Runs.py: what is refused in a sentence, and the slots that they amount to."""
import os

import pytest

import Launch_Runs
from launching import slots
from utilities import processes


@pytest.mark.parametrize('arguments, sentence', [
    ([], 'give a script of runs'), (['nowhere.sh'], 'nowhere.sh: not a script of runs (No such file or directory)'),
    (['{script}', '--only', 'zzz'], '--only zzz: none of the 2 runs'),
    (['{script}', '--gpus', 'a'], '--gpus a: expected indices'),
    (['{script}', '--gpus', '0', '--workers', '2'], 'give one of them'),
    (['{script}', '--slurm', '--slurm_args', 'x'], '--slurm_args x: expected NAME=VALUE'),
    (['{script}', '--line', '--lr 1'], 'give a script of runs or --line, not both'),
    (['{script}', '--partition', 'x', '--memory', '2GB'], '--memory, --partition: without effect without --slurm'),
    (['{script}', '--slurm', '--workers', '2'], '--workers: without effect with --slurm'),
    (['--line', '--lr 1', '--only', 'a'], '--only: without effect with --line'),
    (['{script}', '--gpus', '0,1,2', '--gpus_per_run', '2'], 'the number of GPUs must be a multiple of 2'),
    (['{script}', '--gpus_per_run', '2'], '--gpus_per_run 2 needs --gpus with the indices of the GPUs'),
    (['{script}', '--per_gpu', '4'], '--per_gpu 4 needs --gpus with the indices of the GPUs'),
])
def test_flags_that_cannot_be(arguments, sentence, script, capsys, monkeypatch, tmp_path):
    if '--slurm' in arguments:
        submitit = pytest.importorskip('submitit')
        monkeypatch.setattr(submitit.SlurmExecutor, 'affinity', classmethod(lambda cls: 1))
        monkeypatch.chdir(tmp_path)
    runs = script([], [])
    assert Launch_Runs.main([argument.replace('{script}', runs) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize('line, expected', [
    ('', [[]]), ('--gpus 0,2 --per_gpu 2', [['--gpu', '0'], ['--gpu', '2']] * 2),
    ('--gpus 0,1,2,5 --gpus_per_run 2', [['--gpu', '0', '1'], ['--gpu', '2', '5']]),
    ('--gpus 0,1,2,5 --gpus_per_run 2 --per_gpu 2', [['--gpu', '0', '1'], ['--gpu', '2', '5']] * 2)])
def test_slots(line, expected):
    assert slots.slot_arguments(Launch_Runs.build().parse_args(line.split())) == expected


@pytest.mark.parametrize('arguments, n_threads', [
    (['--workers', '2'], 8), (['--workers', '20'], 1), (['--gpus', '5'], 16), (['--gpus', '0,1,2,3'], 4),
    (['--gpus', '0,2', '--per_gpu', '2'], 4), (['--gpus', '0,1,2,3', '--gpus_per_run', '2'], 4)])
def test_the_cores_are_divided_among_the_processes_of_all_slots(arguments, n_threads, monkeypatch):
    monkeypatch.setattr(processes, 'n_cores', lambda: 16)
    monkeypatch.setenv('OMP_NUM_THREADS', '3')
    opt = Launch_Runs.build().parse_args(arguments)
    slots.slot_arguments(opt)
    assert os.environ['OMP_NUM_THREADS'] == '3'
    monkeypatch.delenv('OMP_NUM_THREADS')
    slots.slot_arguments(opt)
    assert os.environ['OMP_NUM_THREADS'] == str(n_threads)
