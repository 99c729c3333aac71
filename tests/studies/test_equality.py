"""The tables of losses beside the library's: against the rows and scipy, and what the losses say of their starts."""
import csv
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
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


def test_the_range_of_the_other_side(tables):
    for title, column in {'R@1': 'test_e_recall@1', 'MAP@R': 'test_map_at_r'}.items():
        means = [np.mean([*values(group, column).values()]) for _, group, _ in equality.PEERS.values()]
        assert f'{title} from {min(means):.1f} to {max(means):.1f}' in tables['range']


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


@pytest.mark.parametrize('name', ['arcface', 'softmax', 'proxynca_pp', 'softtriplet'])
def test_only_the_rate_over_the_size_of_the_start_counts(name):
    """Adam: class weights that are 20 times as large, with 20 times the learning rate, train the same embeddings."""
    trained = []
    for factor in (1, 20):
        torch.manual_seed(0)
        opt = SimpleNamespace(**vars(parameters.build().parse_args([])) | {'n_classes': 4, 'embed_dim': 8})
        loss = criteria.CRITERIA[name].Criterion(opt).double()
        points = torch.randn(16, 8, dtype=torch.float64, requires_grad=True)
        weights, = loss.parameters()
        weights.data *= factor
        optimizer = torch.optim.Adam([{'params': [points], 'lr': .01}, {'params': [weights], 'lr': .01 * factor}],
                                     eps=1e-12)
        for _ in range(20):
            optimizer.zero_grad()
            loss(points, torch.arange(16) % 4).backward()
            optimizer.step()
        trained.append(points.detach())
    torch.testing.assert_close(*trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('name', equality.SLOW)
def test_the_loss_states_the_effect_of_its_start(name, tables):
    stated, row = ' '.join(criteria.CRITERIA[name].__doc__.split()), table(tables['sizes'])[name]
    assert f'the rate 0.01 instead of {row["slow rate"]}, ' in stated
    recall, precision = (row[f'{metric} Δ'].strip('*') for metric in ('R@1', 'MAP@R'))
    assert f'changes R@1 by {recall} and MAP@R by {precision} points (docs/comparison.md)' in stated


def test_the_page_states_what_a_fast_rate_does_to_proxyanchor():
    page = ' '.join((equality.ROWS.parents[2] / 'docs' / 'comparison.md').read_text().split())
    for metric, column in (('R@1', 'test_e_recall@1'), ('MAP@R', 'test_map_at_r')):
        fast, slow = values('proxyanchor_ours', column), values('proxyanchor_0.0001_ours', column)
        difference = np.array([fast[seed] - slow[seed] for seed in slow])
        half = stats.t.ppf(.975, len(slow) - 1) * stats.sem(difference)
        assert f'{difference.mean():+.2f} ± {half:.2f} in {metric}' in page and len(slow) == 10


@pytest.mark.parametrize('n_epochs, infix', [(5, ''), (25, '_long')])
def test_the_page_states_what_a_fast_rate_does_after_few_and_after_many_epochs(n_epochs, infix):
    column = 'test_e_recall@1'
    fast = values(f'arcface{infix and f"{infix}_0.01"}_ours', column)
    slow = values(f'arcface{infix}_0.0001_ours', column)
    difference = np.array([fast[seed] - slow[seed] for seed in slow])
    half = stats.t.ppf(.975, len(slow) - 1) * stats.sem(difference)
    page = ' '.join((equality.ROWS.parents[2] / 'docs' / 'comparison.md').read_text().split())
    assert f'{difference.mean():.2f} ± {half:.2f} after {n_epochs}' in page and len(slow) == 10
