"""Figures of groups of runs."""
import numpy as np
import pytest
from scipy.stats import pearsonr

from reports import figures


def test_figures(make, evaluate, tmp_path):
    for group in ('A', 'B', '$$'):
        for seed in range(3):
            make(group, seed)
    code, out, _ = evaluate('--figures', tmp_path / 'f', '--select', 'best_test', '--per_metric')
    names = {path.name for path in (tmp_path / 'f').iterdir()}
    assert code == 0 and names == {f'cub200_{name}.png' for name in (
        'correlations', 'test_e_recall@1_against_test_nmi', 'test_e_recall@1_against_train_rho_spectrum@1',
        'test_e_recall@1_against_train_dists@intra_over_inter', 'curves_test_e_recall@1', 'curves_test_nmi',
        'bars_test_e_recall@1', 'bars_test_nmi')}
    assert out.count('figure: ') == 8
    for name in names:
        assert (tmp_path / 'f' / name).read_bytes().startswith(b'\x89PNG')


def test_the_correlation_is_pearsons():
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    assert figures.correlation(x, y) == (pytest.approx(pearsonr(x, y)[0]), 20)
    assert figures.correlation([1, 2, np.nan, 3], [1, 2, 3, 3.5])[1] == 3
    assert np.isnan(figures.correlation([1, 1, 1], [1, 2, 3])[0])
