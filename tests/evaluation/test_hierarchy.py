"""H-AP, ASI and NDCG against loops over the images of a ranking."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from evaluation import hierarchy
from evaluation.ranking import neighbours
from tests.evaluation.test_metrics import cases
from tests.helpers import LABELS, UNIT

NAMES = ['h_ap', 'asi', 'ndcg']


def brute_force(points, labels, levels, is_query):
    """{name: mean over the queries}; one query at a time, the definitions in loops."""
    every = np.column_stack([labels, levels])
    n, n_levels, found = len(labels), every.shape[1], {name: [] for name in NAMES}
    for q in range(n) if is_query is None else np.flatnonzero(is_query):
        gallery = [j for j in range(n) if (j != q if is_query is None else not is_query[j])]
        squared = ((points[q] - points) ** 2).sum(axis=1).tolist()
        gallery.sort(key=lambda j: (round(squared[j], 9), j))
        level = (every[gallery] == every[q]).sum(axis=1).tolist()
        if not any(level):
            continue
        rel = [lev / n_levels / level.count(lev) if lev else 0 for lev in level]
        found['h_ap'].append(sum(sum(min(rel[r], rel[i]) for i in range(r + 1)) / (r + 1)
                                 for r in range(len(level)) if rel[r]) / sum(rel))
        ideal, n_related = sorted(level, reverse=True), sum(lev > 0 for lev in level)
        found['asi'].append(np.mean([sum(min(level[:k].count(lev), ideal[:k].count(lev))
                                         for lev in range(1, n_levels + 1)) / k for k in range(1, n_related + 1)]))
        gains = [sum((2 ** lev - 1) / math.log2(2 + r) for r, lev in enumerate(some)) for some in (level, ideal)]
        found['ndcg'].append(gains[0] / gains[1])
    return {name: np.mean(values) if values else math.nan for name, values in found.items()}


def computed(names, points, labels, levels, is_query=None, **options):
    pool = evaluation.Pool(points, labels, is_query=is_query, levels=levels)
    return evaluation.compute(names, points, labels, pool=pool, **options)


@settings(max_examples=60)
@given(case=cases(), n_levels=st.integers(0, 3), seed=st.integers(0, 99), chunk=st.sampled_from([1, 60, 1 << 20]))
def test_metrics_of_levels_equal_brute_force(case, n_levels, seed, chunk):
    points, labels, is_query = case
    levels = np.random.default_rng(seed).integers(0, 3, (labels.max() + 1, n_levels))[labels]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hierarchy, 'CHUNK', chunk)
        found = computed(NAMES, torch.from_numpy(points), labels, levels, is_query)
    assert found == pytest.approx(brute_force(points, labels, levels, is_query), abs=1e-12, nan_ok=True)


def test_six_points_of_two_levels():
    """ASI and NDCG are those of the authors' code, whose H-AP is .688194: it counts the query at its level."""
    labels = LABELS.numpy()
    found = computed(NAMES, UNIT, labels, (labels // 2)[:, None])
    assert found == pytest.approx({'h_ap': .703241, 'asi': .583333, 'ndcg': .781944}, abs=1e-6)


def test_the_query_does_not_count_at_its_level():
    """The example of docs/metrics.md; 0.875 where the query counts as an image of level 2."""
    assert hierarchy.h_ap(np.array([[1, 2, 3]]), np.array([[1, 2, 1]], np.uint8), 2) == pytest.approx([0.75])


@settings(max_examples=10)
@given(case=cases())
def test_with_one_level_h_ap_is_the_average_precision(case):
    points, labels, is_query = case
    found = evaluation.compute(['h_ap', 'c_h_ap', 'mAP', 'c_mAP'], torch.from_numpy(points), labels, is_query)
    assert found['h_ap'] == pytest.approx(found['mAP'], abs=1e-12, nan_ok=True)
    assert found['c_h_ap'] == pytest.approx(found['c_mAP'], abs=1e-12, nan_ok=True)


@pytest.mark.parametrize('spread', [1, 1e-2, 1e-5, 0])
def test_images_that_float32_cannot_order(spread):
    """Ten far clusters of 15 images, of five classes each; against all in float64."""
    random = np.random.default_rng(0)
    clusters, labels = np.arange(150) // 15, np.arange(150) % 5 + 5 * (np.arange(150) // 15)
    points = torch.from_numpy(random.normal(size=(10, 24))[clusters] + spread * random.normal(size=(150, 24))).float()
    found = computed(['h_ap', 'mAP'], points, labels, clusters[:, None])
    flat = evaluation.compute(['h_ap'], points, labels)['h_ap']
    assert flat == pytest.approx(found['mAP'], abs=1e-12)
    assert found['h_ap'] == pytest.approx(brute_force(points.double().numpy() / max(spread, 1e-9) ** .5 * 1e3, labels,
                                                      clusters[:, None], None)['h_ap'], abs=1e-9)


def test_a_criterions_own_scores_and_a_perfect_ranking():
    labels = np.repeat(np.arange(6), 3)
    levels = np.stack([labels // 2, labels // 4], axis=1)
    codes = torch.nn.functional.one_hot(torch.from_numpy(np.stack([labels, levels[:, 0], levels[:, 1]]))).double()
    codes = codes.transpose(0, 1).flatten(1)
    for ranking in (None, lambda points: (points, points)):
        values = computed(['asi', 'ndcg'], codes, labels, levels, ranking=ranking)
        assert values == pytest.approx({'asi': 1, 'ndcg': 1})
    search = neighbours.Search(codes, labels, ranking=(codes, -codes))
    (rows, ranks, found), = hierarchy.ranked_levels(search, np.column_stack([labels, levels]), lambda *ranked: ranked)
    assert len(rows) == 18 and (np.diff(np.where(found > 0, found, 9).astype(int), axis=1) >= 0).all()


def test_intervals_and_groups():
    labels = LABELS.numpy()
    found = computed(NAMES, UNIT, labels, (labels // 2)[:, None], n_bootstrap=50)
    assert list(found) == [name for metric in NAMES for name in (metric, f'{metric}_low', f'{metric}_high')]
    assert found['h_ap_low'] < found['h_ap'] < found['h_ap_high']
