"""Trains runs on this machine: the runs of a script at the same time, or a single one in the foreground."""
import shlex
import sys
import time

from tqdm import tqdm

from launching import plan, process
from launching.pool import ELSEWHERE, FINISHED, STARTED, Pool
from utilities import stopping
from utilities.errors import UserError

PATIENCE = 120                                                    # seconds to wait for another process to end


def launch(runs, slots):
    """
    Trains the runs, as many at once as there are slots. A failed run does not stop the others.

    Returns the exit code: 0, or 1 where a run failed. The runs are stopped before KeyboardInterrupt, after Ctrl-C, or
    another exception is raised.
    """
    pool = Pool(runs, slots)
    failed = []
    n_skipped = 0
    bar = tqdm(total=len(runs), unit='run', disable=None)
    try:
        while pool.has_runs():
            for run, state in pool.start():
                bar.update(state not in (STARTED, ELSEWHERE))
                if state == FINISHED:
                    n_skipped += 1
                elif isinstance(state, Exception):
                    failed.append(run)
                    bar.write(f'{run.name}: FAILED: {state}')
                else:
                    bar.write(f'{run.name}: {state}')
            for run, code in pool.collect():
                bar.update()
                if code == 0:
                    bar.write(f'{run.name}: finished')
                else:
                    failed.append(run)
                    bar.write(f'{run.name}: FAILED with exit code {code}, {run.log} ends with\n'
                              f'{process.last_lines(run)}')
            stopping.sleep(stopping.POLL if pool.has_runs() else 0)
    except BaseException:
        pool.stop()
        bar.write(f'Stopped {len(pool.running)} run(s); the same command resumes them.')
        raise
    finally:
        bar.close()
    print(f'{len(runs) - n_skipped - len(failed)} finished, {n_skipped} had been finished before, {len(failed)} failed'
          + ''.join(f'\n  failed: {run.name}, {run.log}' for run in failed))
    return int(bool(failed))


def run_line(text, n_gpus, more):
    """
    Trains one run, given by the arguments of main.py as one text, followed by `more`; returns its exit code. A job of
    SLURM calls it, with n_gpus GPUs.
    """
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise UserError(f'--line {text}: {error}') from None
    run = plan.planned_run([*arguments, *more])
    pool = Pool([run], [['--gpu', *map(str, range(n_gpus))] if n_gpus > 1 else []])
    end = time.monotonic() + PATIENCE
    code = 0
    try:
        while pool.has_runs():
            for _, state in pool.start():
                if isinstance(state, Exception):
                    raise state
                if state != STARTED:
                    print(f'{run.name}: {state}')
            if pool.elsewhere and time.monotonic() > end:    # a job started again may meet its old process
                break
            stopping.sleep(stopping.POLL)
            for _, code in pool.collect():
                if code:
                    print(f'{run.name}: exit code {code}, {run.log} ends with\n{process.last_lines(run)}',
                          file=sys.stderr)
    finally:
        pool.stop()
    return code
