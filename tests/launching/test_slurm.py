"""launching/slurm.py: time limits, the command of a job, and a job that is pre-empted."""
import os
import shlex
import signal
import sys

import pytest

import Launch_Runs
from launching import plan, slurm
from tests.helpers import wait_for
from utilities.errors import UserError


@pytest.mark.parametrize('text, minutes', [
    ('12:00:00', 720), ('1-12:00:00', 2160), ('90', 90), ('30:00', 30), ('00:30', 1), ('0:10:30', 11), ('1-12', 2160),
    ('1-12:30', 2190)])
def test_times_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    with pytest.raises(UserError, match='--time 12h: expected MM, MM:SS, HH:MM:SS'):
        slurm.minutes('12h')
    with pytest.raises(UserError, match='--time 0: expected a minute or more'):
        slurm.minutes('0')


@pytest.mark.parametrize('arguments', [['--config=x.yaml'], ['--seed', '1', '--group', 'a b']])
def test_a_job_gets_the_arguments_of_its_line(arguments, tmp_path):
    job = slurm.slurm_job(plan.Planned(arguments, {}, tmp_path, 'r_s1'), 4)
    opt = Launch_Runs.build().parse_args(job.command[2:])
    assert shlex.split(opt.line) == arguments and opt.gpus_per_job == 4


def test_a_job_goes_on_after_a_pre_emption(tmp_path, monkeypatch):
    """submitit's own local executor in the place of the cluster: the same job, signals and requeueing."""
    submitit = pytest.importorskip('submitit')
    monkeypatch.setenv('PYTHONPATH', str(slurm.ROOT))
    python = tmp_path / 'python'                              # notes its process id, which submitit does not tell
    python.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    executor = submitit.LocalExecutor(folder=tmp_path / 'logs', python=str(python))
    executor.update_parameters(timeout_min=10, signal_delay_s=120)        # patience with a busy machine
    begun = tmp_path / 'begun'
    job = executor.submit(slurm.Job(['sh', '-c', f'test -e {begun} && exit; touch {begun}; exec sleep 600']))
    wait_for(begun.exists)
    os.kill(int((tmp_path / 'pid').read_text()), signal.SIGUSR2)
    job.result()
    assert f'Requeued job {job.job_id}' in job.stdout()


def test_a_job_that_fails_says_so():
    with pytest.raises(RuntimeError, match='exit code 3'):
        slurm.Job(['sh', '-c', 'exit 3'])()
