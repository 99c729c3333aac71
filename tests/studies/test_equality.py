"""The tables of losses beside the library's: against the rows and scipy, and what the losses say of their starts."""
import csv
import functools

import numpy as np
import pytest
from scipy import stats

import criteria
import parameters
from studies import equality
from tests.studies.test_methods import table


@pytest.fixture(scope='module')
def tables():
    return equality.tables()


@functools.cache
def rows_of_groups():
    found = {}
    with open(equality.ROWS, newline='') as file:
        for row in csv.DictReader(file):
            found.setdefault(row['group'], []).append(row)
    return found


def values(group, column):
    """{seed: points} of a group in the file of the rows."""
    return {int(row['seed']): 100 * float(row[column]) for row in rows_of_groups()[f'Equality_{group}']}


def sides(rows):
    return {loss: groups[:2] for loss, groups in rows.items()}


SLOWER = {loss: (f'{loss}_ours', f'{loss}_slow_ours') for loss in equality.SLOW}
RATIO = {loss: (f'{loss}_slow_ours', f'{loss}_pml') for loss in equality.SLOW}


@pytest.mark.parametrize('title, rows, head', [
    ('equality', sides(equality.PEERS), '{} Δ'), ('miners', sides(equality.MINED), '{} Δ'),
    ('sizes', SLOWER, '{} Δ'), ('sizes', RATIO, '{}, slow minus pml')])
def test_the_tables_are_the_statistics_of_the_rows(title, rows, head, tables):
    cells = table(tables[title])
    assert list(cells) == list(rows)
    for name, column in {'R@1': 'test_e_recall@1', 'MAP@R': 'test_map_at_r'}.items():
        for loss, groups in rows.items():
            one, other = (values(group, column) for group in groups)
            seeds = sorted(one.keys() & other.keys())
            assert cells[loss]['n'] == str(len(seeds)) and len(seeds) >= 30
            difference = np.array([one[seed] - other[seed] for seed in seeds])
            half = stats.t.ppf(.975, len(seeds) - 1) * stats.sem(difference)
            cell = cells[loss][head.format(name)]
            assert cell.strip('*') == f'{round(difference.mean(), 2) + 0:+.2f} ± {half:.2f}'
            both = [stats.ttest_1samp(difference, limit, alternative=side).pvalue < .025 if np.ptp(difference) > 1e-9
                    else True for limit, side in ((-.3, 'greater'), (.3, 'less'))]            # two one-sided tests
            assert (cell == cell.strip('*')) == all(both)


def test_the_standard_deviations_of_the_starts():
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    theirs = {'arcface': losses.ArcFaceLoss, 'cosface': losses.CosFaceLoss, 'softmax': losses.NormalizedSoftmaxLoss,
              'proxynca_pp': losses.ProxyNCALoss, 'subcenter_arcface': losses.SubCenterArcFaceLoss,
              'softtriplet': losses.SoftTripleLoss, 'proxyanchor': losses.ProxyAnchorLoss}
    opt = parameters.build().parse_args([])
    opt.n_classes, opt.embed_dim = 40, 128
    given = {'softtriplet': {'centers_per_class': 2}}
    for name, (ours, stated) in equality.STARTS.items():
        weights, = criteria.CRITERIA[name].Criterion(opt).parameters()
        library, = theirs[name](num_classes=40, embedding_size=128, **given.get(name, {})).parameters()
        assert weights.std().item() == pytest.approx(ours, rel=.05)
        assert library.std().item() == pytest.approx(stated or ours, rel=.05)
