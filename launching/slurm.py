"""Runs as a job array on a SLURM cluster, by submitit. Imports little, since every job imports this module."""
import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from utilities import stopping
from utilities.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
LOGS = 'slurm_logs'
MAX_REQUEUES = 1000


class Job:
    """
    A command as a job of SLURM. When SLURM announces that it will end the job, submitit calls `checkpoint` and queues
    the job that it returns: the same command, which resumes its run.
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


def slurm_job(run, n_gpus):
    """The Job that trains a Planned run on n_gpus GPUs; without secrets, since submitit writes it to a file."""
    return Job([sys.executable, str(ROOT / 'Launch_Runs.py'), f'--line={shlex.join(run.arguments)}',
                f'--gpus_per_job={n_gpus}'])


def submit(opt, runs):
    """
    Submits the runs that are not finished as one job array, and prints its id. The runs' secrets are put into the
    environment of this process, which sbatch exports to the jobs. Raises UserError where SLURM refuses the array.
    """
    if importlib.util.find_spec('submitit') is None:
        raise UserError('--slurm needs submitit: pip install submitit')
    unfinished = [*filter(is_unfinished, runs)]
    print(f'{len(runs) - len(unfinished)} of {len(runs)} runs had been finished before')
    if not unfinished:
        return
    import submitit
    from submitit.core.utils import FailedJobError
    if any(run.environment != unfinished[0].environment for run in unfinished):
        raise UserError('--slurm: the lines have different keys, but the jobs of an array share one environment; leave '
                        'the keys out of the lines and set WANDB_API_KEY')
    os.environ.update(unfinished[0].environment)
    stopping.check()
    folder = Path(LOGS).resolve()
    try:
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=MAX_REQUEUES)
        executor.update_parameters(
            job_name='Launch_Runs', time=minutes(opt.time), partition=opt.partition, array_parallelism=opt.at_once,
            nodes=1, ntasks_per_node=1, cpus_per_task=opt.cpus, gpus_per_node=opt.gpus_per_job or None, mem=opt.memory,
            setup=[f'export PYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH'],
            additional_parameters=pairs(opt.slurm_args))
        with executor.batch():
            jobs = [executor.submit(slurm_job(run, opt.gpus_per_job)) for run in unfinished]
    except (FailedJobError, RuntimeError, FileNotFoundError) as error:
        raise UserError(f'SLURM refused the jobs: {" ".join(str(error).split())[-300:]}') from None
    print(f'{len(jobs)} jobs: {jobs[0].job_id.split("_")[0]}, their output: {folder}')


def is_unfinished(run):
    """Whether a run is to be trained. One whose folder is damaged is noted; its job fails with the same sentence."""
    try:
        return not run.is_finished()
    except UserError as error:
        print(f'Note: {run.name}: {error}')
        return True


def minutes(text):
    """A time limit as sbatch takes it, such as '30', '30:00', '12:00:00', '1-12' -> minutes, rounded up."""
    found = re.fullmatch(r'(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?', text)
    if not found:
        raise UserError(f'--time {text}: expected MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS')
    days, *parts = found.groups()
    if days is None and parts[-1] is None:                         # minutes, or minutes and seconds
        parts = ['0', *parts[:-1]]
    hours, minutes, seconds = (int(part or 0) for part in parts)
    total = (int(days or 0) * 24 + hours) * 60 + minutes + math.ceil(seconds / 60)
    if not total:                                                  # sbatch takes 0 for no limit
        raise UserError(f'--time {text}: expected a minute or more')
    return total


def pairs(arguments):
    """['account=lab'] -> {'account': 'lab'}"""
    for argument in arguments:
        if '=' not in argument:
            raise UserError(f'--slurm_args {argument}: expected NAME=VALUE')
    return dict(argument.split('=', 1) for argument in arguments)
