"""How far the runs of a script are, read from their run folders and logs."""
import argparse
import collections
import sys

from datasets import DATASETS
from launching import process
from records import reading
from records.columns import Column
from utilities import stopping
from utilities.errors import UserError
from utilities.text_tables import aligned

N_TIMED = 5       # least number of epochs over which the mean duration is taken; --eval_every if that is more
REFRESH = 2                                                       # seconds between tables on a terminal


def dry_run(runs):
    """Prints for each run whether it is finished, or would be started or resumed; then which data are not there."""
    for run in runs:
        folder = run.folder()
        done = folder and reading.is_finished(folder)
        if done:
            what = 'finished'
        else:
            what = f'would be resumed, {folder}' if folder else 'would be started'
        print(f'{run.name}: {what}')
    print(f'{len(runs)} runs; all command lines are valid.')
    for problem, n in missing_data(runs).items():
        print(f'Note: {n} of them cannot find their data: {problem}')


def missing_data(runs):
    """{what is wrong with a data set, as main.py says it: number of runs}. Data to be downloaded are not missing."""
    found = {}
    problems = collections.Counter()
    for run in runs:
        flags = ('dataset', 'source_path', 'csv', 'download')
        key = (*(run.settings[flag] for flag in flags), *run.settings['csv_columns'])
        if key not in found:
            found[key] = problem_of_data(argparse.Namespace(**run.settings))
        problems[found[key]] += 1
    del problems[None]
    return problems


def problem_of_data(opt):
    """What is wrong with the data of a run, as main.py says it; None if nothing is, or if they are to be downloaded."""
    try:
        if not opt.download:
            DATASETS[opt.dataset].load(opt)
    except UserError as problem:
        return str(problem)


def show(table):
    """Prints table(), (text, whether all is done); on a terminal, again every REFRESH seconds until all is done."""
    while True:
        text, is_done = table()
        is_terminal = sys.stdout.isatty()
        print(('\033[2J\033[H' if is_terminal else '') + text, flush=True)
        if is_done or not is_terminal:
            return
        stopping.sleep(REFRESH)


def table(runs):
    """(the table as text, whether all runs are finished)"""
    rows = with_remaining_time([status_row(run) for run in runs])
    cells = [['run', 'state', 'epoch', 'score', 'left']]
    for row in rows:
        epoch = f'{"-" if row["epoch"] is None else row["epoch"]}/{row["n_epochs"]}'
        left = '' if row['state'] == 'finished' or row['seconds'] is None else clock(row['seconds'])
        score = '' if row['score'] is None else f'{row["score"]:.4f}'
        cells.append([row['run'].name, row['state'], epoch, score, left])
    lines = [aligned(cells, left=(0, 1))]
    counts = collections.Counter(row['state'] for row in rows)
    is_done = counts['finished'] == len(rows)
    total = ''
    if not is_done and all(row['seconds'] is not None for row in rows):
        at_once = max(1, counts['running'])
        total = f'; about {clock(sum(row["seconds"] for row in rows) / at_once)} left with {at_once} at once'
    lines.append(f'{len(rows)} runs: ' + ', '.join(f'{n} {state}' for state, n in counts.items()) + total)
    for row in rows:
        if row['state'] == 'failed':
            lines += [f'{row["run"].name} failed, {row["run"].log} ends with', process.last_lines(row['run'])]
    return '\n'.join(lines), is_done


def status_row(run):
    """
    The row of a run: run, state, epoch, n_epochs, score and pace.

    epoch: the last recorded one, evaluated or not.
    score: the first of --storage_metrics on the test split, or on the validation split where only that is evaluated, at
           the last evaluated epoch.
    pace:  seconds per epoch, the mean over the last max(5, --eval_every) epochs, so that it includes an evaluation;
           None before the first epoch.
    """
    folder = run.folder()
    is_running = process.is_running(run)                    # asked before the records, since it may finish meanwhile
    records = reading.read(folder) if folder else None
    rows = reading.read_rows(folder / 'log.csv') if folder else []
    evaluated = records.rows[-1] if records and records.rows else {}
    metric = run.settings['storage_metrics'][0]
    n_timed = max(N_TIMED, run.settings['eval_every'])
    times = [row['seconds'] for row in rows if row['epoch'] and 'seconds' in row][-n_timed:]
    return {'run': run, 'state': run_state(run, records, is_running), 'epoch': rows[-1]['epoch'] if rows else None,
            'n_epochs': run.settings['n_epochs'],
            'score': evaluated.get(Column('test', metric).name, evaluated.get(Column('val', metric).name)),
            'pace': sum(times) / len(times) if times else None}


def run_state(run, records, is_running):
    """finished, running, failed, stopped, or waiting. records: the Run of its folder, or None."""
    if records and records.state == reading.FINISHED:
        return 'finished'
    if is_running:
        return 'running'
    if process.exit_code(run) not in (None, 0, process.STOPPED):
        return 'failed'
    return 'stopped' if records else 'waiting'


def with_remaining_time(rows):
    """
    The rows with `seconds`, the time to the last epoch at the run's own pace, or at the mean pace of the others where
    it has none; None where no pace is known.
    """
    paces = [row['pace'] for row in rows if row['pace']]
    for row in rows:
        pace = row['pace'] or (sum(paces) / len(paces) if paces else None)
        n_left = 0 if row['state'] == 'finished' else row['n_epochs'] - max(row['epoch'] or 0, 0)
        row['seconds'] = n_left * pace if pace is not None or not n_left else None
    return rows


def clock(seconds):
    """Seconds as H:MM:SS."""
    minutes, seconds = divmod(round(seconds), 60)
    return f'{minutes // 60}:{minutes % 60:02d}:{seconds:02d}'
