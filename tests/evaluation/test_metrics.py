"""Every metric against a slow, independent brute force on small random cases full of hazards."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from evaluation import clustering, geometry, neighbours
from utilities.errors import UserError

RETRIEVAL = ['e_recall@1', 'e_recall@2', 'e_recall@7', 'e_recall@1000', 'precision_at_1', 'r_precision', 'map_at_r',
             'mAP', 'mAP_1000', 'mAP_lim', 'mAP_c']


def brute_force(name, points, labels, is_query, cosine=False):
    """One query at a time, the gallery sorted by exact distance and index, textbook definitions."""
    points = points.astype(float)
    if cosine:
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
    queries = range(len(points)) if is_query is None else np.flatnonzero(is_query)
    values = []
    for q in queries:
        gallery = [j for j in range(len(points)) if (j != q if is_query is None else not is_query[j])]
        gallery.sort(key=lambda j: (round(float(((points[q] - points[j]) ** 2).sum()), 9), j))
        hits = [int(labels[j] == labels[q]) for j in gallery]
        n_positives = sum(hits)
        if not n_positives:
            continue
        base, _, k = name.partition('@')
        if base in ('e_recall', 'c_recall'):
            values.append(float(any(hits[:int(k)])))
            continue
        if base == 'precision_at_1':
            values.append(float(hits[0]))
            continue
        if base == 'r_precision':
            values.append(sum(hits[:n_positives]) / n_positives)
            continue
        cut = {'mAP': len(gallery), 'mAP_1000': 1000, 'mAP_lim': 1023}.get(base, n_positives)
        total = sum(sum(hits[:j + 1]) / (j + 1) for j in range(min(cut, len(hits))) if hits[j])
        values.append(total / min(n_positives, cut))
    return np.mean(values) if values else math.nan


# Whole numbers, few of them: distances are exact in float32, duplicates and ties abound.
@st.composite
def cases(draw):
    n, dim = draw(st.integers(2, 25)), draw(st.integers(1, 4))
    rows = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim)
    points = np.array(draw(st.lists(rows, min_size=n, max_size=n)), np.float32)
    labels = np.array(draw(st.lists(st.integers(0, draw(st.integers(0, 6))), min_size=n, max_size=n)))
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    is_query = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda q: any(q) and not all(q)))
    return points, labels, None if is_query is None else np.array(is_query)


@settings(max_examples=150, deadline=None)
@given(case=cases(), chunk=st.sampled_from([1, 30, 1 << 24]), torch_ranks=st.booleans())
def test_retrieval_metrics_equal_brute_force(case, chunk, torch_ranks):
    points, labels, is_query = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, 'CHUNK', chunk)
        if torch_ranks:
            patch.setattr(neighbours, 'ranks_numpy', neighbours.ranks_torch)
        values = evaluation.compute(RETRIEVAL, torch.from_numpy(points), labels, is_query)
    for name in RETRIEVAL:
        assert values[name] == pytest.approx(brute_force(name, points, labels, is_query), abs=1e-12, nan_ok=True), name


def test_the_cosine_variants_rank_by_angle():
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(40, 5)).astype(np.float32), random.integers(0, 8, 40)
    points *= random.uniform(.1, 10, (40, 1)).astype(np.float32)
    names = ['c_recall@1', 'c_recall@4', 'c_precision_at_1', 'c_r_precision', 'c_map_at_r', 'c_mAP', 'c_mAP_c']
    values = evaluation.compute([*names, 'e_recall@1'], torch.from_numpy(points), labels)
    for name in names:
        expected = brute_force(name if '@' in name else name.removeprefix('c_'), points, labels, None, cosine=True)
        assert values[name] == pytest.approx(expected, abs=1e-12), name
    assert values['e_recall@1'] != values['c_recall@1']


def test_perfect_retrieval_scores_1_and_duplicates_of_the_query_are_neighbours():
    points = torch.tensor([[0., 0], [0, 0], [5, 5], [5, 5], [5, 5]])
    values = evaluation.compute(RETRIEVAL, points, np.array([0, 0, 1, 1, 1]))
    assert set(values.values()) == {1.0}
    values = evaluation.compute(['e_recall@1'], points, np.array([0, 1, 2, 1, 2]))     # duplicates of other classes
    assert values['e_recall@1'] == pytest.approx(brute_force('e_recall@1', points.numpy(), [0, 1, 2, 1, 2], None))


def test_lone_queries_are_left_out_and_nothing_left_is_nan():
    points = torch.tensor([[0.], [1.], [2.]])
    assert evaluation.compute(['e_recall@1'], points, np.array([0, 0, 1]))['e_recall@1'] == 1
    assert math.isnan(evaluation.compute(['map_at_r'], points, np.array([0, 1, 2]))['map_at_r'])


def test_the_nearest_images_leave_the_query_out_by_index():
    points = torch.tensor([[0.], [0.], [3.], [1.]])
    search = neighbours.Search(points, np.zeros(4, int))
    assert search.nearest(np.array([0, 1]), 5).tolist() == [[1, 3, 2], [0, 3, 2]]
    search = neighbours.Search(points, np.zeros(4, int), np.array([True, False, False, True]))
    assert search.nearest(np.array([3, 0]), 2).tolist() == [[1, 2], [1, 2]]


# Clusterings

def pairs(groups):
    return {(i, j) for i in range(len(groups)) for j in range(i) if groups[i] == groups[j]}


def entropy(counts):
    shares = np.array(counts) / sum(counts)
    return -sum(p * math.log(p) for p in shares if p > 0)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(2, 30), seed=st.integers(0, 10 ** 6))
def test_f1_and_nmi_equal_their_definitions(n, seed):
    random = np.random.default_rng(seed)
    labels, clusters = random.integers(0, 5, n), random.integers(0, 4, n)
    guessed, true = pairs(clusters), pairs(labels)
    if guessed or true:
        precision = len(guessed & true) / len(guessed) if guessed else 0
        recall = len(guessed & true) / len(true) if true else 0
        expected = 2 * precision * recall / (precision + recall) if precision + recall else 0
        assert clustering.f1(labels, clusters) == pytest.approx(expected)
    else:
        assert math.isnan(clustering.f1(labels, clusters))
    joint = [np.sum((labels == a) & (clusters == b)) for a in range(5) for b in range(4)]
    parts = [entropy([np.sum(labels == a) for a in range(5)]), entropy([np.sum(clusters == b) for b in range(4)])]
    if sum(parts):
        expected = (sum(parts) - entropy(joint)) / (sum(parts) / 2)
        assert clustering.nmi(labels, clusters) == pytest.approx(expected, abs=1e-9)


def test_clusters_are_as_many_as_evaluated_classes(monkeypatch):
    asked = []
    monkeypatch.setattr(clustering, 'kmeans', lambda points, k, seed: asked.append(k) or np.zeros(len(points), int))
    evaluation.compute(['nmi', 'ami', 'f1', 'c_nmi'], torch.rand(9, 2), np.array([0, 0, 1, 1, 2, 2, 3, 3, 3]))
    assert asked == [4, 4]                       # once for all three, once more for cosines


@pytest.mark.parametrize('kmeans', [clustering.kmeans, clustering.kmeans_torch])
def test_kmeans_finds_clear_clusters_and_repeats_itself(kmeans):
    if kmeans is clustering.kmeans:
        pytest.importorskip('faiss')
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(8) * 20
    labels = torch.arange(8).repeat_interleave(30)
    points = centres[labels] + torch.randn(240, 8, generator=generator)
    found = kmeans(points, 8, seed=1)
    assert np.array_equal(found, kmeans(points, 8, seed=1)) and found.min() >= 0 and found.max() < 8
    assert clustering.nmi(labels.numpy(), found) > .85          # random starts may merge two of the eight


def test_without_faiss_kmeans_runs_in_torch(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'faiss', None)
    points = torch.cat([torch.zeros(5, 2), torch.ones(5, 2) * 9])
    assert len(np.unique(clustering.kmeans(points, 2, seed=0))) == 2


def test_kmeans_in_torch_fills_empty_clusters():
    """All but two images are the same: random starts coincide, yet as many clusters as distinct images come out."""
    points = torch.cat([torch.zeros(20, 2), torch.tensor([[5., 0], [0, 7]])])
    found = clustering.kmeans_torch(points, 3, seed=0)
    assert len(np.unique(found)) == 3 and len(np.unique(found[:20])) == 1


def test_kmeans_in_torch_is_as_good_as_faisss():
    faiss = pytest.importorskip('faiss')
    points = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))

    def spread(clusters):
        return sum(float(((part - part.mean(0)) ** 2).sum()) for part in
                   (points[torch.from_numpy(clusters == c)] for c in np.unique(clusters)))

    assert faiss and spread(clustering.kmeans_torch(points, 20, 0)) < 1.05 * spread(clustering.kmeans(points, 20, 0))


# Geometry

@pytest.mark.parametrize('labels', [[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 1, 2, 2, 2], [0, 1, 2, 3, 4, 5, 6], [0] * 7])
def test_class_distances_equal_the_pairwise_definition(labels):
    labels = np.array(labels)
    points = np.random.default_rng(0).normal(size=(7, 5))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)

    def spread(vectors):
        n = len(vectors)
        return sum(1 - vectors[i] @ vectors[j] for i in range(n) for j in range(n) if i != j) / (n * n - n)

    groups = [unit[labels == c] for c in np.unique(labels)]
    means = np.array([group.mean(0) / np.linalg.norm(group.mean(0)) for group in groups])
    several = [spread(group) for group in groups if len(group) > 1]
    found = geometry.class_distances(points, labels)
    assert found['intra'] == pytest.approx(np.mean(several) if several else math.nan, nan_ok=True)
    assert found['inter'] == pytest.approx(spread(means) if len(means) > 1 else math.nan, nan_ok=True)
    assert found['intra_over_inter'] == pytest.approx(found['intra'] / found['inter'], nan_ok=True)


@pytest.mark.parametrize('shape', [(50, 8), (8, 8), (5, 8)])
def test_singular_values_are_those_of_the_svd(shape):
    points = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(geometry.singular_values(points), np.linalg.svd(points, compute_uv=False), rtol=1e-6)


@pytest.mark.parametrize('k', [1, 2, 5, -1, -3])
def test_rho_spectrum_is_the_divergence_from_uniform(k):
    from scipy.stats import entropy as divergence
    points = np.random.default_rng(0).normal(size=(40, 8)) * np.arange(1, 9)
    values = np.linalg.svd(points, compute_uv=False)[abs(k) - 1:]
    uniform = np.full(len(values), 1 / len(values))
    expected = divergence(uniform, values / values.sum()) if k > 0 else divergence(values / values.sum(), uniform)
    assert geometry.rho_spectrum(geometry.singular_values(points), k) == pytest.approx(expected)


def test_rho_spectrum_at_0_is_the_spectrum_and_dead_dimensions_are_infinitely_far_from_uniform():
    points = np.random.default_rng(0).normal(size=(40, 4)) * [1, 2, 3, 0]
    values = geometry.singular_values(points)
    assert geometry.rho_spectrum(values, 0).sum() == pytest.approx(1) and geometry.rho_spectrum(values, 0)[-1] == 0
    assert geometry.rho_spectrum(values, 1) == math.inf and math.isfinite(geometry.rho_spectrum(values, -1))
    assert math.isnan(geometry.rho_spectrum(values, 9))


# Names

@pytest.mark.parametrize('name, sentence', [
    ('recall@1', 'unknown; choose from e_recall'),
    ('e_recal@1', 'unknown; choose from e_recall'),
    ('c_e_recall@1', 'unknown'),
    ('e_recall', 'expected a whole number after an @: e_recall@1'),
    ('e_recall@x', 'expected a whole number after an @'),
    ('e_recall@0', 'expected a whole number after an @'),
    ('nmi@1', 'expected no @'),
    ('dists', 'expected one of intra, inter, intra_over_inter after an @'),
    ('dists@both', 'expected one of intra, inter, intra_over_inter after an @'),
])
def test_a_metric_that_does_not_exist_is_refused_in_a_sentence(name, sentence):
    with pytest.raises(UserError, match=sentence):
        evaluation.parse(name)


def test_every_metric_of_the_registry_is_computed(opt):
    arguments = {'e_recall': '@1', 'dists': '@intra', 'rho_spectrum': '@1'}
    names = [name + arguments.get(name, '') for name in evaluation.METRICS]
    points = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    values = evaluation.compute(names, points, np.arange(30) % 5)
    assert list(values) == names and all(math.isfinite(value) for value in values.values())
    assert set(evaluation.compute(opt().evaluation_metrics, points, np.arange(30) % 5)) == set(opt().evaluation_metrics)
