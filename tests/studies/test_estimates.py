"""Effects and their intervals against scipy, formulas by hand and simulations; the rule for answers."""
import math

import numpy as np
import pytest
from scipy import stats

from studies import estimates
from studies.estimates import Estimate

POINTS = {'a': {2: 16.0, 3: 16.4, 4: 17.1}, 'b': {2: 15.0, 3: 15.9}, 'c': {3: 14.2}, 'Untrained': {2: 9.0}}


def drawn(random, effects, n_seeds, common, rest):
    """Points of settings with these effects; standard deviations of what the seeds have in common, and of the rest."""
    of_seeds = common * random.standard_normal(n_seeds)
    return {setting: dict(enumerate(effect + of_seeds + rest * random.standard_normal(n_seeds)))
            for setting, effect in enumerate(effects)}


@pytest.mark.parametrize('ends, expected', [
    ((-.9, 1.0), 'within'), ((.1, .9), 'within'), ((.1, 1.1), 'more'), ((-3, -.1), 'less'), ((-.1, 1.1), 'open'),
    ((math.nan, math.nan), 'open')])
def test_the_rule_for_answers(ends, expected):
    assert estimates.answer(Estimate(sum(ends) / 2, *ends), 1) == expected


@pytest.mark.parametrize('ends, expected', [((.2, .9), 'within'), ((.2, 1.1), 'open'), ((1.1, 1.3), 'more')])
def test_a_spread_is_more_than_the_bound_or_open(ends, expected):
    assert estimates.answer(Estimate(sum(ends) / 2, *ends), 1, 1) == expected


def test_a_difference_over_the_same_seeds_is_that_of_the_paired_t_test():
    one, other = {2: 16.0, 3: 16.4, 4: 17.1, 5: 16.2}, {2: 15.0, 3: 15.9, 4: 15.7, 5: 15.8}
    found = estimates.difference({'a': one, 'b': other}, ['a'], ['b'], level=.99)
    expected = stats.ttest_rel([*one.values()], [*other.values()]).confidence_interval(.99)
    assert found[1:] == pytest.approx(expected)


def test_a_single_setting_has_the_interval_of_student():
    found = estimates.difference({'a': POINTS['a']}, ['a'], [])
    values = [*POINTS['a'].values()]
    assert found.mean == pytest.approx(16.5) and found.half == pytest.approx(stats.t.ppf(.975, 2) * stats.sem(values))


def test_variances_of_a_balanced_table_are_those_of_the_analysis_of_variance():
    points = drawn(np.random.default_rng(2), [1, 2, 3, 7], 5, 1, .3) | {'Untrained': {0: 9.0}}
    table = np.array([[*points[setting].values()] for setting in range(4)])
    rests = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    rest = np.square(rests).sum() / (3 * 4)
    found = estimates.variances(points, ['Untrained'])
    assert found == pytest.approx((rest, 12, table.mean(axis=0).var(ddof=1), 4, 4))
    assert found.seeds == pytest.approx(table.var(axis=1, ddof=1).mean() - rest)
    assert estimates.equal_variances(points, ['Untrained']) == pytest.approx(stats.bartlett(*rests).pvalue)


def test_settings_without_randomness_add_no_variance():
    found = estimates.variances(POINTS, ['Untrained'])
    half = estimates.difference(POINTS, ['a'], ['Untrained'], fixed=['Untrained']).half
    assert half == pytest.approx(estimates.difference(POINTS, ['a'], [], fixed=['Untrained']).half)
    assert found.freedom == 1 and found.freedom_of_seeds == 2              # 6 values, 3 settings and 3 seeds


@pytest.mark.parametrize('common', [0, .6])
def test_intervals_hold_as_often_as_they_say(common):
    random = np.random.default_rng(1)
    effects = np.arange(8) / np.arange(8).std(ddof=1)
    held = []
    for _ in range(300):
        points = drawn(random, effects, 4, common, .3) | {'Untrained': {0: 0.0}}
        pair = estimates.difference(points, [0], [1], .9, ['Untrained'])
        mean = estimates.difference(points, range(8), ['Untrained'], .9, ['Untrained'])
        spread = estimates.spread(points, range(8), .9, ['Untrained'])
        held.append([pair.low <= effects[0] - effects[1] <= pair.high, mean.low <= effects.mean() <= mean.high,
                     spread.low <= 1 <= spread.high])
    assert (abs(np.mean(held, axis=0) - .9) < .06).all()


@pytest.mark.parametrize('n_seeds', [2, 3, 4])
@pytest.mark.parametrize('common', [0, .3])
def test_intervals_that_hold_at_once_are_wide_enough_with_few_seeds(n_seeds, common):
    """What does not cancel out has n_seeds - 1 degrees of freedom; a single one gives no interval."""
    random = np.random.default_rng(4)
    effects = np.arange(10.)
    level = estimates.simultaneous(23)
    held = []
    for _ in range(400):
        points = drawn(random, effects, n_seeds, common, .3)
        mean = estimates.difference(points, range(10), [], level)
        spread = estimates.spread(points, range(6), level)
        one = estimates.difference(points, [0], [], level)
        held.append([mean.low <= effects.mean() <= mean.high, one.low <= 0 <= one.high,
                     spread.low <= np.std(effects[:6], ddof=1) <= spread.high])
    if n_seeds == 2:
        assert math.isnan(mean.half) and math.isnan(one.half)
        held = np.array(held)[:, 2:]
    assert (np.mean(held, axis=0) > .99).all()
    if n_seeds > 2:
        of_seeds = np.mean([[*values.values()] for values in points.values()], axis=0)
        t = stats.t.ppf((1 + level) / 2, n_seeds - 1)
        assert mean.half == pytest.approx(t * stats.sem(of_seeds))
        residual = estimates.variances(points).residual
        assert one.half == pytest.approx(t * math.sqrt(of_seeds.var(ddof=1) / n_seeds + residual * .9 / n_seeds))


def test_variances_that_seeds_do_not_tell_apart_are_unknown():
    points = {'a': {2: 16.0, 3: 16.4, 4: 16.6}, 'b': {2: 15.0}, 'c': {2: 14.2}}
    assert math.isnan(estimates.variances(points).residual)
    assert math.isnan(estimates.difference(points, ['a'], ['b']).half)
    assert math.isnan(estimates.spread(points, [*points]).half)


def test_behind_the_best_has_the_widest_interval_of_all_differences_above_0():
    points = drawn(np.random.default_rng(6), [0, 1, 1.1], 4, 1, .1)
    level = 1 - .05 / 2
    best, other = (estimates.difference(points, [name], [0], level) for name in (2, 1))
    assert estimates.behind_the_best(points, 0, [0, 1, 2], .95) == pytest.approx(
        [max(0, one, two) for one, two in zip(best, other, strict=True)])
    own = estimates.behind_the_best(points, 2, [0, 1, 2], .95)
    assert own[:2] == (0, 0) and 0 <= own.high < .3


def test_the_interval_behind_the_best_holds_for_the_one_that_looks_best():
    random = np.random.default_rng(4)
    held = []
    for _ in range(300):
        points = drawn(random, [0, .1, .2, .2], 2, .3, .3)
        chosen = max(points, key=lambda name: np.mean([*points[name].values()]))
        found = estimates.behind_the_best(points, chosen, range(4), .9)
        held.append(found.low <= .2 - min(.2, chosen / 10) <= found.high)
    assert np.mean(held) > .88


@pytest.mark.parametrize('n_seeds', [2, 3, 6])
def test_the_interval_of_a_spread_has_equal_tails(n_seeds):
    points = drawn(np.random.default_rng(7), [1, 1.1, 1.5], n_seeds, .1, .2)
    found = estimates.variances(points)
    spread = estimates.spread(points, [0, 1, 2], .9)
    noise = found.residual / n_seeds
    between = 2 * np.var([np.mean([*of.values()]) for of in points.values()], ddof=1) / noise
    tail = stats.norm.sf(stats.t.ppf(.95, found.freedom))
    assert stats.ncx2.cdf(between, 2, 2 * spread.high ** 2 / noise) == pytest.approx(tail, rel=1e-3)
    assert spread.low == 0 or stats.ncx2.sf(between, 2, 2 * spread.low ** 2 / noise) == pytest.approx(tail, rel=1e-3)


def test_the_spread_leaves_out_that_of_the_seeds():
    random = np.random.default_rng(3)
    effects = np.arange(12) / np.arange(12).std(ddof=1) * .5
    found = [estimates.spread(drawn(random, effects, 3, 1, .5), range(12)).mean for _ in range(100)]
    assert np.mean(found) == pytest.approx(.5, rel=.05)
    alike = estimates.spread(drawn(random, [0] * 12, 3, 1, .5), range(12))
    assert alike.low == 0 < alike.high < .6


def test_a_correlation_has_the_interval_of_fishers_transformation():
    one = np.array([.1, .4, .2, .9, .7])
    other = np.array([3., 1., 2.5, .1, 1.2])
    found = estimates.correlation(one, other)
    expected = np.corrcoef(one, other)[0, 1]
    assert found.mean == pytest.approx(expected)
    half = stats.norm.ppf(.975) / math.sqrt(5 - 3)
    assert found[1:] == pytest.approx((np.tanh(np.arctanh(expected) - half), np.tanh(np.arctanh(expected) + half)))


def test_bartletts_test_needs_two_settings_with_two_seeds():
    assert math.isnan(estimates.equal_variances({'a': POINTS['a'], 'c': POINTS['c']}))
