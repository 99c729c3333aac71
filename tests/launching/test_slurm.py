"""launching/slurm.py: time limits, and a job that is pre-empted."""
import os
import signal
import sys

import pytest

from launching import plan, slurm
from tests.helpers import folder_of, rows_of, wait_for
from utilities.errors import UserError


@pytest.mark.parametrize('text, minutes', [('12:00:00', 720), ('1-12:00:00', 2160), ('00:30', 30), ('0:10:30', 11)])
def test_times_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    with pytest.raises(UserError, match='--time 12h: expected HH:MM:SS'):
        slurm.minutes('12h')


def test_slurm_jobs_go_on_after_a_pre_emption(quick, tmp_path, monkeypatch):
    """submitit's own local executor in the place of the cluster: the same job, signals and requeueing."""
    submitit = pytest.importorskip('submitit')
    monkeypatch.setenv('PYTHONPATH', str(slurm.ROOT))
    python = tmp_path / 'python'                              # notes its process id, which submitit does not tell
    python.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    executor = submitit.LocalExecutor(folder=tmp_path / 'logs', python=str(python))
    executor.update_parameters(timeout_min=10, signal_delay_s=120)        # patience with a busy machine
    planned = plan.planned_run([*quick, '--n_epochs', '4', '--iterations_per_epoch', '20'])
    job = executor.submit(slurm.slurm_job(planned))
    log = folder_of(tmp_path) / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    os.kill(int((tmp_path / 'pid').read_text()), signal.SIGUSR2)
    job.result()
    assert f'Requeued job {job.job_id}' in job.stdout()
    assert len(rows_of(folder_of(tmp_path))) == 5


def test_a_job_that_fails_says_so():
    with pytest.raises(RuntimeError, match='exit code 3'):
        slurm.Job(['sh', '-c', 'exit 3'])()
