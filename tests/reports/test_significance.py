"""Intervals and tests, against scipy and by hand."""
import doctest

import numpy as np
import pytest
from scipy import stats

from reports import significance
from reports.significance import holm, paired_test, t_interval


def test_the_examples_in_the_docstrings():
    examples = doctest.testmod(significance, optionflags=doctest.ELLIPSIS)
    assert examples.attempted and not examples.failed


def test_intervals_are_students():
    assert t_interval([1, 3]) == (2, pytest.approx(12.706204736432095))        # t(0.975; 1) x 1
    assert np.isnan(t_interval([1.])[1])


def test_paired_tests():
    one, other = np.random.default_rng(0).uniform(size=(2, 12))
    assert paired_test(one, other) == (pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-12), 'paired t-test')
    assert paired_test(one, one) == (1, 'equal scores') == paired_test(one, one + 1e-17)
    assert paired_test(one, one + .1) == (2 ** -11, 'sign test')                # equal up to rounding
    assert paired_test([.5, .6], [.4, .5]) == (.5, 'sign test')
    assert np.isnan(paired_test([.5], [.4])[0]) and paired_test([], [])[1] == 'no test'
    assert np.isnan(paired_test([np.inf, 1, 2], [.5, .7, .1])[0])


def test_what_varies_by_rounding_only_does_not_vary():
    equal = [.3, .1 + .2, .3]
    assert significance.difference_from_constant(equal, .2)[2:] == (.25, 'sign test', (3, 1))
    assert np.isnan(significance.welch(equal, [.2, .2])[2]) and np.isnan(significance.welch(equal, [.2])[2])
    varying = np.random.default_rng(0).uniform(size=5)
    assert significance.difference_from_constant(varying, .2).p == pytest.approx(stats.ttest_1samp(varying, .2).pvalue)


def test_holm():
    assert holm([.01, .04, .03, .005]) == pytest.approx([.03, .06, .06, .02])
    assert holm([.5, .9]) == [1, 1] and holm([]) == []
    assert holm([.01, np.nan, .02])[::2] == pytest.approx([.02, .02]) and np.isnan(holm([.01, np.nan])[1])
    p = np.random.default_rng(0).uniform(0, .1, 9)
    by_hand = [max(min(1, (9 - (p < other).sum()) * other) for other in p[p <= one]) for one in p]
    assert holm(p) == pytest.approx(by_hand)
