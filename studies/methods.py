"""The methods of Study_Runs.sh, without tuning: their numbers over seeds, and their commands."""
import functools
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

import parameters
from evaluation import titles
from flags import command_line
from records import columns
from records.columns import Column
from reports import final_rows, groups, selection
from studies import estimates
from studies.pages import plus_minus
from utilities.text_tables import markdown

ROWS = Path(__file__).parent / 'rows'
TITLES = {'Lite0': 'Grocery, EfficientNet-Lite0'}              # other data have the name in the groups
AVERAGED = ('MS_ema',)                        # methods reported by the moving average of their weights
RECALL, SHOWN = 'e_recall@1', ('e_recall@1', 'map_at_r', 'nmi')
FORMS = ('separated', 'concatenated')


@dataclass
class Method:
    """A group of runs: <data>_<method>. runs: {seed: Run}."""
    group: str
    runs: dict = field(default_factory=dict)

    @property
    def data(self):
        return self.group.partition('_')[0]

    @property
    def title(self):
        return TITLES.get(self.data, self.data)

    @property
    def name(self):
        return self.group.partition('_')[2]

    def column(self, metric):
        name = Column('test', metric).name
        return columns.ema_column(name) if self.name in AVERAGED else name

    def values(self, metric=RECALL):
        """Returns an array of points over seeds: a metric on the test classes at the last epoch."""
        column = self.column(metric)
        return 100 * np.array([selection.value_in(run, run.rows[-1], column) for run in self.runs.values()])

    def estimate(self, metric=RECALL):
        """Returns the Estimate of the mean over seeds."""
        return mean(self.values(metric))

    @functools.cached_property
    def command(self):
        """The command of the first seed, without flags of the machine and flags that no longer exist."""
        kept, is_kept = [], True
        for word in shlex.split(self.runs[min(self.runs)].flags.get('command', '')):
            if word.startswith('--'):
                is_kept = word.removeprefix('--').partition('=')[0] in shown_flags()
            if is_kept:
                kept.append(word)
        return shlex.join(kept)

    @functools.cached_property
    def flags(self):
        """The flags of the command, each with its values as one text, but for group and seed."""
        return [flag for flag in map(str.strip, self.command.replace(' --', '\n--').splitlines())
                if flag.startswith('--') and not flag.startswith(('--seed ', '--group '))]


def mean(values):
    """The Estimate of the mean of an array of points, by their variance alone."""
    return estimates.difference({'': dict(enumerate(values))}, [''], [])


def read(file=ROWS / 'study.csv'):
    """Returns {group: Method} of a file of --rows. Raises UserError for different test images."""
    found = {}
    for run in final_rows.read(file):
        found.setdefault(run.group, Method(run.group)).runs[run.seed] = run
    for group, method in found.items():
        groups.require_one_test_set(group, list(method.runs.values()))
    return found


@functools.cache
def shown_flags():
    """The flags of main.py without those of the machine, but with --source_path and flags that name files to read."""
    hidden = parameters.flags_of_group('machine') - parameters.flags_with('file').keys() - {'source_path'}
    return {*command_line.known_flags(parameters.build())} - hidden


def metric_title(metric):
    return titles.metric(Column('test', metric).name)


def table(methods):
    """
    Returns the tables of all Methods, one for each data set and number of seeds, the highest R@1 first. A method is
    named by its loss and by other flags that the methods of its data set do not share.
    """
    tables = []
    for title in dict.fromkeys(method.title for method in methods.values()):
        chosen = [method for method in methods.values() if method.title == title]
        shared = [flag for flag in chosen[0].flags if all(flag in method.flags for method in chosen)]
        tables.append(f'**{title}**: `python main.py {" ".join(shared)}` and the flags of the table.')
        chosen.sort(key=lambda method: -method.estimate().mean)
        for n in sorted({len(method.runs) for method in chosen}, reverse=True):
            rows = [['`' + ' '.join(flag for flag in method.flags if flag not in shared).removeprefix('--loss ') + '`',
                     *(plus_minus(method.estimate(metric), tight=True) for metric in SHOWN)]
                    for method in chosen if len(method.runs) == n]
            tables.append(markdown([f'`--loss` and other flags, n = {n}', *map(metric_title, SHOWN)], rows))
    return '\n\n'.join(tables)


def tuned_table(methods, file=ROWS / 'folds.csv'):
    """Returns the table of losses tuned on folds: the mean over their networks, and one of all of them."""
    rows = []
    for group, lines in pd.read_csv(file).groupby('group', sort=False):
        found = [methods[group].estimate(), *(mean(100 * lines[f'{form}_test_{metric}'].to_numpy())
                                              for metric in SHOWN[:2] for form in FORMS)]
        loss, = (flag.removeprefix('--loss ') for flag in methods[group].flags if flag.startswith('--loss '))
        rows.append([loss, *(plus_minus(estimate, tight=True) for estimate in found)])
    heads = [f'{form}, {metric_title(metric)}' for metric in SHOWN[:2] for form in FORMS]
    return markdown(['loss', 'not tuned, R@1', *heads], rows)


def origins(methods):
    """Returns the sentence on the number of runs and their packages."""
    runs = [run for method in methods.values() for run in method.runs.values()]
    versions = '; '.join(', '.join(f'{name} {version}' for name, version in json.loads(text).items())
                         for text in dict.fromkeys(run.flags['versions'] for run in runs))
    return f'{len(runs)} runs of {len(methods)} methods, with {versions}.'
