"""
A CSV file with a line per run: the metrics of one epoch, the --eval_views, the hash of the test split, the command, the
commit, the versions of the packages, the device and the seconds of all epochs; optionally also a line for each other
epoch. Result_Evaluations.py --rows writes it, --runs reads it, and --compare compares two.
"""
import json
import math
from pathlib import Path

import numpy as np

from evaluation import titles
from records import columns, reading, run_folder
from records.reading import Run
from reports import differences, naming, selection, significance, tables
from reports.groups import names_of_data
from utilities import text_tables
from utilities.errors import UserError
from utilities.files import write_csv

KEYS = ('dataset', 'group', 'seed', 'epoch')
VIEWS = 'eval_views'                                                       # a column if some of the runs have views
TEST = 'test_hash'
IMAGES = 'test_images_hash'
ORIGIN = ('command', 'git_commit', 'versions', 'device', 'seconds')


def write(file, groups, rule, names=()):
    """
    Writes the row of each run of `groups` that the selection.Rule selects, with all digits.

    names: columns. If there are any, the line of a run is followed by one for each of its other epochs, which has only
    these columns, also for the averaged weights (--ema); numbers then have six digits.
    """
    lines = []
    for group in groups:
        for run in group.runs:
            key = {'dataset': group.dataset, 'group': group.name, 'seed': run.seed}
            if run.flags.get(VIEWS):
                key[VIEWS] = ' '.join(map(str, run.flags[VIEWS]))
            chosen = selection.selected_row(run, rule)
            others = [row for row in run.rows if row is not chosen] if names else []
            metrics = {name: as_text(value, 6 if names else None) for name, value in chosen.items()
                       if name == 'epoch' or is_metric(name)}
            lines.append(key | metrics | {TEST: run.test or '', IMAGES: run.test_images or ''} | origin(run))
            kept = ('epoch', *names, *(columns.EMA + name for name in names))
            lines += [key | {name: as_text(row[name], 6) for name in kept if name in row} for row in others]
    last = (TEST, IMAGES, *ORIGIN)
    metrics = dict.fromkeys(name for line in lines for name in line if name not in KEYS + last)
    write_csv(file, lines, (*KEYS, *metrics, *last))


def as_text(value, digits):
    """A number as text: with all digits, or with `digits` significant ones."""
    return repr(value) if digits is None or isinstance(value, int) else f'{value:.{digits}g}'


def is_metric(name):
    return name not in (TEST, IMAGES) and columns.parse(name.removeprefix(columns.EMA)) is not None


def origin(run):
    """The command, commit, versions and device of a run, and the seconds of its epochs; empty where not recorded."""
    if not reading.is_run_folder(Path(run.where)):
        return {name: run.flags.get(name, '') for name in ORIGIN}
    config = run_folder.read(run.where)
    versions = config.get('versions', {})
    device = versions.get('processor', '')
    asked_for = config['flags'].get('device')
    if asked_for != 'cpu' and 'cuda' in versions:
        device = 'CUDA'
    elif asked_for == 'mps' or asked_for == 'auto' and device.startswith('Apple'):          # `auto` takes its GPU
        device = f'MPS ({device})'
    seconds = [row['seconds'] for row in reading.read_rows(Path(run.where) / 'log.csv') if 'seconds' in row]
    return {'command': config.get('command', ''), 'git_commit': config.get('git_commit') or '',
            'versions': json.dumps(versions), 'device': device, 'seconds': f'{sum(seconds):.0f}'}


def read(file):
    """
    The Runs in a file that write() wrote. The lines of a run are its rows, by epoch; what ORIGIN names is among its
    flags. A group may have runs of one seed on several test sets and with other views; a line without a hash belongs to
    the run before it with these views. Raises UserError for a broken or another file, and for two lines of one epoch.
    """
    found = {}
    for number, line in enumerate(reading.read_texts(Path(file)), start=2):
        try:
            key = line['dataset'], line['group'], int(line['seed']), line.get(VIEWS, '')
            row = {'epoch': int(line['epoch'])} | {
                name: float(value) for name, value in line.items() if value and is_metric(name)}
        except (KeyError, ValueError):
            raise UserError(f'{file}, line {number}: not a line that --rows wrote; expected the columns '
                            f'{", ".join(KEYS)} and metrics') from None
        name = f'{key[1]}_s{key[2]}'
        hashes = line.get(TEST) or None, line.get(IMAGES) or None
        runs = found.setdefault(key, {})
        if runs and not hashes[0]:
            hashes = [*runs][-1]
        if hashes not in runs:
            # write() puts the selected epoch first
            flags = dict(zip(KEYS, (*key[:3], row['epoch']), strict=True)) | {VIEWS: key[3].split()}
            runs[hashes] = Run(name, f'{file}, line {number}', flags, test=hashes[0], test_images=hashes[1])
        run = runs[hashes]
        if any(row['epoch'] == other['epoch'] for other in run.rows):
            raise UserError(f'{file}, line {number}: duplicate row: epoch {row["epoch"]} of {name} on {key[0]}')
        run.rows.append(row)
        run.flags |= {name: line[name] for name in ORIGIN if line.get(name)}
    every = [run for runs in found.values() for run in runs.values()]
    for run in every:
        run.rows.sort(key=lambda row: row['epoch'])
    return every


def compare(old, new, metrics, digits=1):
    """
    The differences between two files that write() wrote, as a Markdown table: a line per data set, group and metric
    in both files. Each is a significance.difference; p-values are corrected by Holm's method, and a difference with p
    below 0.05 is bold.

    metrics: as for --metrics. A group on several test sets has lines for each. Groups on a test set that only one file
    has are named and not compared. Raises UserError where the files have no group on a test set in common, for a value
    that is not a number, and for two runs of one seed.
    """
    names = list(dict.fromkeys(map(columns.asked_for, metrics)))
    of_old, of_new = read(old), read(new)
    data, notes = names_of_data(of_old + of_new)
    before = by_group(of_old, data[:len(of_old)])
    after = by_group(of_new, data[len(of_old):])
    found = []
    for key in [key for key in before if key in after]:
        for name in names:
            values = [{run.seed: selection.value_in(run, selected(run), name) for run in runs}
                      for runs in (before[key], after[key])]
            found.append((*key, name, *values))
    if not found:
        raise UserError(f'--compare {old} {new}: they have no group on a test set in common')
    changes = [significance.difference(new, old) for *_, old, new in found]
    p_values = significance.holm([change.p for change in changes])
    cells = []
    for (dataset, group, name, one, other), change, p in zip(found, changes, p_values, strict=True):
        means = [tables.printed(float(np.mean(list(values.values()))), name, digits) for values in (one, other)]
        text = differences.difference_text(change.mean, change.interval, name, digits)
        p_text = '' if math.isnan(p) else significance.p_text(p).removeprefix('= ')
        cells.append([naming.dataset(dataset), naming.method(group), titles.metric(name), *means,
                      f'**{text}**' if p < 0.05 else text, p_text])
    beyond = sum(p < 0.05 for p in p_values)
    lines = [text_tables.markdown(['data set', 'method', 'metric', 'old', 'new', 'difference', 'p'], cells), '',
             f'{len(found)} differences, {beyond} of them larger than seeds explain (bold: p < 0.05, corrected by '
             "Holm's method). ±: half of the 95 % interval. Differences are over the seeds in both files, if these are "
             'two or more.']
    lines += [f'{note}.' for note in notes]
    for title, one, other in ('Only in the old file', before, after), ('Only in the new file', after, before):
        missing = [f'{group} on {naming.dataset(place)}' for place, group in one if (place, group) not in other]
        if missing:
            lines.append(f'{title}: {", ".join(missing)}.')
    return '\n'.join(lines)


def selected(run):
    """The row of a Run of read() that write() selected."""
    return next(row for row in run.rows if row['epoch'] == run.flags['epoch'])


def by_group(runs, data):
    """{(data set, group): [Run]}; data: the data set of each run. Raises UserError for two runs of one seed."""
    found = {}
    for run, place in zip(runs, data, strict=True):
        group = found.setdefault((place, run.group), [])
        if run.seed in [other.seed for other in group]:
            raise UserError(f'{run.where}: a second run of seed {run.seed} in {run.group}; leave one out')
        group.append(run)
    return found
