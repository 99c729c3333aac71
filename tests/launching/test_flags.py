"""The flags of Launch_Runs.py: what is refused in a sentence, and the slots that they amount to."""
import os
import shlex

import pytest

import Launch_Runs
from launching import plan, slots, slurm


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
])
def test_flags_that_cannot_be(arguments, sentence, script, capsys, monkeypatch, tmp_path):
    if '--slurm' in arguments:
        submitit = pytest.importorskip('submitit')
        monkeypatch.setattr(submitit.SlurmExecutor, 'affinity', classmethod(lambda cls: 1))
        monkeypatch.chdir(tmp_path)
    runs = script([], [])
    assert Launch_Runs.main([argument.replace('{script}', runs) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_slots():
    def of_flags(*arguments):
        return slots.slot_arguments(Launch_Runs.build().parse_args(arguments))
    assert of_flags('--gpus', '0,2', '--per_gpu', '2') == [['--gpu', '0'], ['--gpu', '2']] * 2
    assert of_flags() == [[]]


@pytest.mark.parametrize('arguments, n_threads', [
    (['--workers', '2'], 8), (['--workers', '20'], 1), (['--gpus', '5'], 16), (['--gpus', '0,1,2,3'], 4),
    (['--gpus', '0,2', '--per_gpu', '2'], 4), (['--gpus', '0,1,2,3', '--gpus_per_run', '2'], 4)])
def test_the_cores_are_divided_among_the_processes_of_all_slots(arguments, n_threads, monkeypatch):
    monkeypatch.setattr(slots, 'n_cores', lambda: 16)
    monkeypatch.setenv('OMP_NUM_THREADS', '3')
    opt = Launch_Runs.build().parse_args(arguments)
    slots.slot_arguments(opt)
    assert os.environ['OMP_NUM_THREADS'] == '3'
    monkeypatch.delenv('OMP_NUM_THREADS')
    slots.slot_arguments(opt)
    assert os.environ['OMP_NUM_THREADS'] == str(n_threads)


@pytest.mark.parametrize('arguments', [['--config=x.yaml'], ['--seed', '1', '--group', 'a b']])
def test_a_job_of_slurm_gets_the_arguments_of_its_line(arguments, tmp_path):
    job = slurm.slurm_job(plan.Planned(arguments, {}, tmp_path, 'r_s1'), n_gpus=2)
    opt = Launch_Runs.build().parse_args(job.command[2:])
    assert shlex.split(opt.line) == arguments and (opt.gpus_per_job, opt.nodes) == (2, 1)
