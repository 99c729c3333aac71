"""The runs of Study_Runs.sh by section, and the statistics of its methods: differences, variances, correlations."""
import json
import math
import os
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from scipy import stats

import parameters
from records import columns
from records.columns import Column
from reports import groups, selection, significance
from reports.final_rows import ORIGIN
from utilities.errors import UserError

# section of studies/Study_Runs.sh, in the order of the page: title, and a text on the methods
SECTIONS = {
    'losses': ('Losses', 'All losses, with the miners of Roth et al. or of their papers. Methods named '
               '*_rho_distance use distance-weighted mining with ρ-regularisation (Roth et al., 2020): with '
               'probability 0.35, the negative of a triplet is replaced by a positive. HAPPIER is trained with the '
               'alphabets as super-classes, all others with the characters only.'),
    'regularisers': ('Regularisers', 'Regularisers, and losses that contain another loss, compared with that loss '
                     'where the table names one. HAPPIER is trained with the alphabets as super-classes.'),
    'methods': ('Training methods', 'Training methods that are combined with a loss: an auxiliary classifier, '
                'several views of each image, distillation from the moving average of the weights, cascaded '
                'embeddings, adversarial negatives.'),
    'parts': ('Ablations', 'Each method changes one part of the network, of the optimisation or of the mining. '
              'Methods named Untrained and Frozen have no training: *_none evaluates the pooled features of the '
              'backbone; *_pca and *_lda evaluate their principal components and linear discriminants, fitted to the '
              'training classes. MS_ema is evaluated by the moving average of its weights.'),
    'miners': ('Miners', 'Each miner with the triplet and the margin loss.'),
    'samplers': ('Batch samplers', 'Each sampler with the multi-similarity loss.'),
    'photos': ('Losses on photos', 'Eight losses, with a network that has been pretrained on ImageNet.'),
}
BASELINES = {'Omniglot': 'Untrained_none', 'Grocery': 'Frozen_none', 'Lite0': 'Frozen_none'}     # without training
TITLES = {'Lite0': 'Grocery with EfficientNet-Lite0'}                      # other data have the name in the groups
# The method that a method extends, where that is not the one with the longest name with which its own name begins.
EXTENDS = {'DR_MS': 'DR_MS_gamma0', 'DR_ProxyNCA': 'DR_ProxyNCA_gamma0', 'DR_Triplet': 'DR_Triplet_gamma0',
           'DR_MS_gamma0': None, 'DR_ProxyNCA_gamma0': None, 'DR_Triplet_gamma0': None,
           'triplet_cascade': 'triplet_distance', 'triplet_DAML': 'triplet_distance', 'triplet_random_distance': None,
           'margin_random_distance': None}
EXTENDS |= {f'{loss}_rho_distance': f'{loss}_distance' for loss in ('contrastive', 'margin', 'snr', 'triplet')}
AVERAGED = ('MS_ema',)                        # methods reported by the moving average of their weights
RECALL = 'e_recall@1'
LOSSES = ('losses', 'photos')                                       # sections that compare losses
CORRELATES = ('nmi', 'rho_spectrum@1', 'dists@intra_over_inter')
SAMPLES = 10_000                                                    # samples of the bootstrap


@dataclass
class Method:
    """A group of studies/Study_Runs.sh. runs: {seed: Run}, where there are records; expected: the script's seeds."""
    group: str
    runs: dict = field(default_factory=dict)
    expected: list = field(default_factory=list)

    @property
    def data(self):
        return self.group.partition('_')[0]

    @property
    def name(self):
        return self.group.partition('_')[2]

    def column(self, metric):
        name = Column('test', metric).name
        return columns.of_average(name) if self.name in AVERAGED else name

    def has(self, metric):
        return all(self.column(metric) in run.rows[-1] for run in self.runs.values())

    def values(self, metric=RECALL):
        """{seed: value on the test classes at the last epoch}"""
        return {seed: selection.value_in(run, run.rows[-1], self.column(metric)) for seed, run in self.runs.items()}

    def mean(self, metric=RECALL):
        return float(np.mean(list(self.values(metric).values())))

    def mean_at_best(self):
        """The mean over seeds of R@1 at the epoch with the highest R@1 on the test classes."""
        name = self.column(RECALL)
        return float(np.mean([max(row[name] for row in run.rows if name in row) for run in self.runs.values()]))

    def interval(self, metric=RECALL):
        """(mean, half the width of its 95 % interval) over seeds."""
        return significance.t_interval(list(self.values(metric).values()))

    def curve(self, metric=RECALL):
        """(epochs, values [epoch, seed]) of the epochs that all seeds have."""
        name, runs = self.column(metric), self.runs.values()
        by_seed = [{row['epoch']: row[name] for row in run.rows if name in row} for run in runs]
        epochs = sorted(set.intersection(*map(set, by_seed)))
        return epochs, np.array([[values[epoch] for values in by_seed] for epoch in epochs])

    @property
    def command(self):
        """The command of the first seed, without flags of the machine, and with the data in the folder Datasets."""
        words = shlex.split(self.runs[min(self.runs)].flags.get('command', ''))
        paths = [words[index + 1] for index, word in enumerate(words[:-1]) if word in ('--source_path', '--weights')]
        caches = [words[index + 1] for index, word in enumerate(words[:-1]) if word == '--image_cache']
        root = os.path.commonpath([*paths, *caches]) if paths else ''
        kept, is_kept = [], True
        for word in words:
            if word.startswith('--'):
                flag = word.removeprefix('--')
                is_kept = flag == 'source_path' or flag not in parameters.flags_with('machine')
            if is_kept:
                kept.append(str('Datasets' / PurePath(word).relative_to(root)) if word in paths else word)
        return shlex.join(kept)


@dataclass
class Study:
    """
    methods:  {group: Method} of all runs of the script, in its order.
    sections: {section: {data: [group, ...]}}.
    notes:    sentences on runs that do not count.
    """
    methods: dict
    sections: dict
    notes: list

    def of(self, section, data):
        """The Methods of a section on a data set that have runs."""
        return [self.methods[group] for group in self.sections[section].get(data, []) if self.methods[group].runs]

    def parts(self):
        """(section, data, Methods) where there are runs."""
        return [(section, data, methods) for section, by_data in self.sections.items() for data in by_data
                if (methods := self.of(section, data))]

    def correlated(self):
        """The parts() of LOSSES that have enough methods to compare them."""
        return [(section, data, methods) for section, data, methods in self.parts()
                if section in LOSSES and len(methods) > 5]

    def found(self, data, name):
        """The Method of this name, if it has runs; else None."""
        method = self.methods.get(f'{data}_{name}')
        return method if method and method.runs else None

    def trained(self, data):
        """The Methods with runs on a data set whose networks were trained."""
        return [method for method in self.methods.values() if method.data == data and method.runs
                and max(run.rows[-1]['epoch'] for run in method.runs.values())]

    def reference(self, method):
        """The Method that this one extends; None where there is none, or where it has no runs."""
        if method.name in EXTENDS:
            return self.found(method.data, EXTENDS[method.name])
        shorter = [other for other in self.methods.values()
                   if other.data == method.data and method.name.startswith(f'{other.name}_')]
        longest = max(shorter, key=lambda other: len(other.name), default=None)
        return longest if longest and longest.runs else None

    def origins(self):
        """{command, git_commit, versions: {text: number of runs}}"""
        counts = {name: {} for name in ORIGIN}
        for method in self.methods.values():
            for run in method.runs.values():
                for name, of in counts.items():
                    text = run.flags.get(name, 'unknown')
                    of[text] = of.get(text, 0) + 1
        return counts


def gather(runs, listed):
    """
    Runs, and the arguments of main.py in each run of each section -> Study. Raises UserError where none of the runs is
    of the script.
    """
    methods, sections = {}, {}
    for section, commands in listed.items():
        for arguments in commands:
            group, seed = (arguments[arguments.index(flag) + 1] for flag in ('--group', '--seed'))
            method = methods.setdefault(group, Method(group))
            members = sections.setdefault(section, {}).setdefault(method.data, [])
            if group not in members:
                members.append(group)
            if int(seed) not in method.expected:
                method.expected.append(int(seed))
    by_group, notes = {}, []
    for run in runs:
        by_group.setdefault(run.group, []).append(run)
    for group, members in by_group.items():
        if group not in methods:
            notes.append(f'{group}: not in studies/Study_Runs.sh; its runs are left out')
            continue
        used, about = groups.those_that_count(group, members, with_unfinished=False)
        groups.require_one_test_set(group, used)
        methods[group].runs = {run.seed: run for run in used}
        notes += about
    if not any(method.runs for method in methods.values()):
        raise UserError('--study: none of the runs is in studies/Study_Runs.sh; its groups have names such as '
                        f'{next(iter(methods))}, and those given are {", ".join(by_group)}')
    return Study(methods, sections, notes)


class Difference(NamedTuple):
    """mean; half the width of its 95 % interval; two-sided p of the paired test; number of pairs."""
    mean: float
    half: float
    p: float
    n: int


def difference(one, other):
    """The Difference one − other of two {seed: value} over the seeds that both have; None where they have none."""
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    pairs = [[values[seed] for seed in seeds] for values in (one, other)]
    return Difference(*significance.t_interval(np.subtract(*pairs)), significance.paired_test(*pairs)[0], len(seeds))


def mean_over(differences):
    """{seed: mean} of several {seed: value}, over the seeds that all have."""
    seeds = sorted(set.intersection(*map(set, differences)))
    return {seed: float(np.mean([values[seed] for values in differences])) for seed in seeds}


def corrected(differences):
    """p-values of Differences, of which some may be None, corrected by Holm's method."""
    return significance.holm([math.nan if one is None else one.p for one in differences])


def intraclass(samples, level=0.95):
    """
    (ICC, low, high): the fraction of the variance that lies between groups, with its interval. samples: lists of
    values, one per group. McGraw and Wong, Forming Inferences about Some Intraclass Correlation Coefficients,
    Psychological Methods 1, 1996, case 1; for groups of different sizes with the n0 of the random-effects model.

    >>> intraclass([[1., 2.], [5., 6.], [9., 10.]])[0]
    0.9692...
    """
    sizes = np.array([len(values) for values in samples])
    n, k = sizes.sum(), len(samples)
    grand = sum(map(sum, samples)) / n
    between = sum(len(values) * (np.mean(values) - grand) ** 2 for values in samples) / (k - 1)
    within = sum(((np.asarray(values) - np.mean(values)) ** 2).sum() for values in samples) / (n - k)
    n0 = (n - (sizes ** 2).sum() / n) / (k - 1)
    f = between / within
    tails = (1 + level) / 2
    ends = f, f / stats.f.ppf(tails, k - 1, n - k), f * stats.f.ppf(tails, n - k, k - 1)
    return tuple(float((end - 1) / (end + n0 - 1)) for end in ends)


def centred(values):
    return values - values.mean(axis=-1, keepdims=True)


def signs(values):
    return np.sign(values[..., :, None] - values[..., None, :]).reshape(*values.shape[:-1], -1)


# Daniels' general coefficient, The Relation between Measures of Correlation, Biometrika 33, 1944, is each of them.
SCORES = {'Pearson': centred, 'Spearman': lambda values: centred(stats.rankdata(values, axis=-1)), 'Kendall': signs}
TESTS = {'Pearson': stats.pearsonr, 'Spearman': stats.spearmanr, 'Kendall': stats.kendalltau}


class Correlation(NamedTuple):
    """value; ends of its 95 % bootstrap interval over the points; two-sided p; number of points."""
    value: float
    low: float
    high: float
    p: float
    n: int


def correlation(x, y, kind):
    """
    The Correlation of two lists of numbers. Pairs with a value that is not finite are left out; nan for fewer than 4.

    kind: 'Pearson', 'Spearman' or 'Kendall'; the last one takes memory for all pairs of points.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 4 or not np.ptp(x) or not np.ptp(y):
        return Correlation(*[math.nan] * 4, len(x))
    chosen = np.random.default_rng(0).integers(len(x), size=(SAMPLES, len(x)))
    one, other = SCORES[kind](x[chosen]), SCORES[kind](y[chosen])
    lengths = np.sqrt((one ** 2).sum(axis=-1) * (other ** 2).sum(axis=-1))
    varied = lengths > 1e-12                                          # a sample may repeat a single point
    sampled = (one * other).sum(axis=-1)[varied] / lengths[varied]
    test = TESTS[kind](x, y)
    return Correlation(float(test.statistic), *map(float, np.percentile(sampled, [2.5, 97.5])), float(test.pvalue),
                       len(x))


def named(data):
    return TITLES.get(data, data)


def packages(versions):
    """The versions in a file of --rows, as 'python 3.11.7, torch 2.14.1'."""
    return ', '.join(f'{name} {version}' for name, version in json.loads(versions).items()) if versions else ''
