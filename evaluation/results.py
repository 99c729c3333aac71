"""From the records of runs to numbers: which runs count, grouped over seeds, and the values of each at one epoch."""
import math
from dataclasses import dataclass, field

import pandas

import evaluation
from utilities import run_folder
from utilities.columns import SPLITS
from utilities.errors import UserError
from utilities.run_records import FINISHED

RULES = {'last': 'the last epoch', 'best_val': 'the epoch of the best validation {by}',
         'best_test': 'the epoch of the best test {by}'}
# may differ between the seeds of a setting
MACHINE = run_folder.MACHINE | {'seed', 'savename', 'deterministic', 'projector', 'command'}
TITLES = {'nmi': 'NMI', 'ami': 'AMI', 'f1': 'F1', 'map_at_r': 'MAP@R', 'precision_at_1': 'P@1',
          'r_precision': 'RP', 'dists@intra': 'intra', 'dists@inter': 'inter', 'dists@intra_over_inter': 'intra/inter'}
DATASETS = {'cub200': ('CUB200-2011', 'CUB'), 'cars196': ('CARS196', 'CARS'), 'online_products': ('SOP', 'SOP'),
            'inshop': ('In-Shop', 'InShop'), 'omniglot': ('Omniglot', 'Omniglot')}        # title, prefix of groups


@dataclass
class Group:
    """
    The runs of one setting on one data set, as far as they count. method: its name without the data set's, where that
    is not another's. expected: the seeds that should be there.
    """
    name: str
    dataset: str
    runs: list
    method: str = ''
    expected: set = field(default_factory=set)

    @property
    def missing(self):
        return sorted(self.expected - {run.seed for run in self.runs})


def prefix(dataset):
    return DATASETS.get(dataset, (dataset, dataset))[1].casefold()


def without_dataset(group):
    """'CUB_Margin' on cub200 -> 'Margin', so that one method has one name on all data sets."""
    first, _, rest = group.name.partition('_')
    return rest if rest and first.casefold() in (group.dataset.casefold(), prefix(group.dataset)) else group.name


def column(metric):
    """'nmi' -> 'test_nmi'; with a split in front, as in train_nmi, as it is."""
    return metric if metric.partition('_')[0] in SPLITS else f'test_{metric}'


def parts(name):
    """'test_parent_e_recall@1' -> 'test', 'parent', 'e_recall@1'; the level 'class' is not named in columns."""
    split, _, metric = name.partition('_')
    level, _, rest = metric.partition('_')
    return (split, level, rest) if level in ('parent', 'within') else (split, 'class', metric)


def metric_of(name):
    """'test_e_recall@1' -> the Metric e_recall, or None for what is no metric of --evaluation_metrics."""
    try:
        return evaluation.parse(parts(name)[2])[1]
    except UserError:
        return None


def is_share(name):
    """Whether the column holds a share of 1, the more the better; these are printed in percent."""
    metric = metric_of(name)
    return metric is not None and metric.select


def title(name):
    """'test_e_recall@1' -> 'R@1', 'train_nmi' -> 'train NMI', 'test_parent_c_nmi' -> 'parent NMI (cosine)'."""
    split, level, metric = parts(name)
    cosine, metric = (' (cosine)', metric[2:]) if metric.startswith('c_') else ('', metric)
    base, _, argument = metric.partition('@')
    short = (f'R@{argument}' if base in ('e_recall', 'recall') else f'rho@{argument}' if base == 'rho_spectrum'
             else TITLES.get(metric, metric))
    return f'{"" if split == "test" else split + " "}{"" if level == "class" else level + " "}{short}{cosine}'


def dataset_title(dataset):
    return DATASETS.get(dataset, (dataset,))[0]


def group_runs(runs, expected=(), seeds=(), with_unfinished=False):
    """
    Args:
        runs:            Runs.
        expected:        (data set, group, seed) of the runs that should be there, in the order of the table.
        seeds:           that every group should have; by default those that any group of the data set has.
        with_unfinished: whether runs that did not finish count.

    Returns ([Group], notes): a sentence for each run and seed that does not count, or counts with a blemish. Raises
    UserError where a group mixes data sets, or has two runs of a seed.
    """
    notes, found = [], {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    groups = []
    for name, members in found.items():
        datasets = {run.dataset: run for run in members}
        if len(datasets) > 1:
            which = ' and '.join(f'{run.where} ({dataset})' for dataset, run in datasets.items())
            raise UserError(f'group {name}: it has runs of different data sets, {which}; choose with --datasets, or '
                            'leave runs out with --exclude')
        used = []
        for run in sorted(members, key=lambda run: (run.seed, run.name)):
            if run.state == FINISHED and run.rows:
                used.append(run)
            elif with_unfinished and run.rows:
                used.append(run)
                notes.append(f'{run.name}: {run.state}; counted all the same')
            else:
                notes.append(f'{run.name}: {run.state if run.state != FINISHED else "no epoch was recorded"}; left out')
        for one, other in zip(used, used[1:], strict=False):
            if one.seed == other.seed:
                raise UserError(f'group {name}: seed {one.seed} is there twice, {one.where} and {other.where}; leave '
                                'one out with --exclude')
        notes += differences(name, used)
        groups.append(Group(name, members[0].dataset, used))
    order = {}
    for dataset, name, seed in expected:
        order.setdefault((dataset, name), set()).add(seed)
    groups += [Group(name, dataset, []) for dataset, name in order if name not in found]
    for group in groups:
        same = [other for other in groups if other.dataset == group.dataset]
        methods = [without_dataset(other) for other in same]
        group.method = without_dataset(group)
        if methods.count(group.method) > 1:
            group.method = group.name
        group.expected = (order.get((group.dataset, group.name)) or set(seeds)
                          or {run.seed for other in same for run in other.runs})
        if group.missing:
            notes.append(f'{group.name} on {group.dataset}: seed(s) {", ".join(map(str, group.missing))} missing')
    if order:
        places = {name: place for place, (_, name) in enumerate(order)}
        groups.sort(key=lambda group: places.get(group.name, len(places)))
    else:
        groups.sort(key=lambda group: (group.dataset, group.name.casefold()))
    return groups, notes


def differences(name, runs):
    """A sentence for each flag in which the runs of a group differ, other than what a seed or a machine may change."""
    notes = []
    for flag in dict.fromkeys(flag for run in runs for flag in run.flags):
        values = {str(run.flags[flag]) for run in runs if flag in run.flags}
        if flag not in MACHINE and len(values) > 1:
            notes.append(f'group {name}: its runs differ in --{flag}: {", ".join(sorted(values))}')
    return notes


def value_in(run, row, name):
    """A run's value in a row, by column. Raises UserError, naming the run, where there is none."""
    if name not in row:
        known = sorted({column for row in run.rows for column in row if column.partition('_')[0] in SPLITS})
        raise UserError(f'{run.where}: it has no {name} in epoch {row["epoch"]}; its metrics: {", ".join(known)}')
    return row[name]


def best_row(run, name, rule):
    """The run's row, of the first epoch, with the highest value in a column. Raises UserError where there is none."""
    if not any(name in row for row in run.rows):
        hint = '; it was run without --use_tv_split' if rule == 'best_val' else ''
        raise UserError(f'{run.where}: --select {rule} needs {name}, which it has not{hint}')
    rows = [row for row in run.rows if math.isfinite(row.get(name, math.nan))]
    if not rows:
        raise UserError(f'{run.where}: {name} is not a number in any epoch')
    return max(rows, key=lambda row: row[name])


def selected(run, names, rule, by, per_metric):
    """
    A run's values of the columns `names` by the rule of --select: {'epoch': of the row, or None, name: value}.

    by: the metric, without split, that chooses the epoch. per_metric: each share on test has its own best epoch;
    everything else still comes from the epoch of `by`.
    """
    split = {'best_val': 'val', 'best_test': 'test'}.get(rule)
    row = best_row(run, f'{split}_{by}', rule) if split else run.rows[-1]
    values = {'epoch': None if per_metric else row['epoch']}
    for name in names:
        own = per_metric and name.startswith('test_') and is_share(name)
        source = best_row(run, f'{split}_{name.partition("_")[2]}', rule) if own else row
        values[name] = value_in(run, source, name)
    return values


def scores(groups, names, rule='last', by='e_recall@1', per_metric=False):
    """A table with a row per run that counts: dataset, group, method, seed, epoch, and the columns `names`."""
    if per_metric and rule == 'last':
        raise UserError('--per_metric goes with --select best_val or best_test')
    rows = [{'dataset': group.dataset, 'group': group.name, 'method': group.method, 'seed': run.seed}
            | selected(run, names, rule, by, per_metric) for group in groups for run in group.runs]
    return pandas.DataFrame(rows, columns=['dataset', 'group', 'method', 'seed', 'epoch', *names])


def rule_in_words(rule, by, per_metric):
    if per_metric:
        return f'each metric at its own best {"validation" if rule == "best_val" else "test"} epoch'
    return 'all metrics at ' + RULES[rule].format(by=title(f'test_{by}'))
