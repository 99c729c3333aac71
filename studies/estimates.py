"""
Estimates in points, with their intervals, and the answers that follow from the intervals.

A unit is one seed on one half of the classes, (half, seed). The halves differ by about ten points and are not a random
sample: means are taken over the halves, and errors come from the seeds within a half.
"""
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
ASKS = ('greater', 'at most', 'equal')


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

    @property
    def half(self):
        """Half the width of the interval."""
        return float(stats.t.ppf((1 + LEVEL) / 2, self.freedom) * self.error)

    def interval(self):
        """Returns (low, high) of the interval; nan if no half has two seeds."""
        if self.draws is not None:
            return percentiles(self.draws)
        return self.mean - self.half, self.mean + self.half

    def interval_over_classes(self):
        """Returns (low, high) over resampled test classes; None if the values of classes are not known."""
        return None if self.over_classes is None else percentiles(self.over_classes)

    def p(self, bound=0.0):
        """Returns the two-sided p of the hypothesis that the true value is `bound`."""
        if self.draws is not None:
            sides = np.count_nonzero(self.draws <= bound), np.count_nonzero(self.draws >= bound)
            return min(1.0, 2 * (min(sides) + 1) / (len(self.draws) + 1))
        if not self.error:
            return float(self.mean == bound)
        return float(2 * stats.t.sf(abs(self.mean - bound) / self.error, self.freedom))


def percentiles(draws):
    """Returns (low, high), between which the fraction LEVEL of the draws lies."""
    return tuple(np.percentile(draws, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]).tolist())


def average(points, is_fixed=False):
    """
    Returns the Estimate of the mean over halves of the mean over seeds. The variances of the halves may differ, as in
    Welch's test.

    points:   {(half, seed): array of the value, and of its values on resampled test classes, if they are known}.
    is_fixed: the method has no randomness, and so no error.
    """
    names = sorted({half for half, _ in points})
    halves = [[points[unit] for unit in sorted(points) if unit[0] == name] for name in names]
    length = min(map(len, points.values()))                             # some units may have no resampled classes
    means = np.array([np.mean([one[:length] for one in half], axis=0) for half in halves])
    mean, sizes = means.mean(axis=0), np.array([len(half) for half in halves])
    error, freedom = 0.0, np.inf
    if not is_fixed:
        squares = [np.var([one[0] for one in half], ddof=1) / len(half) if len(half) > 1 else np.nan for half in halves]
        error, freedom = np.sqrt(sum(squares)) / len(halves), combined_freedom(squares, sizes - 1)
    return Estimate(float(mean[0]), len(points), float(error), freedom, over_classes=mean[1:] if length > 1 else None)


def combined_freedom(squares, freedoms):
    """Returns the degrees of freedom of a sum of values with these squared errors, as Welch and Satterthwaite."""
    squares = np.array(squares)
    return float(squares.sum() ** 2 / (squares ** 2 / freedoms).sum()) if squares.any() else np.inf


def difference(one, other):
    """Returns the Estimate of one minus another, of units that are not paired: Welch's degrees of freedom."""
    squares, classes = np.array([one.error, other.error]) ** 2, None
    if one.over_classes is not None and other.over_classes is not None:
        classes = one.over_classes - other.over_classes
    return Estimate(one.mean - other.mean, min(one.n, other.n), float(np.sqrt(squares.sum())),
                    combined_freedom(squares, [one.freedom, other.freedom]), over_classes=classes)


def mean_difference(pairs):
    """Returns the Estimate of {unit: array} minus {unit: array} in the same units, averaged over several such pairs."""
    units = sorted(set.intersection(*({*one} & {*other} for one, other in pairs)))
    length = min(len(side[unit]) for pair in pairs for side in pair for unit in units)
    return average({unit: np.mean([one[unit][:length] - other[unit][:length] for one, other in pairs], axis=0)
                    for unit in units})


def answer(estimate, asks, margin):
    """
    Returns what the interval says of the question whether the effect is as asked: 'yes', 'no', or 'open' if the
    interval contains the margin. asks: 'greater' than the margin, 'at most' the margin, or 'equal' to 0 up to it.
    """
    low, high = estimate.interval()
    if asks == 'equal':
        is_so = -margin < low and high < margin
        is_not = low > margin or high < -margin
    elif asks == 'greater':
        is_so = low > margin
        is_not = high < margin
    else:
        is_so = high < margin
        is_not = low > margin
    if is_so:
        return 'yes'
    return 'no' if is_not else 'open'


def p_against(estimate, asks, margin):
    """Returns the two-sided p of the test against the margin, or for 'equal' against the nearer one of ± margin."""
    return max(estimate.p(margin), estimate.p(-margin)) if asks == 'equal' else estimate.p(margin)
