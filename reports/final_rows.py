"""
A CSV file with a line per run: the metrics of one epoch, the hash of the test split, the command, the commit and the
versions of the packages; optionally also a line for each other epoch. Result_Evaluations.py --rows writes it, --runs
reads it, and --compare compares two. Evaluate_Ensemble.py --rows writes such a file of ensembles.
"""
import json
import math
from pathlib import Path

import numpy as np

from evaluation import titles
from records import columns, reading, run_folder
from records.reading import Run
from reports import differences, naming, selection, significance, tables
from reports.groups import require_one_test_set, tell_images_apart
from utilities import text_tables
from utilities.errors import UserError
from utilities.files import read_csv, write_csv

KEYS = ('dataset', 'group', 'seed', 'epoch')
TEST = 'test_hash'
IMAGES = 'test_images_hash'
ORIGIN = ('command', 'git_commit', 'versions')


def write(file, groups, rule, names=()):
    """
    Writes the row of each run of `groups` that the selection.Rule selects, with all digits.

    names: columns. If there are any, the line of a run is followed by one for each of its other epochs, which has only
    these columns, also for the averaged weights (--ema); numbers then have six digits.
    """
    if rule.per_metric:
        raise UserError('--rows does not go with --per_metric: a line has the metrics of one epoch')
    lines = []
    for group in groups:
        for run in group.runs:
            key = {'dataset': group.dataset, 'group': group.name, 'seed': run.seed}
            chosen = selection.selected_row(run, rule)
            others = [row for row in run.rows if row is not chosen] if names else []
            lines.append(key | metric_texts(chosen, 6 if names else None) | test_hashes(run) | origin(run))
            kept = ('epoch', *names, *map(columns.ema_column, names))
            lines += [key | {name: as_text(row[name], 6) for name in kept if name in row} for row in others]
    last = (TEST, IMAGES, *ORIGIN)
    metrics = dict.fromkeys(name for line in lines for name in line if name not in KEYS + last)
    write_csv(file, [{name: line.get(name, '') for name in (*KEYS, *metrics, *last)} for line in lines])


def as_text(value, digits=None):
    """A number as text: with all digits, or with `digits` significant ones."""
    return repr(value) if digits is None or isinstance(value, int) else f'{value:.{digits}g}'


def metric_texts(row, digits=None):
    return {name: as_text(value, digits) for name, value in row.items() if name == 'epoch' or is_metric(name)}


def test_hashes(run):
    return {TEST: run.test or '', IMAGES: run.test_images or ''}


def is_metric(name):
    return name not in (TEST, IMAGES) and columns.parse(name.removeprefix(columns.EMA)) is not None


def origin(run):
    """The command, the commit and the versions of a run; empty for a run that has no records of them."""
    if not reading.is_run_folder(Path(run.where)):
        return {name: run.flags.get(name, '') for name in ORIGIN}
    config = run_folder.read(run.where)
    return {'command': config.get('command', ''), 'git_commit': config.get('git_commit') or '',
            'versions': json.dumps(config.get('versions', {}))}


def read(file):
    """
    The Runs in a file that write() wrote. The lines of a run are its rows, by epoch; command, commit and versions are
    among its flags. Raises UserError for another file, and for two lines of one epoch.
    """
    found = {}
    for number, line in enumerate(read_csv(Path(file)), start=2):
        try:
            key = line['dataset'], line['group'], int(line['seed'])
            row = {'epoch': int(line['epoch'])} | {
                name: float(value) for name, value in line.items() if value and is_metric(name)}
        except (KeyError, TypeError, ValueError):
            raise UserError(f'{file}, line {number}: not a line that --rows wrote; expected the columns '
                            f'{", ".join(KEYS)} and metrics') from None
        name = f'{key[1]}_s{key[2]}'
        run = found.setdefault(key, Run(name, f'{file}, line {number}', dict(zip(KEYS, key, strict=False))))
        if any(row['epoch'] == other['epoch'] for other in run.rows):
            raise UserError(f'{file}, line {number}: duplicate row: epoch {row["epoch"]} of {name} on {key[0]}')
        run.rows.append(row)
        run.flags |= {name: line[name] for name in ORIGIN if line.get(name)}
        run.test = run.test or line.get(TEST) or None
        run.test_images = run.test_images or line.get(IMAGES) or None
    for run in found.values():
        run.rows.sort(key=lambda row: row['epoch'])
    return list(found.values())


def write_ensembles(file, ensembles, logs):
    """
    Writes a line per folds.Ensemble: <form>_test_<metric> of its separated and concatenated networks, and the command,
    the commit and the versions of its first network.

    logs: for each ensemble the rows of its log.csv.
    """
    lines = []
    for ensemble, log in zip(ensembles, logs, strict=True):
        metrics = {f'{row["form"]}_{name}': as_text(value) for row in log if row['trained_status'] == 'trained'
                   for name, value in row.items() if columns.parse(name)}
        lines.append({'dataset': ensemble.dataset, 'group': ensemble.name, 'seed': ensemble.seed,
                      'n_folds_of': ensemble.n_folds_of} | metrics
                     | test_hashes(ensemble.members[0].run) | origin(ensemble.members[0].run))
    write_csv(Path(file), lines)


def compare(old, new, metrics, digits=1):
    """
    The differences between two files that write() wrote, as a Markdown table: a line per data set, group and metric
    in both files. Each is a significance.difference; p-values are corrected by Holm's method, and a difference with p
    below 0.05 is bold.

    metrics: as for --metrics. Groups whose test sets differ are named and not compared. Raises UserError where the
    files have no group in common.
    """
    names = list(dict.fromkeys(map(columns.asked_for, metrics)))
    runs = [read(old), read(new)]
    tell_images_apart(sum(runs, []))
    before, after = map(by_group, runs)
    found = []
    moved = []
    for key in [key for key in before if key in after]:
        if len({run.test_set for runs in (before, after) for run in runs[key] if run.test_set}) > 1:
            moved.append(f'{key[1]} on {key[0]}')
            continue
        for name in names:
            values = [{run.seed: selection.value_in(run, run.rows[-1], name) for run in runs[key]}
                      for runs in (before, after)]
            found.append((*key, name, *values))
    if not found:
        raise UserError(f'--compare {old} {new}: they have no group of a data set in common'
                        + (f' that was evaluated on the same test set: {", ".join(moved)}' if moved else ''))
    changes = [significance.difference(new, old) for *_, old, new in found]
    p_values = significance.holm([change.p for change in changes])
    cells = []
    for (dataset, group, name, one, other), change, p in zip(found, changes, p_values, strict=True):
        means = [tables.printed(float(np.mean(list(values.values()))), name, digits) for values in (one, other)]
        text = differences.difference_text(change.mean, change.interval, name, digits)
        cells.append([naming.dataset(dataset), naming.method(group), titles.metric(name), *means,
                      f'**{text}**' if p < 0.05 else text, '' if math.isnan(p) else f'{p:.3f}'])
    beyond = sum(p < 0.05 for p in p_values)
    lines = [text_tables.markdown(['data set', 'method', 'metric', 'old', 'new', 'difference', 'p'], cells), '',
             f'{len(found)} differences, {beyond} of them larger than seeds explain (bold: p < 0.05, corrected by '
             "Holm's method). ±: half of the 95 % interval. Differences are over the seeds in both files, if these are "
             'two or more.']
    if moved:
        lines.append(f'Not compared, since the test sets differ (other classes or images): '
                     f'{", ".join(moved)}.')
    for title, one, other in ('Only in the old file', before, after), ('Only in the new file', after, before):
        missing = [f'{group} on {dataset}' for dataset, group in one if (dataset, group) not in other]
        if missing:
            lines.append(f'{title}: {", ".join(missing)}.')
    return '\n'.join(lines)


def by_group(runs):
    found = {}
    for run in runs:
        found.setdefault((run.dataset, run.group), []).append(run)
    for (_, group), members in found.items():
        require_one_test_set(group, members)
    return found
