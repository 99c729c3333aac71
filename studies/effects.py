"""
Effects of methods, in points, with their intervals: each function takes the runs of a claim's methods (Methods of
claims.py) and a column, and returns {contrast: Estimate}.

A unit is one seed on one half of the classes. The halves differ by about ten points and are not a random sample: means
are taken over the halves, and errors come from the seeds within a half.
"""
from dataclasses import dataclass

import numpy as np
from scipy import stats

from records import columns
from records.columns import Column
from reports import significance
from studies.study import centred
from utilities.errors import UserError

LEVEL, DRAWS = 0.95, 10_000
MAP, RECALL = 'test_map_at_r', 'test_e_recall@1'              # the metric of the verdicts, and the one beside it
VALIDATION = 'val_map_at_r'


@dataclass
class Estimate:
    """
    An estimated value or difference, in points.

    mean: the estimate. n: number of units, or of methods. error, freedom: its standard error and the degrees of freedom
    of Student's t. draws: None, or [DRAWS], a bootstrap of the estimate, in place of the error. over_classes: None, or
    [N], a bootstrap of the estimate over the test classes.
    """
    mean: float
    n: int
    error: float = np.nan
    freedom: float = np.nan
    draws: np.ndarray | None = None
    over_classes: np.ndarray | None = None

    def interval(self, level=LEVEL):
        """(low, high) of the interval of this level; nan where no half has two seeds."""
        if self.draws is not None:
            return percentiles(self.draws, level)
        half = stats.t.ppf((1 + level) / 2, self.freedom) * self.error
        return float(self.mean - half), float(self.mean + half)

    def interval_over_classes(self, level=LEVEL):
        """(low, high) of the interval over resampled test classes; None where the values of classes are not known."""
        return None if self.over_classes is None else percentiles(self.over_classes, level)

    def p(self, bound):
        """Two-sided p of the hypothesis that the difference is `bound`."""
        if self.draws is not None:
            sides = np.count_nonzero(self.draws <= bound), np.count_nonzero(self.draws >= bound)
            return min(1.0, 2 * (min(sides) + 1) / (len(self.draws) + 1))
        if not self.error:
            return float(self.mean == bound)
        return float(2 * stats.t.sf(abs(self.mean - bound) / self.error, self.freedom))


def percentiles(draws, level):
    """(low, high), between which this fraction of the draws lies."""
    return tuple(np.percentile(draws, [50 * (1 - level), 50 * (1 + level)]).tolist())


def values(results, metric, by=None):
    """
    {unit: points} of {unit: Result}, at the last epoch, or at the epoch with the highest value of `by`. The points are
    an array: the value, and where the Result has them, its values on resampled test classes.
    """
    found = {}
    for unit, (run, resampled) in results.items():
        row = max((row for row in run.rows if by in row), key=lambda row: row[by]) if by else run.rows[-1]
        if metric not in row:
            raise UserError(f'{run.where}: it has no {metric}')
        found[unit] = 100 * np.append(row[metric], resampled if metric == MAP and not by else ())
    return found


def average(points, is_fixed=False):
    """
    The Estimate of the mean over halves of the mean over seeds, of {(half, seed): array of values()}. The variances of
    the halves may differ, as in Welch's test. is_fixed: the method has no randomness, and so no error.
    """
    names = sorted({half for half, _ in points})
    halves = [[points[unit] for unit in sorted(points) if unit[0] == name] for name in names]
    length = min(map(len, points.values()))                             # some units may have no resampled classes
    means = np.array([np.mean([one[:length] for one in half], axis=0) for half in halves])
    mean, sizes = means.mean(axis=0), np.array([len(half) for half in halves])
    error, freedom = 0.0, np.inf
    if not is_fixed:
        squares = [np.var([one[0] for one in half], ddof=1) / len(half) if len(half) > 1 else np.nan for half in halves]
        error, freedom = np.sqrt(sum(squares)) / len(halves), freedom_of(squares, sizes - 1)
    return Estimate(float(mean[0]), len(points), float(error), freedom, over_classes=mean[1:] if length > 1 else None)


def freedom_of(squares, freedoms):
    """Degrees of freedom of a sum of independent values with these squared standard errors (Welch, Satterthwaite)."""
    squares = np.array(squares)
    return float(squares.sum() ** 2 / (squares ** 2 / freedoms).sum()) if squares.any() else np.inf


def difference(one, other):
    """The Estimate of one minus another, of units that are not paired: Welch's degrees of freedom."""
    squares, classes = np.array([one.error, other.error]) ** 2, None
    if one.over_classes is not None and other.over_classes is not None:
        classes = one.over_classes - other.over_classes
    return Estimate(one.mean - other.mean, min(one.n, other.n), float(np.sqrt(squares.sum())),
                    freedom_of(squares, [one.freedom, other.freedom]), over_classes=classes)


def mean_difference(pairs):
    """The Estimate of {unit: array} minus {unit: array} in the same units, averaged over several such pairs."""
    units = sorted(set.intersection(*({*one} & {*other} for one, other in pairs)))
    length = min(len(side[unit]) for pair in pairs for side in pair for unit in units) if units else 0
    return average({unit: np.mean([one[unit][:length] - other[unit][:length] for one, other in pairs], axis=0)
                    for unit in units}) if units else None


def paired(of, metric):
    """The mean over `pairs` of methods of the mean paired difference."""
    pairs = of.claim.methods['pairs']
    name = 'mean over the losses' if len(pairs) > 1 else ' minus '.join(pairs[0])
    return {name: mean_difference([(values(one, metric), values(other, metric)) for one, other in of('pairs')])}


def each(of, metric):
    """The paired difference of each of the `pairs`."""
    return {name: mean_difference([(values(one, metric), values(other, metric))])
            for name, (one, other) in zip(of.names('pairs'), of('pairs'), strict=True)}


def averages(of, part, metric):
    """{method: Estimate of its mean} of the methods of a part, over the halves that all methods of the claim have."""
    halves = of.halves()
    return {name: average({unit: value for unit, value in values(results, metric).items() if unit[0] in halves},
                          of.is_fixed(name))
            for name, results in zip(of.names(part), of(part), strict=True)}


def best(of, metric):
    """Of each side, `of` and `against`, the method with the highest MAP@R on validation classes: their difference."""
    chosen = []
    for part in ('of', 'against'):
        validated = averages(of, part, VALIDATION)
        name = max(validated, key=lambda name: validated[name].mean)
        chosen.append((name, averages(of, part, metric)[name]))
    (one, first), (other, second) = chosen
    return {f'{one} minus {other}': difference(first, second)}


def spread(of, metric):
    """
    The standard deviation over losses of the means of the methods `of`, minus the same of the methods `against`. The
    draws add to each mean its error times Student's t. Noise of the means raises both deviations; it is not removed.
    """
    random = np.random.default_rng(0)
    both = [[*averages(of, part, metric).values()] for part in ('of', 'against')]
    drawn = [[one.mean + one.error * random.standard_t(max(one.freedom, 1), DRAWS) for one in side] for side in both]
    classes = [[one.over_classes for one in side] for side in both]
    are_known = all(one is not None for side in classes for one in side)

    def gap(sides):
        one, other = (np.std(side, axis=0, ddof=1) for side in sides)
        return one - other

    return {'standard deviation over the losses, default minus tuned': Estimate(
        float(gap([[one.mean for one in side] for side in both])), min(one.n for side in both for one in side),
        draws=gap(drawn), over_classes=gap(classes) if are_known else None)}


def selection(of, metric):
    """The value at the epoch that is best on the test classes, minus the value at the best epoch on validation."""
    by = [Column(split, columns.parse(metric).metric).name for split in ('test', 'val')]
    return {'mean over the losses': mean_difference(
        [tuple(values(runs, metric, name) for name in by) for runs in of('of')])}


def told_apart(estimates):
    """Which pairs of Estimates differ (Welch's t-test, p < 0.05 after Holm's correction): [M, M] of 0 and 1."""
    one, other = np.triu_indices(len(estimates), 1)
    p = significance.holm([difference(estimates[i], estimates[j]).p(0) for i, j in zip(one, other, strict=True)])
    found = np.zeros((len(estimates), len(estimates)))
    found[one, other] = found[other, one] = np.array(p) < 1 - LEVEL
    return found


def separated(of, metric):
    """
    The number of pairs of methods that MAP@R tells apart minus the number that R@1 does, in the same runs; by a
    bootstrap over the methods, whose pairs are not independent.
    """
    more, fewer = (told_apart([*averages(of, 'of', name).values()]) for name in (MAP, RECALL))
    gain, n_methods = more - fewer, len(more)
    n_pairs = n_methods * (n_methods - 1) / 2
    counts = np.random.default_rng(0).multinomial(n_methods, np.full(n_methods, 1 / n_methods), DRAWS)
    weights = (counts.sum(axis=1) ** 2 - (counts ** 2).sum(axis=1)) / 2             # pairs of different methods
    drawn = np.einsum('di,ij,dj->d', counts, gain, counts) / 2 / np.maximum(weights, 1) * n_pairs
    return {f'more of the {n_pairs:.0f} pairs': Estimate(float(gain.sum() / 2), n_methods, draws=drawn)}


def correlations(of, metric):
    """
    Over methods, 100 times Spearman's correlation of the metric with the negated spectral decay of the training
    embeddings, minus the same for their ratio of intra- to inter-class distances; by a bootstrap over methods.
    """
    names = (Column('train', 'rho_spectrum@1').name, Column('train', 'dists@intra_over_inter').name, metric)
    decay, ratio, points = (np.array([one.mean for one in averages(of, 'of', name).values()]) for name in names)

    def gain(some):
        decays, ratios, results = (centred(stats.rankdata(side[some], axis=-1)) for side in (-decay, ratio, points))
        return 100 * (correlation(decays, results) - correlation(ratios, results))

    some = np.random.default_rng(0).integers(len(points), size=(DRAWS, len(points)))
    return {'decay minus ratio': Estimate(float(gain(np.arange(len(points)))), len(points), draws=gain(some))}


def correlation(one, other):
    """Pearson's correlation of centred values, over the last axis."""
    return (one * other).sum(axis=-1) / np.sqrt((one ** 2).sum(axis=-1) * (other ** 2).sum(axis=-1))


EFFECTS = {function.__name__: function for function in (paired, each, best, spread, selection, separated, correlations)}
