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
    started = started_when_free(run, ['--gpu', *map(str, range(n_gpus))] if n_gpus > 1 else [])
    if started is None:
        return 0
    try:
        while started.poll() is None:
            stopping.sleep(stopping.POLL)
    except KeyboardInterrupt:
        process.stop({started: run})
        raise
    code = started.returncode
    process.note_exit(run, code)
    if code:
        print(f'{run.name}: exit code {code}, {run.log} ends with\n{process.last_lines(run)}', file=sys.stderr)
    return code


def started_when_free(run, more):
    """process.start(...), once no other process has the run; None, with a note, where there is nothing to do here."""
    end = time.monotonic() + PATIENCE
    while True:                                     # a pre-empted job may come back before its process has ended
        try:
            started = process.start(run, more)
            if started is None:
                print(f'{run.name}: {FINISHED}')
            return started
        except process.Busy:
            if time.monotonic() > end:
                print(f'{run.name}: {ELSEWHERE}')
                return None
            stopping.sleep(stopping.POLL)
