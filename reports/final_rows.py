"""
A CSV file with a line per run: the metrics of one epoch, the command, the commit and the versions of the packages; a
whole study takes kilobytes. Result_Evaluations.py --rows writes it, --runs reads it, and --compare compares two.
"""
import json
import math
from pathlib import Path

import numpy as np

from evaluation import titles
from reports import differences, naming, selection, significance, tables
from utilities import columns, run_folder, run_records
from utilities.errors import UserError
from utilities.files import read_csv, write_csv
from utilities.run_records import Run

KEYS = ('dataset', 'group', 'seed', 'epoch')
ORIGIN = ('command', 'git_commit', 'versions')


def write(file, groups, rule):
    """Writes the row of each run of `groups` that the selection.Rule selects."""
    if rule.per_metric:
        raise UserError('--rows does not go with --per_metric: a line has the metrics of one epoch')
    rows = [{'dataset': group.dataset, 'group': group.name, 'seed': run.seed} | metrics_of(selection.row_of(run, rule))
            | origin(run) for group in groups for run in group.runs]
    metrics = dict.fromkeys(name for row in rows for name in row if name not in KEYS + ORIGIN)
    write_csv(file, [{name: row.get(name, '') for name in (*KEYS, *metrics, *ORIGIN)} for row in rows])


def metrics_of(row):
    return {name: repr(value) for name, value in row.items() if name == 'epoch' or columns.parse(name)}


def origin(run):
    """The command, the commit and the versions of a run; empty for a run that has no run folder."""
    if not run_records.is_run_folder(Path(run.where)):
        return dict.fromkeys(ORIGIN, '')
    config = run_folder.read(run.where)
    return {'command': config.get('command', ''), 'git_commit': config.get('git_commit') or '',
            'versions': json.dumps(config.get('versions', {}))}


def read(file):
    """The Runs in a file that write() wrote, each with a single row. Raises UserError for another file."""
    runs = []
    for number, line in enumerate(read_csv(Path(file)), start=2):
        try:
            flags = {'dataset': line['dataset'], 'group': line['group'], 'seed': int(line['seed'])}
            row = {'epoch': int(line['epoch'])} | {
                name: float(value) for name, value in line.items() if value and columns.parse(name)}
        except (KeyError, TypeError, ValueError):
            raise UserError(f'{file}, line {number}: not a line that --rows wrote; expected the columns '
                            f'{", ".join(KEYS)} and metrics') from None
        runs.append(Run(f'{flags["group"]}_s{flags["seed"]}', f'{file}, line {number}', flags, [row]))
    return runs


def compare(old, new, metrics, digits=1):
    """
    The differences between two files that write() wrote, as a Markdown table: a line per data set, group and metric
    in both files. If both have the same seeds, the difference is tested by significance.paired_test, otherwise by
    Welch's t-test; p-values are corrected by Holm's method, and a difference with p below 0.05 is bold.

    metrics: as for --metrics. Raises UserError where the files have no group in common.
    """
    names = [columns.asked_for(metric) for metric in metrics]
    before, after = by_group(read(old)), by_group(read(new))
    found = []
    for key in [key for key in before if key in after]:
        for name in names:
            values = [{run.seed: selection.value_in(run, run.rows[0], name) for run in runs[key]}
                      for runs in (before, after)]
            found.append((*key, name, *values))
    if not found:
        raise UserError(f'--compare {old} {new}: they have no group of a data set in common')
    p_values = significance.holm([test(one, other) for *_, one, other in found])
    lines = ['| data set | method | metric | old | new | difference | p |', '|---|---|---|---|---|---|---|']
    for (dataset, group, name, one, other), p in zip(found, p_values, strict=True):
        means = [tables.printed(float(np.mean(list(values.values()))), name, digits) for values in (one, other)]
        change = differences.text_of(*difference(one, other), name, digits)
        cells = [naming.dataset(dataset), naming.method(group), titles.metric(name), *means,
                 f'**{change}**' if p < 0.05 else change, '' if math.isnan(p) else f'{p:.3f}']
        lines.append(f'| {" | ".join(cells)} |')
    beyond = sum(p < 0.05 for p in p_values)
    lines += ['', f'{len(found)} differences, {beyond} of them larger than seeds explain (bold: p < 0.05, corrected by '
              "Holm's method). ±: half of the 95 % interval."]
    for title, one, other in ('Only in the old file', before, after), ('Only in the new file', after, before):
        if missing := [f'{group} on {dataset}' for dataset, group in one if (dataset, group) not in other]:
            lines.append(f'{title}: {", ".join(missing)}.')
    return '\n'.join(lines)


def by_group(runs):
    found = {}
    for run in runs:
        found.setdefault((run.dataset, run.group), []).append(run)
    return found


def aligned(one, other):
    """The values of two {seed: value}, in the order of the seeds if both have the same seeds, and whether they do."""
    seeds = sorted(one)
    if seeds == sorted(other):
        return [one[seed] for seed in seeds], [other[seed] for seed in seeds], True
    return list(one.values()), list(other.values()), False


def test(old, new):
    """Two-sided p of the hypothesis that two {seed: value} have the same mean; nan if there are too few seeds."""
    one, other, are_paired = aligned(old, new)
    return significance.paired_test(other, one)[0] if are_paired else significance.welch_test(other, one)


def difference(old, new):
    """(mean(new) − mean(old), half the width of its 95 % interval) of two {seed: value}."""
    one, other, are_paired = aligned(old, new)
    if are_paired:
        return significance.t_interval(np.subtract(other, one))
    return significance.difference_interval(other, one)
