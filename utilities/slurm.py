"""Job arrays on a SLURM cluster, by submitit: a job that is pre-empted or out of time is queued again and goes on."""
import importlib.util
import re
import subprocess
from pathlib import Path

from utilities.errors import UserError

LOGS = 'slurm_logs'


class Job:
    """
    One command as a job. submitit calls `checkpoint` when SLURM announces the end, queues what it returns again, and
    the command finds by itself where it was.
    """

    def __init__(self, command):
        self.command = command

    def __call__(self):
        code = subprocess.call(self.command)
        if code:
            raise RuntimeError(f'exit code {code}')

    def checkpoint(self):
        from submitit.helpers import DelayedSubmission
        return DelayedSubmission(self)


def submit(opt, commands, root):
    """Submits the commands as one array. Prints the id of the array. Raises UserError where SLURM refuses it."""
    if importlib.util.find_spec('submitit') is None:
        raise UserError('--slurm needs submitit: pip install submitit')
    import submitit
    from submitit.core.utils import FailedJobError
    folder = Path(LOGS).resolve()
    try:
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=1000)
        executor.update_parameters(
            job_name='Launch_Runs', time=minutes(opt.time), partition=opt.partition, array_parallelism=opt.at_once,
            nodes=1, ntasks_per_node=1, cpus_per_task=opt.cpus, gpus_per_node=opt.gpus_per_job or None, mem=opt.memory,
            setup=[f'export PYTHONPATH={root}:$PYTHONPATH'], additional_parameters=pairs(opt.slurm_args))
        with executor.batch():
            jobs = [executor.submit(Job(command)) for command in commands]
    except (FailedJobError, RuntimeError, FileNotFoundError) as error:
        raise UserError(f'--slurm: the jobs were not taken: {" ".join(str(error).split())[-300:]}') from None
    print(f'{len(jobs)} jobs: {jobs[0].job_id.split("_")[0]}, their output: {folder}')


def minutes(text):
    """'12:00:00', as SLURM writes a time, or '1-12:00:00' -> minutes."""
    found = re.fullmatch(r'(?:(\d+)-)?(\d+):([0-5]\d)(?::([0-5]\d))?', text)
    if not found:
        raise UserError(f'--time {text}: expected HH:MM:SS, or D-HH:MM:SS')
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return max(1, (days * 24 + hours) * 60 + minutes + (seconds > 0))


def pairs(arguments):
    """['account=lab'] -> {'account': 'lab'}"""
    for argument in arguments:
        if '=' not in argument:
            raise UserError(f'--slurm_args {argument}: expected NAME=VALUE')
    return dict(argument.split('=', 1) for argument in arguments)
