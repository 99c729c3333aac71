"""Confidence intervals of means, and significance tests of differences between methods."""
from typing import NamedTuple

import numpy as np
from scipy import stats

PAIRED, ONE_SAMPLE, WELCH = 'paired t-test', 'one-sample t-test', "Welch's t-test"


class Difference(NamedTuple):
    """
    Of the means of two methods. interval: half the width of its 95 % interval. p: two-sided, of equal means, by the
    test that `test` names. n: the number of runs of each method that count. interval and p are nan where there are too
    few of them.
    """
    mean: float
    interval: float
    p: float
    test: str
    n: tuple[int, int]


def difference(one, other):
    """
    The Difference mean(one) − mean(other) of two methods, {seed: value} each: paired over the seeds that both have, or
    of all runs by Welch's t-test, if they have fewer than two seeds in common.

    >>> difference({0: 1., 1: 2., 2: 3.}, {0: 0., 1: 0., 2: 0., 3: 0.})
    Difference(mean=2.0, interval=2.484..., p=0.0741..., test='paired t-test', n=(3, 3))
    """
    shared = sorted(one.keys() & other.keys())
    if len(shared) > 1 or one.keys() == other.keys():
        one, other = (np.array([values[seed] for seed in shared]) for values in (one, other))
        return Difference(*t_interval(one - other), *paired_test(one, other), (len(shared), len(shared)))
    return Difference(*welch([*one.values()], [*other.values()]), WELCH, (len(one), len(other)))


def difference_from_constant(values, constant):
    """
    The Difference mean(values) − constant, by the one-sample t-test; where nothing varies, as paired_test() says.

    >>> difference_from_constant([1., 2., 3.], 0.)
    Difference(mean=2.0, interval=2.484..., p=0.0741..., test='one-sample t-test', n=(3, 1))
    """
    p, test = paired_test(values, np.full(len(values), constant))
    return Difference(*t_interval(np.subtract(values, constant)), p, ONE_SAMPLE if test == PAIRED else test,
                      (len(values), 1))


def t_interval(values):
    """
    (mean, half the width of the 95 % interval) of independent values, by Student's t with n − 1 degrees of freedom; the
    width is nan for fewer than two values, or if one is infinite.

    >>> t_interval([1., 2., 3.])
    (2.0, 2.484...)
    """
    values = np.asarray(values, float)
    if len(values) < 2 or np.isinf(values).any():
        return float(values.mean()), np.nan
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def welch(one, other):
    """
    (mean(one) − mean(other), half the width of its interval, two-sided p of equal means) of independent values. Welch,
    The Generalization of Student's Problem when Several Different Population Variances are Involved, Biometrika 34,
    1947. Width and p are nan if one of them is a single value, or nothing varies by more than rounding.

    >>> welch([1., 2., 3.], [1., 2., 3.]), welch([1., 2., 3.], [1.5])
    ((0.0, 2.266..., 1.0), (0.5, nan, nan))
    """
    difference = float(np.mean(one) - np.mean(other))
    if min(len(one), len(other)) < 2:
        return difference, np.nan, np.nan
    rounding = 1e-12 * np.abs([*one, *other]).max()
    if max(np.ptp(one), np.ptp(other)) <= rounding:
        return difference, np.nan, np.nan
    test = stats.ttest_ind(one, other, equal_var=False)
    low, high = test.confidence_interval()
    return difference, float(high - low) / 2, float(test.pvalue)


def half_width_to_published(values, population_std, n):
    """
    Half the width of the 95 % interval of mean(values) minus a published mean, by Welch's t.

    population_std, n: of the published runs; papers divide by n. Without a deviation (nan), the published mean counts
    as known. A single value of ours is given the published deviation. nan where neither has one.
    """
    std = population_std * np.sqrt(n / (n - 1)) if n > 1 else np.nan
    if len(values) == 1:
        return float(stats.t.ppf(0.975, n - 1) * std * np.sqrt(1 + 1 / n))
    if np.isnan(std):
        return t_interval(values)[1]
    squares = np.square([stats.sem(values), std / np.sqrt(n)])             # the two standard errors, squared
    freedom = squares.sum() ** 2 / (squares ** 2 / [len(values) - 1, n - 1]).sum()
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(squares.sum()))


def paired_test(one, other):
    """
    Two-sided p of the hypothesis that pairs of scores differ by 0 in the mean, and the test: ([n], [n]) -> (p, name).

    By the paired t-test. Where all differences are the same number, up to rounding, t is not defined: p is 1 if that
    number is 0, else the sign test's, 2^(1 − n), which does not depend on the variance. With n < 2, or a score that is
    not finite, p is nan.

    >>> paired_test([.5, .6, .7], [.5, .6, .7]), paired_test([.5, .6, .7], [.4, .5, .6])
    ((1.0, 'equal scores'), (0.25, 'sign test'))
    """
    one, other = np.asarray(one, float), np.asarray(other, float)
    if len(one) < 2 or not np.isfinite([one, other]).all():
        return np.nan, 'no test'
    differences = one - other
    rounding = 1e-12 * max(abs(one).max(), abs(other).max())
    if np.ptp(differences) <= rounding:
        return (1.0, 'equal scores') if abs(differences).max() <= rounding else (2.0 ** (1 - len(one)), 'sign test')
    return float(stats.ttest_rel(one, other).pvalue), PAIRED


def p_text(p):
    """
    >>> p_text(0.0123), p_text(0.0007)
    ('= 0.012', '< 0.001')
    """
    return '< 0.001' if p < 0.001 else f'= {p:.3f}'


def holm(p_values):
    """
    The p-values of m hypotheses -> p-values corrected for multiple testing, in the same order. nan stands for a
    hypothesis that was not tested and does not count. Holm, A Simple Sequentially Rejective Multiple Test Procedure,
    Scandinavian Journal of Statistics 6, 1979.

    >>> holm([.01, .04, .03])
    [0.03, 0.06, 0.06]
    """
    p_values = np.asarray(p_values, float)
    asked = np.flatnonzero(~np.isnan(p_values))
    order = asked[np.argsort(p_values[asked], kind='stable')]
    corrected = p_values.copy()
    corrected[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)))
    return corrected.tolist()
