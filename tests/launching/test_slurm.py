"""launching/slurm.py: time limits, and a job that is pre-empted."""
import pytest

from launching import plan, slurm
from tests.helpers import folder_of, rows_of, wait_for
from utilities.errors import UserError


@pytest.mark.parametrize('text, minutes', [('12:00:00', 720), ('1-12:00:00', 2160), ('00:30', 30), ('0:10:30', 11)])
def test_times_of_slurm(text, minutes):
    assert slurm.minutes(text) == minutes
    with pytest.raises(UserError, match='--time 12h: expected HH:MM:SS'):
        slurm.minutes('12h')


def test_slurm_jobs_go_on_after_a_pre_emption(script, quick, tmp_path, monkeypatch):
    """submitit's own local executor in the place of the cluster: the same job, signals and requeueing."""
    submitit = pytest.importorskip('submitit')
    monkeypatch.setenv('PYTHONPATH', str(slurm.ROOT))
    line = [*quick, '--n_epochs', '6', '--iterations_per_epoch', '20']
    executor = submitit.LocalExecutor(folder=tmp_path / 'logs')
    executor.update_parameters(timeout_min=10, signal_delay_s=120)        # patience with a busy machine
    job = executor.submit(slurm.job_of(plan.of_line(line)))
    log = folder_of(tmp_path) / 'log.csv'
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    job._interrupt()
    job.result()
    assert len(rows_of(folder_of(tmp_path))) == 7
