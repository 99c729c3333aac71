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
    states = []
    cells = [['run', 'state', 'epoch', 'score']]
    failed = []
    for run in runs:
        state, epoch, score = progress(run)
        states.append(state)
        cells.append([run.name, state, f'{"-" if epoch is None else epoch}/{run.settings["n_epochs"]}',
                      '' if score is None else f'{score:.4f}'])
        if state == 'failed':
            failed += [f'{run.name} failed, {run.log} ends with', process.last_lines(run)]
    counts = collections.Counter(states)
    summary = f'{len(runs)} runs: ' + ', '.join(f'{n} {state}' for state, n in counts.items())
    return '\n'.join([aligned(cells, left=(0, 1)), summary, *failed]), counts['finished'] == len(runs)


def progress(run):
    """
    (state, epoch, score) of a run; epoch and score are None before the first one.

    epoch: the last recorded one, evaluated or not.
    score: the first of --storage_metrics on the test split, or on the validation split where only that is evaluated, at
           the last evaluated epoch.
    """
    folder = run.folder()
    is_running = process.is_running(run)                    # asked before the records, since it may finish meanwhile
    records = reading.read(folder) if folder else None
    rows = reading.read_rows(folder / 'log.csv') if folder else []
    evaluated = records.rows[-1] if records and records.rows else {}
    metric = run.settings['storage_metrics'][0]
    score = evaluated.get(Column('test', metric).name, evaluated.get(Column('val', metric).name))
    return run_state(run, records, is_running), rows[-1]['epoch'] if rows else None, score


def run_state(run, records, is_running):
    """finished, running, failed, stopped, or waiting. records: the Run of its folder, or None."""
    if records and records.state == reading.FINISHED:
        return 'finished'
    if is_running:
        return 'running'
    if process.exit_code(run) not in (None, 0, process.STOPPED):
        return 'failed'
    return 'stopped' if records else 'waiting'
