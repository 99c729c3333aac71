"""launching/slurm.py: time limits, and a job that is pre-empted."""
import os
import signal
import sys

import pytest

from launching import slurm
from tests.helpers import wait_for
from utilities.errors import UserError


@pytest.mark.parametrize('text, minutes', [('12:00:00', 720), ('1-12:00:00', 2160), ('00:30', 30), ('0:10:30', 11)])
def test_times_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    with pytest.raises(UserError, match='--time 12h: expected HH:MM:SS'):
        slurm.minutes('12h')


def test_slurm_jobs_go_on_after_a_pre_emption(tmp_path, monkeypatch):
    """submitit's own local executor in the place of the cluster: the same job, signals and requeueing."""
    submitit = pytest.importorskip('submitit')
    monkeypatch.setenv('PYTHONPATH', str(slurm.ROOT))
    python = tmp_path / 'python'                              # notes its process id, which submitit does not tell
    python.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    executor = submitit.LocalExecutor(folder=tmp_path / 'logs', python=str(python))
    executor.update_parameters(timeout_min=10, signal_delay_s=120)        # patience with a busy machine
    first, second = tmp_path / 'first', tmp_path / 'second'  # the first try is at work until there is a second one
    job = executor.submit(slurm.Job(['sh', '-c', f'[ -e {first} ] && touch {second}; touch {first}; '
                                                 f'while [ ! -e {second} ]; do sleep .1; done']))
    wait_for(first.exists)
    os.kill(int((tmp_path / 'pid').read_text()), signal.SIGUSR2)
    job.result()
    assert f'Requeued job {job.job_id}' in job.stdout() and second.exists()
    with pytest.raises(RuntimeError, match='exit code 3'):
        slurm.Job(['sh', '-c', 'exit 3'])()
