"""The answers of the published table, against scipy and what the paper's repository prints."""
import math

import pytest
from scipy import stats

from studies import published


def test_the_spread_counts_the_pairs_that_welch_tells_apart():
    losses = published.plain(published.read()['online_products'])
    std = {one.name: one.error * math.sqrt(5) for one in losses}
    n_pairs = sum(stats.ttest_ind_from_stats(one.recall, std[one.name], 5, other.recall, std[other.name], 5,
                                             equal_var=False).pvalue < .05
                  for index, one in enumerate(losses) for other in losses[index + 1:])
    cells = published.spread_table(published.read()).splitlines()[-1].strip('| ').split(' | ')
    assert cells == ['SOP', '16', '67.86 (Triplet (R))', '78.43 (Margin (D), β 1.2)', '3.9', '0.23',
                     f'{n_pairs} of 120']


def test_the_gains_are_those_of_the_paper():
    """The paper's repository has the differences before rounding, so that they may differ in the last digit."""
    printed = {'Contrastive': (2.07, 5.28, 1.15), 'Margin, β .6': (2.43, 4.66, .21), 'Margin, β 1.2': (.23, 1.25, .09),
               'SNR': (.09, 1.68, .08), 'Triplet': (.41, 2.04, -.06)}
    table = published.gain_table(published.read())
    rows = [[cell.strip(' *') for cell in line.split('|')[1:-1]] for line in table.splitlines()[2:]]
    assert {row[0] for row in rows} == set(printed)
    for loss, *cells in rows:
        assert [float(cell.split()[0]) for cell in cells] == pytest.approx(printed[loss], abs=.0101)


def test_the_correlations_over_the_losses_are_those_that_the_authors_print():
    for dataset, settings in published.read().items():
        losses = published.plain(settings)
        found = stats.pearsonr([one.decay for one in losses], [one.recall for one in losses]).statistic
        assert found == pytest.approx(published.PRINTED[dataset][0], abs=.0051)
    assert '-0.80 (-0.92 to -0.53)' in published.correlation_table(published.read()).splitlines()[2]
