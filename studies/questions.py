"""
Twelve questions, registered in claims.yaml before their runs: effects with intervals, and answers. An answer needs both
the interval and p, corrected over the twelve; checks, which have no corrected p, are answered by their intervals.

A run of studies/Claims_Runs.sh has the group Claims_<data>_<half>_<method>: half A tests the second half of the
classes and trains on the first, half B the reverse. A unit is a half with a seed.
"""
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import yaml
from scipy import stats

from records.columns import Column
from records.reading import Run
from reports import final_rows, significance
from studies import class_values
from studies.estimates import ASKS, LEVEL, Estimate, answer, average, difference, mean_difference, p_against
from utilities.errors import UserError
from utilities.files import read_csv

FILE, ROWS = Path(__file__).parent / 'claims.yaml', Path(__file__).parent / 'rows'
GROUP = re.compile(r'Claims_(?P<data>[A-Za-z0-9]+)_(?P<half>[AB])_(?P<method>.+)')
MAP, RECALL, VALIDATION = 'test_map_at_r', 'test_e_recall@1', 'val_map_at_r'       # MAP@R decides, R@1 stands beside it
CONCATENATED, MEAN = 'concatenated_', 'mean over the losses'
DRAWS, N_CLASS_DRAWS = 10_000, 2_000             # bootstrap samples of estimates, and of the test classes
CHANGING = 0.5                                   # points of MAP@R over the last third of the epochs


def load(file=FILE):
    """
    Returns the questions of claims.yaml, with its keys, and the margin of correlations in their own unit: the file has
    it times 100. Raises UserError for an unknown effect or `expects`.
    """
    content = yaml.safe_load(Path(file).read_text(encoding='utf-8'))
    questions = [SimpleNamespace(**entry) for entry in content['claims']]
    for question in questions:
        for key, known in (('effect', EFFECTS), ('expects', ASKS)):
            if getattr(question, key) not in known:
                raise UserError(f'{file}, {question.name}: {key} {getattr(question, key)}: expected {", ".join(known)}')
        if question.effect == 'correlations':
            question.margin /= 100
    return questions


class Result(NamedTuple):
    """resampled: MAP@R of the last epoch on bootstrap samples of the test classes, [N_CLASS_DRAWS] or []."""
    run: Run
    resampled: np.ndarray = np.array([])


def resampled(half, classes, sizes):
    """
    Returns the mean over queries on bootstrap samples of the test classes, [N_CLASS_DRAWS]. classes, sizes: the mean of
    each class and its number of queries, [C]. All runs of a half have the same samples: their differences are paired.
    """
    counts = class_draws(half, len(sizes)) * sizes
    return counts @ classes / counts.sum(axis=1)


@functools.cache
def class_draws(half, n_classes):
    """Returns how often each bootstrap sample has each class: [N_CLASS_DRAWS, n_classes]."""
    return np.random.default_rng(ord(half)).multinomial(n_classes, np.full(n_classes, 1 / n_classes), N_CLASS_DRAWS)


def read(rows=ROWS):
    """
    Returns {(data, method): {(half, seed): Result}} of the rows of the questions' runs. The method
    <method>_concatenated has the values of the concatenated networks of folds. Raises UserError for other groups.
    """
    runs = final_rows.read(rows / 'claims.csv')
    for half in 'AB':
        for number, line in enumerate(read_csv(rows / f'claims_folds_{half}.csv'), start=2):
            row = {'epoch': 0} | {name.removeprefix(CONCATENATED): float(value) for name, value in line.items()
                                  if name.startswith(CONCATENATED) and value}
            runs.append(Run(line['group'], f'claims_folds_{half}.csv, line {number}',
                            {'group': line['group'], 'seed': int(line['seed']), 'suffix': '_concatenated'}, [row]))
    classes, found = class_values.read(rows / 'claims_classes.csv'), {}
    for run in runs:
        if not (match := GROUP.fullmatch(run.group)):
            raise UserError(f'{run.where}: the group {run.group} is not of studies/Claims_Runs.sh')
        method, known = match['data'], classes.get((run.group, run.seed))
        found.setdefault((method, match['method'] + run.flags.get('suffix', '')), {})[match['half'], run.seed] = (
            Result(run, resampled(match['half'], *known)) if known else Result(run))
    return found


class Methods:
    """The results of a question's methods. used: {method with randomness: {unit: Result}} so far."""
    def __init__(self, question, results):
        self.methods, self.results, self.used = question.methods, results, {}

    def names(self, part):
        """Returns the names of the methods of a part of the question, or of the first of each pair."""
        return [name if isinstance(name, str) else name[0] for name in self.methods[part]]

    def __call__(self, part):
        return [self.found(name) if isinstance(name, str) else tuple(map(self.found, name))
                for name in self.methods[part]]

    def is_fixed(self, name):
        """Returns whether the method has no randomness, so that one run per half is all."""
        return name in self.methods.get('fixed', ())

    def halves(self):
        """Returns the halves that all methods of `of` and `against` have."""
        return set.intersection(*({half for half, _ in self.found(name)}
                                  for part in ('of', 'against') for name in self.methods.get(part, ())))

    def found(self, name):
        results = self.results.get((self.methods['data'], name))
        if not results:
            raise UserError(f'studies/rows: no runs of {name}')
        if not self.is_fixed(name):
            self.used[name] = results
        return results


def values(results, metric, by=None):
    """
    Returns {unit: points} of {unit: Result}, at the last epoch, or at the epoch with the highest value of `by`. The
    points are an array: the value, and if the Result has them, its values on resampled test classes.
    """
    found = {}
    for unit, (run, drawn) in results.items():
        row = max((row for row in run.rows if by in row), key=lambda row: row[by]) if by else run.rows[-1]
        if metric not in row:
            raise UserError(f'{run.where}: it has no {metric}')
        found[unit] = 100 * np.append(row[metric], drawn if metric == MAP and not by else ())
    return found


def averages(of, part, metric):
    """Returns {method: Estimate of its mean} of the methods of a part, over the halves that all methods have."""
    halves = of.halves()
    return {name: average({unit: value for unit, value in values(results, metric).items() if unit[0] in halves},
                          of.is_fixed(name))
            for name, results in zip(of.names(part), of(part), strict=True)}


# The effects: of Methods and a column, {contrast: Estimate}. The answer is from the last contrast; of `each`, from all.

def each(of, metric):
    """Returns the paired difference of each of the `pairs`."""
    return {name: mean_difference([pair]) for name, pair in pairs_of_values(of, metric).items()}


def paired(of, metric):
    """Returns the paired difference of each of the `pairs`, and if there are several, their mean."""
    return with_mean(pairs_of_values(of, metric))


def pairs_of_values(of, metric):
    """Returns {variant: (its values(), those of its control)} of the pairs of a question."""
    return {name: (values(one, metric), values(other, metric))
            for name, (one, other) in zip(of.names('pairs'), of('pairs'), strict=True)}


def with_mean(pairs):
    """Returns the paired difference of each pair of values(), {name: pair}, and if there are several, their mean."""
    found = {name: mean_difference([pair]) for name, pair in pairs.items()}
    if len(pairs) > 1:
        found[MEAN] = mean_difference([*pairs.values()])
    return found


def best(of, metric):
    """Returns the difference between the best method of each side, chosen by MAP@R on validation classes."""
    chosen = []
    for part in ('of', 'against'):
        validated = averages(of, part, VALIDATION)
        name = max(validated, key=lambda name: validated[name].mean)
        chosen.append((name, averages(of, part, metric)[name]))
    (one, first), (other, second) = chosen
    return {f'{one} minus {other}': difference(first, second)}


def spread(of, metric):
    """
    Returns the standard deviation over losses of the means of the methods `of`, minus the same of the methods
    `against`. The draws add to each mean its error times Student's t. Noise of the means raises both deviations; it is
    not removed.
    """
    random = np.random.default_rng(0)
    both = [[*averages(of, part, metric).values()] for part in ('of', 'against')]
    drawn = [[one.mean + one.error * random.standard_t(max(one.freedom, 1), DRAWS) for one in side] for side in both]
    classes = [[one.over_classes for one in side] for side in both]
    are_known = all(one is not None for side in classes for one in side)

    def gap(sides):
        one, other = (np.std(side, axis=0, ddof=1) for side in sides)
        return one - other

    return {'standard deviation, default minus tuned': Estimate(
        float(gap([[one.mean for one in side] for side in both])), min(one.n for side in both for one in side),
        draws=gap(drawn), over_classes=gap(classes) if are_known else None)}


def selection(of, metric):
    """
    Returns for each method, and in the mean, the value at the best epoch on the test classes, minus the value at the
    best epoch on the validation classes.
    """
    on_validation = metric.replace('test_', 'val_')
    return with_mean({name: (values(runs, metric, metric), values(runs, metric, on_validation))
                      for name, runs in zip(of.names('of'), of('of'), strict=True)})


def told_apart(estimates):
    """Returns which pairs of Estimates differ (Welch's t-test, p < 0.05 after Holm's correction): [M, M] of 0 and 1."""
    one, other = np.triu_indices(len(estimates), 1)
    p = significance.holm([difference(estimates[i], estimates[j]).p() for i, j in zip(one, other, strict=True)])
    found = np.zeros((len(estimates), len(estimates)))
    found[one, other] = found[other, one] = np.array(p) < 1 - LEVEL
    return found


def separated(of, metric):
    """
    Returns the number of pairs of methods that MAP@R tells apart minus the number that R@1 does, in the same runs; by a
    bootstrap over the methods, whose pairs are not independent.
    """
    more, fewer = (told_apart([*averages(of, 'of', name).values()]) for name in (MAP, RECALL))
    gain, n_methods = more - fewer, len(more)
    n_pairs = n_methods * (n_methods - 1) / 2
    counts = np.random.default_rng(0).multinomial(n_methods, np.full(n_methods, 1 / n_methods), DRAWS)
    weights = (counts.sum(axis=1) ** 2 - (counts ** 2).sum(axis=1)) / 2             # pairs of different methods
    drawn = np.einsum('di,ij,dj->d', counts, gain, counts) / 2 / np.maximum(weights, 1) * n_pairs
    contrast = f'differing pairs (of {n_pairs:.0f}), MAP@R minus R@1'
    return {contrast: Estimate(float(gain.sum() / 2), n_methods, draws=drawn)}


def correlations(of, metric):
    """
    Returns, over methods, the correlations of the metric with the negated spectral decay of the training embeddings and
    with their ratio of intra- to inter-class distances, and the first minus the second; by a bootstrap over methods.
    The correlation is Spearman's for MAP@R, and Pearson's for R@1, as in Roth et al., ICML 2020.
    """
    columns = (Column('train', 'rho_spectrum@1').name, Column('train', 'dists@intra_over_inter').name, metric)
    sides = np.array([[one.mean for one in averages(of, 'of', name).values()] for name in columns]) * [[-1], [1], [1]]
    n_methods = sides.shape[1]

    def correlated(some):
        scores = sides[:, some] if metric == RECALL else stats.rankdata(sides[:, some], axis=-1)
        scores = scores - scores.mean(axis=-1, keepdims=True)
        decay, ratio, results = scores / np.linalg.norm(scores, axis=-1, keepdims=True)
        by_decay = (decay * results).sum(axis=-1)
        by_ratio = (ratio * results).sum(axis=-1)
        return by_decay, by_ratio, by_decay - by_ratio

    names = 'spectral decay', 'distance ratio', 'spectral decay minus distance ratio'
    found = correlated(np.arange(n_methods))
    drawn = correlated(np.random.default_rng(0).integers(n_methods, size=(DRAWS, n_methods)))
    return {name: Estimate(float(value), n_methods, draws=draws)
            for name, value, draws in zip(names, found, drawn, strict=True)}


EFFECTS = {function.__name__: function for function in (paired, each, best, spread, selection, separated, correlations)}


class Finding(NamedTuple):
    """
    What the runs say of a question.

    contrasts: {contrast: (Estimate in MAP@R, in R@1 or None)}. decisive: the names of those that the answer is from.
    by_interval: 'yes', 'no' or 'open' by their intervals alone. p: corrected by Holm's method over the primary
    questions, nan for the others. seeds: the numbers of seeds of the methods, over both halves. changing: the number of
    methods whose MAP@R on validation classes changes by CHANGING or more over the last third of the epochs. n_methods:
    the number of methods of which this is known.
    """
    question: SimpleNamespace
    contrasts: dict
    decisive: list
    by_interval: str
    p: float
    seeds: set
    changing: int
    n_methods: int

    @property
    def answer(self):
        """'yes', 'no' or 'open': what the intervals say, if the corrected p agrees."""
        return 'open' if self.p >= 1 - LEVEL else self.by_interval

    def single_answer(self, name):
        """
        Returns the answer of the question if it is from this contrast alone; of others, what the interval says,
        without correction; '' if nothing is asked of the contrast.
        """
        if self.decisive == [name]:
            return self.answer
        if self.question.effect == 'correlations' and name not in self.decisive:
            return ''
        return answer(self.contrasts[name][0], self.question.expects, self.question.margin)


def findings(questions, results):
    """Returns a Finding for each question. results: of read(). Raises UserError if runs are missing."""
    found = []
    for question in questions:
        methods = Methods(question, results)
        estimates = EFFECTS[question.effect](methods, MAP)
        beside = EFFECTS[question.effect](methods, RECALL) if question.effect != 'separated' else {}
        seeds = {*map(len, methods.used.values())}
        if min(seeds) < question.seeds:
            raise UserError(f'{question.name}: {min(seeds)} of {question.seeds} seeds')
        if question.effect in ('each', 'paired', 'selection'):
            seeds = {one.n for one in estimates.values()}                        # pairs have the seeds of both sides
        decisive = [*estimates] if question.effect == 'each' else [*estimates][-1:]
        word, p = joint_answer([estimates[name] for name in decisive], question)
        changes = late_changes(methods.used)
        found.append(Finding(question, {name: (one, beside.get(name)) for name, one in estimates.items()}, decisive,
                             word, p if question.primary else np.nan, seeds,
                             sum(abs(one) >= CHANGING for one in changes), len(changes)))
    corrected = significance.holm([one.p for one in found])
    return [one._replace(p=p) for one, p in zip(found, corrected, strict=True)]


def joint_answer(estimates, question):
    """
    Returns (answer by the intervals, p) of several Estimates, which all must be as asked: 'no' if one is not, 'yes' if
    all are.
    """
    words = [answer(one, question.expects, question.margin) for one in estimates]
    p_values = [p_against(one, question.expects, question.margin) for one in estimates]
    if 'no' in words:
        return 'no', min(1.0, len(words) * min(p for p, word in zip(p_values, words, strict=True) if word == 'no'))
    return 'yes' if set(words) == {'yes'} else 'open', max(p_values)


def late_changes(used):
    """Returns the change of MAP@R on validation classes over the last third of the epochs of each method, in points."""
    changes = []
    for results in used.values():
        known = [[row for row in run.rows if VALIDATION in row] for run, _ in results.values()]
        pairs = [(rows, [row for row in rows if 3 * row['epoch'] <= 2 * rows[-1]['epoch']]) for rows in known if rows]
        each_run = [100 * (rows[-1][VALIDATION] - before[-1][VALIDATION]) for rows, before in pairs if before]
        if each_run:
            changes.append(float(np.mean(each_run)))
    return changes
