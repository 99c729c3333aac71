"""
Effects in points with their intervals, and the one rule for answers.

Points of a setting differ from seed to seed. A part of that is common to all settings, since a seed fixes initial
weights and batches. So points[setting][seed] is the sum of the setting's mean, a random effect of the seed, and a
residual. Both variances are taken to be the same in all settings of a table and are estimated from all of them.
Settings named as `fixed` have no randomness: their points are their means.
"""
from typing import NamedTuple

import numpy as np
import pandas
from scipy import optimize, stats

LEVEL = 0.95
LEAST_FREEDOM = 2                                             # degrees of freedom that an interval needs


class Estimate(NamedTuple):
    """An estimate and the ends of its interval, which are nan with fewer than LEAST_FREEDOM degrees of freedom."""
    mean: float
    low: float
    high: float

    @property
    def half(self):
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def answer(estimate, bound, reference=0):
    """What the interval says of an effect: 'within' ± bound; else 'more' or 'less' than `reference`; else 'open'."""
    if -bound <= estimate.low and estimate.high <= bound:
        return 'within'
    if estimate.low > reference:
        return 'more'
    return 'less' if estimate.high < reference else 'open'


def simultaneous(n):
    """The level of each of n intervals that hold all at once with probability LEVEL (Bonferroni)."""
    return 1 - (1 - LEVEL) / n


class Variances(NamedTuple):
    """
    Unbiased estimates of variances, each with its degrees of freedom; nan and 0 where they are unknown.

    residual, freedom:          of the residual.
    of_means, freedom_of_seeds: of a seed's mean over the settings.
    n_settings:                 the (average) number of settings per seed.
    """
    residual: float
    freedom: int
    of_means: float
    freedom_of_seeds: int
    n_settings: float

    @property
    def seeds(self):
        """The variance of the effect of the seed; its estimate may be negative."""
        return self.of_means - self.residual / self.n_settings


UNKNOWN = Variances(np.nan, 0, np.nan, 0, np.nan)


def residuals(points, fixed=()):
    """Fits settings and seeds to points not `fixed`: ({setting: residuals [n]}, the residuals' degrees of freedom)."""
    cells = [(setting, seed) for setting in points if setting not in fixed for seed in points[setting]]
    design = pandas.get_dummies(pandas.DataFrame(cells), columns=[0, 1], dtype=float).to_numpy()
    values = np.array([points[setting][seed] for setting, seed in cells])
    found = {}
    for (setting, _), residual in zip(cells, values - design @ np.linalg.lstsq(design, values)[0], strict=True):
        found.setdefault(setting, []).append(residual)
    return found, len(cells) - np.linalg.matrix_rank(design)


def variances(points, fixed=()):
    """
    The Variances of {setting: {seed: points}}, by Henderson's method 3; in a single setting, all is residual. UNKNOWN
    where several settings have too few seeds in common to tell the two variances apart.
    """
    random = [np.array([*of_seeds.values()]) for setting, of_seeds in points.items() if setting not in fixed]
    freedom_within = sum(len(values) - 1 for values in random)
    if not freedom_within:
        return UNKNOWN
    within = sum(((values - values.mean()) ** 2).sum() for values in random)
    if len(random) == 1:
        return Variances(within / freedom_within, freedom_within, np.nan, 0, np.inf)
    of_settings, freedom = residuals(points, fixed)
    if not freedom:
        return UNKNOWN
    squares = sum(np.square(of_setting).sum() for of_setting in of_settings.values())
    freedom_of_seeds = freedom_within - freedom
    n_settings = freedom_within / freedom_of_seeds
    return Variances(squares / freedom, freedom, (within - squares) / freedom_within, freedom_of_seeds, n_settings)


def equal_variances(points, fixed=()):
    """p of Bartlett's test of equal residual variances of the settings; nan unless two settings have two seeds."""
    found = [own for own in residuals(points, fixed)[0].values() if len(own) > 1 and np.ptp(own) > 0]
    return float(stats.bartlett(*found).pvalue) if len(found) > 1 else np.nan


def mean(of_seeds):
    return float(np.mean([*of_seeds.values()]))


def common_seeds(points, settings, fixed=()):
    """The seeds that all of these settings have; those `fixed` do not count."""
    of_settings = [{*points[setting]} for setting in settings if setting not in fixed]
    return set.intersection(*of_settings) if of_settings else set()


def means(points, settings, fixed=()):
    """The mean of each setting over the common seeds, so that effects of seeds cancel out in differences."""
    seeds = common_seeds(points, settings, fixed)
    return [float(np.mean([value for seed, value in points[setting].items() if setting in fixed or seed in seeds]))
            for setting in settings]


def difference(points, one, other, level=LEVEL, fixed=()):
    """
    The Estimate of the mean over the settings `one` minus the mean over the settings `other` ([]: none), over their
    common seeds. Student's interval has the residual's degrees of freedom or, where effects of seeds do not cancel out,
    those of the seeds. The variances are those of all points.
    """
    weights = dict.fromkeys(one, 1 / len(one))
    for name in other:
        weights[name] = weights.get(name, 0) - 1 / len(other)
    random = np.array([weight for name, weight in weights.items() if name not in fixed])
    n_seeds = max(1, len(common_seeds(points, weights, fixed)))
    squared_sum = random.sum() ** 2                                     # 0: the effects of the seeds cancel out
    found = variances(points, fixed)
    variance = found.residual * max(0.0, (random ** 2).sum() - squared_sum / found.n_settings) / n_seeds
    freedom = found.freedom
    if found.freedom_of_seeds and squared_sum > 1e-12:
        variance += found.of_means * squared_sum / n_seeds
        freedom = found.freedom_of_seeds
    half = np.nan
    if freedom >= LEAST_FREEDOM:
        half = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance)
    value = float(np.dot([*weights.values()], means(points, weights, fixed)))
    return Estimate(value, float(value - half), float(value + half))


def behind_the_best(points, setting, settings, level=LEVEL, fixed=()):
    """
    The Estimate of how far a setting is behind the best of `settings`, which is never negative: from its differences to
    all others, whose intervals hold at once (multiple comparisons with the best, Hsu, 1981).
    """
    others = [name for name in settings if name != setting]
    level = 1 - (1 - level) / len(others)
    found = [difference(points, [name], [setting], level, fixed) for name in others]
    return Estimate(*(float(np.maximum(0, np.max(ends))) for ends in zip(*found, strict=True)))


def spread(points, settings, level=LEVEL, fixed=()):
    """
    The Estimate of the standard deviation, over settings, of their means over infinitely many seeds, from their common
    seeds. Its square is the observed variance minus the residual one. Were the latter known, the sum of squares
    between the settings would have a noncentral chi-squared distribution. Since it is estimated, the interval has a
    higher level: the one at which a normal interval is as wide as Student's at `level`.
    """
    found = variances(points, fixed)
    observed = np.var(means(points, settings, fixed), ddof=1)
    if found.freedom < LEAST_FREEDOM:
        return Estimate(float(np.sqrt(observed)), np.nan, np.nan)
    noise = found.residual / len(common_seeds(points, settings, fixed))
    between = len(settings) - 1
    factor = stats.t.ppf((1 + level) / 2, found.freedom)
    tail = stats.norm.sf(factor)
    ratio = observed / noise

    def end(probability):
        """The spread at which a variance as high (sf) or low (cdf) as observed has probability `tail`; 0 if none."""
        def excess(root):
            return probability(between * ratio, between, root ** 2 * between) - tail
        top = np.sqrt(ratio) + factor + 10
        if excess(0) * excess(top) >= 0:
            return 0.0
        return float(optimize.brentq(excess, 0, top) * np.sqrt(noise))

    return Estimate(float(np.sqrt(max(0, observed - noise))), end(stats.ncx2.sf), end(stats.ncx2.cdf))


def correlation(one, other, level=LEVEL):
    """The Estimate of Pearson's correlation of two arrays [n] over settings, by Fisher's transformation."""
    found = stats.pearsonr(one, other)
    return Estimate(float(found.statistic), *map(float, found.confidence_interval(level)))
