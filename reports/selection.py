"""Which epoch of a run counts, and the values of its metrics there."""
import math
from typing import NamedTuple

import pandas

from evaluation import titles
from records import columns
from records.columns import Column
from utilities.errors import UserError

SPLIT_OF = {'last': None, 'best_val': 'val', 'best_test': 'test'}       # --select: the split that chooses the epoch
NAMES = {'val': 'validation', 'test': 'test'}


class Rule(NamedTuple):
    """
    select:     'last', 'best_val' or 'best_test'.
    by:         the metric that selects the epoch, as a Column of the test split.
    per_metric: whether each fraction on test comes from its own best epoch; everything else from the epoch of `by`.
    """
    select: str
    by: Column
    per_metric: bool

    @property
    def split(self):
        """The split that chooses the epoch; None for the last one."""
        return SPLIT_OF[self.select]

    @property
    def at(self):
        """The epoch in words."""
        if self.per_metric:
            return f'each metric at its own best {NAMES[self.split]} epoch'
        return f'at the epoch of the best {NAMES[self.split]} {titles.metric(self.by.name)}' if self.split else (
            'at the last epoch')

    def __str__(self):
        return self.at if self.per_metric else f'all metrics {self.at}'


def selection_rule(opt, names):
    """The Rule of --select, --select_by and --per_metric; names: the columns of --metrics. Raises UserError."""
    default = next((name for name in names if titles.can_select(name)), 'test_e_recall@1')
    by = columns.parse(columns.asked_for(opt.select_by)) if opt.select_by else columns.parse(default).on('test')
    if by is not None and by.split != 'test':
        raise UserError(f'--select_by {opt.select_by}: give it without its split, as nmi; --select names the split')
    if by is None or not titles.can_select(by.name):
        raise UserError(f'--select_by {opt.select_by}: not a metric that says which network is better; choose one such '
                        'as e_recall@1 or nmi')
    if opt.per_metric and opt.select == 'last':
        raise UserError('--per_metric goes with --select best_val or best_test')
    if opt.per_metric and opt.rows:
        raise UserError('--rows does not go with --per_metric: a line has the metrics of one epoch')
    return Rule(opt.select, by, opt.per_metric)


def scores(groups, names, rule):
    """
    A table and {column: sentences that name the runs without a value}. The table has a row per run that counts, with
    dataset (Group.test_set), group, method, seed and the columns `names`, which are nan without a value.
    """
    rows = []
    missing = {}
    for group in groups:
        for run in group.runs:
            row = {'dataset': group.test_set, 'group': group.name, 'method': group.method, 'seed': run.seed}
            for name in names:
                try:
                    row[name] = selected_value(run, name, rule)
                except UserError as problem:
                    row[name] = math.nan
                    missing.setdefault(name, []).append(str(problem))
            rows.append(row)
    return pandas.DataFrame(rows, columns=['dataset', 'group', 'method', 'seed', *names]), missing


def require_values(names, tables):
    """Raises UserError for one of the columns `names` without a value in all `tables`, pairs as scores() gives them."""
    for name in names:
        if not any(scores[name].notna().any() for scores, _ in tables):
            raise UserError(next(missing[name][0] for _, missing in tables if name in missing))


def leave_out(groups, rule):
    """Takes the runs in which a Rule selects no epoch out of the groups; returns why. Raises UserError if none stay."""
    problems = []
    for group in groups:
        kept = []
        for run in group.runs:
            try:
                selected_row(run, rule)
                kept.append(run)
            except UserError as problem:
                problems.append(str(problem))
        group.runs = kept
    if problems and not any(group.runs for group in groups):
        raise UserError(problems[0])
    return problems


def selected_value(run, name, rule):
    """A run's value in a column at the epoch that a Rule selects. Raises UserError where there is none."""
    column = columns.parse(name)
    if rule.per_metric and titles.can_select(name) and column.split == 'test':
        row = best_row(run, column.on(rule.split), rule.select)
    else:
        row = selected_row(run, rule)
    return value_in(run, row, name)


def selected_row(run, rule):
    """The run's row at the epoch that a Rule selects."""
    return best_row(run, rule.by.on(rule.split), rule.select) if rule.split else run.rows[-1]


def best_row(run, column, select):
    """The first of the run's rows with the best value in a Column. Raises UserError where there is no value."""
    name = column.name
    if not any(name in row for row in run.rows):
        hint = '; it was run without a validation split' if select == 'best_val' else ''
        raise UserError(f'{run.where}: --select {select} needs {name}, which it does not have{hint}')
    rows = [row for row in run.rows if math.isfinite(row.get(name, math.nan))]
    if not rows:
        raise UserError(f'{run.where}: {name} is not a number in any epoch')
    return max(rows, key=lambda row: titles.sign(name) * row[name])


def value_in(run, row, name):
    """A run's value in a row, by column. Raises UserError, naming the run, where there is none."""
    if name not in row:
        known = sorted({column for row in run.rows for column in row if columns.has_split(column)})
        raise UserError(f'{run.where}: it has no {name} in epoch {row["epoch"]}; its metrics: {", ".join(known)}')
    if math.isnan(row[name]):
        raise UserError(f'{run.where}: {name} is not a number in epoch {row["epoch"]}')
    return row[name]
