"""
Effects of methods, in points, with their intervals: each function takes the runs of a claim's methods (Methods of
claims.py) and a column, and returns {contrast: Estimate}.
"""
from typing import NamedTuple

import numpy as np
from scipy import stats

from records import columns
from records.columns import Column
from studies.study import centred
from utilities.errors import UserError

LEVEL, DRAWS = 0.95, 10_000
MAP, RECALL = 'test_map_at_r', 'test_e_recall@1'              # the metric of the verdicts, and the one beside it


class Estimate(NamedTuple):
    """
    An estimated difference, in points.

    mean: the estimate. draws: None, or bootstrap draws of it [DRAWS]. error, freedom: without draws, its standard error
    and the degrees of freedom of Student's t. n: number of units of the smaller side.
    """
    mean: float
    n: int
    error: float = np.nan
    freedom: float = np.nan
    draws: np.ndarray | None = None

    def interval(self, level=LEVEL):
        """(low, high) of the interval of this level; nan for fewer than two units."""
        if self.draws is not None:
            return tuple(np.percentile(self.draws, [50 * (1 - level), 50 * (1 + level)]).tolist())
        half = stats.t.ppf((1 + level) / 2, self.freedom) * self.error
        return float(self.mean - half), float(self.mean + half)

    def p(self, bound):
        """Two-sided p of the hypothesis that the difference is `bound`."""
        if self.draws is not None:
            sides = np.count_nonzero(self.draws <= bound), np.count_nonzero(self.draws >= bound)
            return min(1.0, 2 * (min(sides) + 1) / (len(self.draws) + 1))
        if not self.error:
            return float(self.mean == bound)
        return float(2 * stats.t.sf(abs(self.mean - bound) / self.error, self.freedom))


def values(runs, metric, by=None):
    """{unit: value in points} of {unit: Run}, at the last epoch, or at the epoch with the highest value of `by`."""
    rows = {unit: max((row for row in run.rows if by in row), key=lambda row: row[by]) if by else run.rows[-1]
            for unit, run in runs.items()}
    missing = [runs[unit].where for unit, row in rows.items() if metric not in row]
    if missing:
        raise UserError(f'{missing[0]}: it has no {metric}')
    return {unit: 100 * row[metric] for unit, row in rows.items()}


def mean_difference(pairs):
    """The Estimate of the mean over units of {unit: value} minus {unit: value}, each the mean over several pairs."""
    units = sorted(set.intersection(*({*one} & {*other} for one, other in pairs)))
    each = np.array([np.mean([one[unit] - other[unit] for one, other in pairs]) for unit in units])
    return Estimate(float(each.mean()), len(each), float(stats.sem(each)), len(each) - 1) if len(each) > 1 else None


def resampled(rows):
    """Bootstrap samples of the values [n] of each method, over its units: [[DRAWS, n], ...]."""
    random = np.random.default_rng(0)
    return [row[random.integers(len(row), size=(DRAWS, len(row)))] for row in rows]


def of_means(sides, statistic):
    """
    The Estimate of statistic(means of the methods of one side [..., M], means of the other), by a bootstrap over units.
    """
    sides = [[np.array([*one.values()]) for one in side] for side in sides]
    drawn = [np.stack([draw.mean(axis=1) for draw in resampled(side)], axis=-1) for side in sides]
    mean = statistic(*(np.array([row.mean() for row in side]) for side in sides))
    return Estimate(float(mean), min(len(row) for side in sides for row in side), draws=statistic(*drawn))


def paired(of, metric):
    """The mean over `pairs` of methods of the mean paired difference."""
    return {'mean': mean_difference([(values(one, metric), values(other, metric)) for one, other in of('pairs')])}


def each(of, metric):
    """The paired difference of each of the `pairs`."""
    return {name: mean_difference([(values(one, metric), values(other, metric))])
            for name, (one, other) in zip(of.names('pairs'), of('pairs'), strict=True)}


def best(of, metric):
    """The highest mean of the methods `of`, minus the highest mean of the methods `against`; units are not paired."""
    sides = [[values(runs, metric) for runs in of(side)] for side in ('of', 'against')]
    return {'best': of_means(sides, lambda one, other: one.max(axis=-1) - other.max(axis=-1))}


def spread(of, metric):
    """The standard deviation over losses of the means of the methods `of`, minus the same of the methods `against`."""
    sides = [[values(runs, metric) for runs in of(side)] for side in ('of', 'against')]
    return {'spread': of_means(sides, lambda one, other: one.std(axis=-1, ddof=1) - other.std(axis=-1, ddof=1))}


def selection(of, metric):
    """The value at the epoch that is best on the test classes, minus the value at the best epoch on validation."""
    by = [Column(split, columns.parse(metric).metric).name for split in ('test', 'val')]
    return {'mean': mean_difference([tuple(values(runs, metric, name) for name in by) for runs in of('of')])}


def told_apart(rows):
    """
    The number of pairs of methods that differ (Welch's t-test, p < 0.05 after Holm's correction). rows: the values
    [..., n] of each method.
    """
    means = np.stack([row.mean(axis=-1) for row in rows], axis=-1)
    errors = np.stack([row.var(axis=-1, ddof=1) / row.shape[-1] for row in rows], axis=-1)
    one, other = np.triu_indices(len(rows), 1)
    freedoms = np.array([row.shape[-1] - 1 for row in rows])
    both = errors[..., one] + errors[..., other]
    with np.errstate(divide='ignore', invalid='ignore'):     # of methods without variance
        freedom = both ** 2 / (errors[..., one] ** 2 / freedoms[one] + errors[..., other] ** 2 / freedoms[other])
        p = 2 * stats.t.sf(np.abs(means[..., one] - means[..., other]) / np.sqrt(both), freedom)
    ordered = np.sort(np.nan_to_num(p, nan=1.0), axis=-1) * np.arange(len(one), 0, -1)
    return (ordered < 1 - LEVEL).cumprod(axis=-1).sum(axis=-1)


def separated(of, metric):
    """The number of pairs of methods told_apart() by MAP@R minus the number by R@1, in the same runs."""
    both = [[np.array([*values(runs, name).values()]) for runs in of('of')] for name in (MAP, RECALL)]
    draws = told_apart(resampled(both[0])) - told_apart(resampled(both[1]))             # both draw the same units
    return {'pairs': Estimate(float(told_apart(both[0]) - told_apart(both[1])), min(map(len, both[0])), draws=draws)}


def correlations(of, metric):
    """
    Over methods, 100 times Spearman's correlation of the metric with minus the spectral decay of the training
    embeddings, minus the same with their ratio of intra- to inter-class distances; by a bootstrap over methods.
    """
    names = (Column('train', 'rho_spectrum@1').name, Column('train', 'dists@intra_over_inter').name, metric)
    decay, ratio, points = (np.array([np.mean([*values(runs, name).values()]) for runs in of('of')]) for name in names)

    def difference(some):
        decays, ratios, results = (centred(stats.rankdata(side[some], axis=-1)) for side in (-decay, ratio, points))
        return 100 * (correlation(decays, results) - correlation(ratios, results))

    some = np.random.default_rng(0).integers(len(points), size=(DRAWS, len(points)))
    return {'difference': Estimate(float(difference(np.arange(len(points)))), len(points), draws=difference(some))}


def correlation(one, other):
    """Pearson's correlation of centred values, over the last axis."""
    return (one * other).sum(axis=-1) / np.sqrt((one ** 2).sum(axis=-1) * (other ** 2).sum(axis=-1))


EFFECTS = {function.__name__: function for function in (paired, each, best, spread, selection, separated, correlations)}
