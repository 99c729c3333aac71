"""How far the runs of a script are, read from their run folders and logs."""
import argparse
import collections

from datasets import DATASETS
from launching import process
from records import reading
from records.columns import Column
from utilities.errors import UserError
from utilities.text_tables import aligned


def dry_run(runs):
    """Prints for each run whether it is finished, or would be started or resumed; then which data are not there."""
    for run in runs:
        try:
            folder = run.folder()
            what = f'would be resumed, {folder}' if folder else 'would be started'
            if folder and reading.is_finished(folder):
                what = 'finished'
        except UserError as error:
            what = f'damaged: {error}'
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


def show(runs):
    """Prints a table of the runs, the last lines of those that failed, and what is wrong with damaged folders."""
    counts = collections.Counter()
    cells = [['run', 'state', 'epoch', 'score']]
    failed = []
    for run in runs:
        try:
            state, epoch, score = progress(run)
        except UserError as error:
            state, epoch, score = 'damaged', None, None
            failed.append(f'{run.name} is damaged: {error}')
        counts[state] += 1
        cells.append([run.name, state, f'{"-" if epoch is None else epoch}/{run.settings["n_epochs"]}',
                      '' if score is None else f'{score:.4f}'])
        if state == 'failed':
            failed += [f'{run.name} failed, {run.log} ends with', process.last_lines(run)]
    summary = f'{len(runs)} runs: ' + ', '.join(f'{n} {state}' for state, n in counts.items())
    print('\n'.join([aligned(cells, left=(0, 1)), summary, *failed]))


def progress(run):
    """
    (state, epoch, score) of a run; epoch and score are None before the first one.

    state: finished, running, failed, stopped, or waiting.
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
    if records and records.state == reading.FINISHED:
        state = 'finished'
    elif is_running:
        state = 'running'
    elif process.exit_code(run) not in (None, 0, process.STOPPED):
        state = 'failed'
    else:
        state = 'stopped' if records else 'waiting'
    return state, rows[-1]['epoch'] if rows else None, score
