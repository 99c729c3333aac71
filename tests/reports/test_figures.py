"""Figures of groups of runs."""
import numpy as np
import pytest
from scipy.stats import pearsonr

from records import columns
from reports import figures
from tests.reports.conftest import METRICS


def test_figures(inspected, make, evaluate, tmp_path):
    for group in ('A', 'B', '$$'):
        for seed in range(3):
            column = [.1, .2, .3, .4, .5]
            make(group, seed, values={name: column for name in ('test_mAP_c', *columns.beside('test_nmi'))})
    code, out, _ = evaluate('--figures', tmp_path / 'f', '--select', 'best_test', '--per_metric')
    names = {path.name for path in (tmp_path / 'f').iterdir()}
    assert code == 0 and names == {f'cub200_{name}.png' for name in (
        'correlations', 'test_e_recall@1_against_test_nmi', 'test_e_recall@1_against_train_rho_spectrum@1',
        'test_e_recall@1_against_train_dists@intra_over_inter', 'curves_test_e_recall@1', 'curves_test_nmi',
        'bars_test_e_recall@1', 'bars_test_nmi')}
    assert out.count('figure: ') == 8
    for name in names:
        assert (tmp_path / 'f' / name).read_bytes().startswith(b'\x89PNG')
    labels = [label.get_text() for label in inspected[0].axes[0].get_yticklabels()]
    assert labels == ['R@1', 'NMI', 'F1', 'MAP@R', 'rho@1', 'intra/inter']          # MAP@R once, of its two names


def test_runs_that_share_no_epoch_or_no_test_metric(inspected, make, evaluate, tmp_path):
    for seed in range(2):
        make('A', seed, n_epochs=4 - seed)
    assert evaluate('--rows', tmp_path / 'r.csv')[0] == 0                          # their last epochs
    flags = ['--metrics', 'e_recall@1', '--figures']
    assert evaluate(*flags, tmp_path / 'epochs', source=['--runs', str(tmp_path / 'r.csv')])[0] == 0
    curves, = (figure for figure in inspected if figure.axes[0].get_xlabel() == 'epoch')
    assert not curves.axes[0].lines
    names = [f'test_{metric}' for metric in METRICS]
    make('B', 0, without=names[1:])
    make('C', 0, without=names[:1])
    code, out, _ = evaluate(*flags, tmp_path / 'metrics', '--only', 'B', 'C')
    assert code == 0 and 'curves_test_e_recall@1' in out and 'correlations' not in out
    make('D', 0, splits=('val',))
    flags = ['--metrics', 'val_nmi', '--select', 'best_val', '--figures']
    code, out, error = evaluate(*flags, tmp_path / 'val', '--only', 'D')
    assert code == 0 and 'bars_val_nmi' in out and not error


def test_the_correlation_is_pearsons():
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    assert figures.correlation(x, y) == (pytest.approx(pearsonr(x, y)[0]), 20)
    assert figures.correlation([1, 2, np.nan, 3], [1, 2, 3, 3.5])[1] == 3
    assert np.isnan(figures.correlation([1, 1, 1], [1, 2, 3])[0])


LONG = ('CUB_Contrastive_Distance_with_Direction_Regularisation_weight_0.5', 'CUB_Short',
        'CUB_ProxyAnchor_lr_0.01_embedding_512_on_bninception_normalize')


@pytest.mark.parametrize('groups', [('A', 'B'), [*LONG, *(f'{LONG[0]}_{index}' for index in range(9))]],
                         ids=['short names', 'many long names'])
def test_the_texts_of_all_figures_lie_inside_them(groups, inspected, make, evaluate, tmp_path):
    levels = {f'test_within_{metric}': [.1, .2, .3, .4, .5] for metric in ('c_precision_at_1', 'mAP_trapezoid')}
    for group in groups:
        for seed in range(2):
            make(group, seed, test='0' * 16, values=levels, eval_views=['0.71', '0.875', 'flip'])
    make('D', 0, test='1' * 16)                                   # so that the titles name the test set and the views
    code, *_ = evaluate('--figures', tmp_path / 'f', '--select', 'best_test', '--per_metric', '--metrics', 'e_recall@1',
                        'within_c_precision_at_1', '--format', 'svg')
    assert code == 0 and len(inspected) == 8 + 6
    assert '<svg ' in (tmp_path / 'f' / f'cub200@{"1" * 16}_curves_test_e_recall@1.svg').read_text()
    for figure in inspected:
        boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        assert not any(one.overlaps(other) for one, other in zip(boxes, boxes[1:], strict=False))
