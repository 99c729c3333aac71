"""Every metric against a slow, independent brute force on small random cases full of hazards."""
import math
import re
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from evaluation import clustering, geometry, metrics, protocol, rank_metrics, titles
from evaluation.metrics import Metric
from evaluation.ranking import counting, neighbours, ranks, sorting
from evaluation.ranking.nearest import nearest
from records import checkpoint, columns, reading
from reports import selection
from tests.helpers import ROOT, folder_of, metric_names, rows_of
from utilities.errors import UserError

RETRIEVAL = ['e_recall@1', 'e_recall@2', 'e_recall@7', 'e_recall@1000', 'precision_at_1', 'r_precision', 'map_at_r',
             'mAP', 'mAP_1000', 'mAP_lim', 'mAP_c']
EXACT = ['count', 'sort', 'torch']


def hits_of(points, labels, is_query, in_gallery=None):
    """Of one query at a time, whether each image is of its class, the gallery sorted by exact distance and index."""
    points, everyone = points.astype(float), np.ones(len(points), bool)
    if in_gallery is None:
        in_gallery = everyone if is_query is None else ~is_query
    for q in np.flatnonzero(everyone if is_query is None else is_query):
        gallery = [j for j in np.flatnonzero(in_gallery) if j != q]
        squared = ((points[q] - points) ** 2).sum(axis=1).tolist()
        gallery.sort(key=lambda j: (round(squared[j], 9), j))
        yield [int(labels[j] == labels[q]) for j in gallery]


def brute_force(names, *case):
    return means(names, hits_of(*case))


def means(names, rankings):
    """{name: mean over the queries that have a positive}, by the textbook definitions."""
    rankings = [hits for hits in rankings if any(hits)]
    return {name: np.mean([value_of(name, hits) for hits in rankings]) if rankings else math.nan for name in names}


def value_of(name, hits):
    n_positives = sum(hits)
    base, _, k = name.partition('@')
    if base in ('e_recall', 'c_recall'):
        return float(any(hits[:int(k)]))
    if base == 'precision_at_1':
        return float(hits[0])
    if base == 'r_precision':
        return sum(hits[:n_positives]) / n_positives
    cut = {'mAP': len(hits), 'mAP_1000': 1000, 'mAP_lim': 1023}.get(base, n_positives)
    total = sum(sum(hits[:j + 1]) / (j + 1) for j in range(min(cut, len(hits))) if hits[j])
    return total / min(n_positives, cut)


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


def small_tiles(patch, tile, deviations, sample):
    """Several tiles even where there are few images; estimated bounds that are often too high; samples without one."""
    patch.setattr(counting, 'TILE', tile)
    patch.setattr(counting, 'DEVIATIONS', deviations)
    patch.setattr(counting, 'SAMPLE', sample)
    patch.setattr(ranks, 'CHUNK', 40 * tile)
    patch.setattr(sorting, 'CHUNK', 40 * tile)


@settings(max_examples=80)
@given(case=cases(), tile=st.integers(1, 9), backend=st.sampled_from(['auto', *EXACT]),
       deviations=st.sampled_from([0, 4]), sample=st.sampled_from([1, 4, 9, 99]), seed=st.none() | st.integers(0, 99))
def test_retrieval_metrics_equal_brute_force(case, tile, backend, deviations, sample, seed):
    """With a seed, the gallery holds some of the queries."""
    points, labels, is_query = case
    pool = in_gallery = None
    if seed is not None:
        is_query, in_gallery = np.random.default_rng(seed).random((2, len(points))) < .7
        is_query[0], in_gallery[-1] = True, True
        pool = evaluation.Pool(torch.from_numpy(points), labels, is_query=is_query, in_gallery=in_gallery)
    with pytest.MonkeyPatch.context() as patch:
        small_tiles(patch, tile, deviations, sample)
        values, short = (evaluation.compute(names, torch.from_numpy(points), labels, is_query, pool=pool,
                                            backend=backend) for names in (RETRIEVAL, RETRIEVAL[4:7]))
    expected = brute_force(RETRIEVAL, points, labels, is_query, in_gallery)
    assert values == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert short == pytest.approx({name: values[name] for name in short}, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize('n_queries, threads', [(0, 3), (400, 1)])
def test_every_backend_gives_the_same_values_on_many_images(n_queries, threads, monkeypatch):
    """Tiles and chunks of the usual sizes; embeddings on a grid, so that float32 adds them up exactly."""
    monkeypatch.setattr(counting, 'SAMPLE', 300)
    random = np.random.default_rng(0)
    labels = np.unique(random.integers(0, 300, 1500) * (random.random(1500) < .95), return_inverse=True)[1]
    points = torch.from_numpy((random.integers(-3, 4, (300, 24))[labels] + random.integers(-2, 3, (1500, 24))) / 4)
    is_query = np.arange(1500) < n_queries if n_queries else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = {backend: evaluation.compute(RETRIEVAL, points, labels, is_query, backend=backend) for backend in EXACT}
        short = evaluation.compute(RETRIEVAL[4:7], points, labels, is_query, backend='count')
    finally:
        torch.set_num_threads(before)
    for values in found.values():
        assert values == pytest.approx(found['count'], abs=1e-12) and .1 < values['mAP'] < .9
    assert short == pytest.approx({name: found['count'][name] for name in short}, abs=1e-12)


def test_float16_is_taken_and_what_is_not_finite_or_too_large_is_refused():
    points, labels = torch.rand(9, 4), np.arange(9) % 3
    half = evaluation.compute(RETRIEVAL, points.half(), labels)
    assert half == evaluation.compute(RETRIEVAL, points.half().float(), labels)
    for value, sentence in ((math.nan, 'not finite'), (math.inf, 'not finite'), (1e19, 'float32 cannot hold')):
        points[3, 2] = value
        with pytest.raises(UserError, match=sentence):
            evaluation.compute(['e_recall@1'], points, labels)


def test_a_criterion_may_rank_by_inner_products_of_its_own():
    """−‖q − g‖² + 2 q_0 − 6 g_0: not symmetric, and not the Euclidean order."""
    def transform(points):
        half = (points ** 2).sum(dim=1, keepdim=True)
        return (torch.cat([2 * points, torch.ones(len(points), 1)], dim=1),
                torch.cat([points, -half - 6 * points[:, :1]], dim=1))

    random = np.random.default_rng(0)
    points, labels = random.integers(-3, 4, (60, 3)).astype(np.float32), random.integers(0, 9, 60)
    hits = []
    for q in range(60):
        gallery = [j for j in range(60) if j != q]
        gallery.sort(key=lambda j: (((points[q] - points[j]) ** 2).sum() + 6 * points[j, 0], j))
        hits.append(labels[gallery[0]] == labels[q])
    for backend in EXACT:
        values = evaluation.compute(['e_recall@1', 'c_recall@1'], torch.from_numpy(points), labels, ranking=transform,
                                    backend=backend)
        assert values['e_recall@1'] == pytest.approx(np.mean(hits))
        assert values['c_recall@1'] == evaluation.compute(values, torch.from_numpy(points), labels)['c_recall@1']


def test_within_groups_only_images_of_the_group_are_found():
    points = torch.tensor([[0.], [1.], [2.], [2.5], [0.1], [9.]])
    labels, groups = np.array([0, 1, 0, 1, 2, 2]), np.array([0, 0, 0, 0, 1, 1])
    pool = evaluation.Pool(points, labels, groups=groups)
    alone = evaluation.compute(['e_recall@1', 'mAP'], points[:4], labels[:4])
    values = evaluation.compute(['e_recall@1', 'mAP'], points, labels, pool=pool)
    for name in values:
        assert values[name] == pytest.approx((4 * alone[name] + 2) / 6)


def test_the_interval_resamples_classes():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(50), 20)
    values = np.repeat(random.random(50), 20)                     # the same within a class
    low, high = rank_metrics.interval(values, labels, 2000, seed=0)
    expected = 1.96 * values.std() / 50 ** .5                     # of 50 independent classes, not 1,000 queries
    assert high - low == pytest.approx(2 * expected, rel=.1) and low < values.mean() < high
    assert (low, high) == rank_metrics.interval(values, labels, 2000, seed=0)
    found = evaluation.compute(['map_at_r', 'nmi'], torch.rand(30, 4), np.arange(30) % 5, n_bootstrap=50)
    assert list(found) == ['map_at_r', 'map_at_r_low', 'map_at_r_high', 'nmi']
    assert found['map_at_r_low'] <= found['map_at_r'] <= found['map_at_r_high']


def test_principal_components_are_those_of_the_centred_svd():
    points = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * np.arange(1, 7) + 5
    found = geometry.principal_components(points, 3)(points)
    left, values, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(abs(found), abs(left * values)[:, :3], atol=1e-4)
    with pytest.raises(UserError, match='--pca 7: the embeddings have 6 dimensions'):
        geometry.principal_components(points, 7)


def test_the_cosine_variants_rank_by_angle():
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(40, 5)).astype(np.float32), random.integers(0, 8, 40)
    points *= random.uniform(.1, 10, (40, 1)).astype(np.float32)
    names = ['c_recall@1', 'c_recall@4', 'c_precision_at_1', 'c_r_precision', 'c_map_at_r', 'c_mAP', 'c_mAP_c']
    values = evaluation.compute([*names, 'e_recall@1'], torch.from_numpy(points), labels)
    unit = points.astype(float) / np.linalg.norm(points.astype(float), axis=1, keepdims=True)
    for name in names:
        plain = name if '@' in name else name.removeprefix('c_')
        assert values[name] == pytest.approx(brute_force([plain], unit, labels, None)[plain], abs=1e-12), name
    assert values['e_recall@1'] != values['c_recall@1']


def test_the_values_are_those_of_pytorch_metric_learning():
    module = pytest.importorskip('pytorch_metric_learning.utils.accuracy_calculator')
    random = np.random.default_rng(0)
    labels = random.integers(0, 40, 300)
    points = torch.from_numpy((random.normal(size=(40, 8))[labels] + random.normal(size=(300, 8))).astype(np.float32))
    names = ('precision_at_1', 'r_precision', 'mean_average_precision_at_r')
    calculator = module.AccuracyCalculator(names, k='max_bin_count', device=torch.device('cpu'))
    expected = calculator.get_accuracy(points, torch.from_numpy(labels))
    found = evaluation.compute(['precision_at_1', 'r_precision', 'map_at_r'], points, labels)
    assert list(found.values()) == pytest.approx([expected[name] for name in names], abs=1e-6)


def test_an_average_precision_that_is_cut_is_over_the_positives_that_the_cut_can_hold():
    """mAP_1000 and mAP_lim of a class of more images than the cut, and of one of fewer."""
    found = rank_metrics.average_precision(np.array([[1., 2, 4], [2, 3, np.inf]]), np.array([3, 2]), 2)
    assert found.tolist() == [(1 / 1 + 2 / 2) / 2, (1 / 2) / 2]


def test_the_nearest_images_leave_the_query_out_by_index():
    points = torch.tensor([[0.], [0.], [3.], [1.]])
    search = neighbours.Search(points, np.zeros(4, int))
    assert search.symmetric and nearest(search, np.array([0, 1]), 5).tolist() == [[1, 3, 2], [0, 3, 2]]
    search = neighbours.Search(points, np.zeros(4, int), np.array([True, False, False, True]))
    assert nearest(search, np.array([3, 0]), 2).tolist() == [[1, 2], [1, 2]]


# Clusterings

def pairs(groups):
    return {(i, j) for i in range(len(groups)) for j in range(i) if groups[i] == groups[j]}


@settings(max_examples=60)
@given(n=st.integers(2, 30), seed=st.integers(0, 10 ** 6))
def test_f1_equals_its_definition(n, seed):
    random = np.random.default_rng(seed)
    labels, clusters = random.integers(0, 5, n), random.integers(0, 4, n)
    table = clustering.Contingency(labels, clusters)
    guessed, true = pairs(clusters), pairs(labels)
    if guessed or true:
        precision = len(guessed & true) / len(guessed) if guessed else 0
        recall = len(guessed & true) / len(true) if true else 0
        expected = 2 * precision * recall / (precision + recall) if precision + recall else 0
        assert clustering.f1(table) == pytest.approx(expected)
    else:
        assert math.isnan(clustering.f1(table))


@settings(max_examples=60)
@given(n=st.integers(1, 60), n_classes=st.integers(1, 9), n_clusters=st.integers(1, 60), seed=st.integers(0, 10 ** 6))
def test_nmi_and_ami_equal_scikit_learns(n, n_classes, n_clusters, seed):
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
    random = np.random.default_rng(seed)
    labels, clusters = random.integers(0, n_classes, n), random.integers(0, n_clusters, n)
    table = clustering.Contingency(labels, clusters)
    assert clustering.nmi(table) == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-9)
    if len(np.unique(labels)) < n or len(np.unique(clusters)) < n:             # else 0/0
        assert clustering.ami(table) == pytest.approx(adjusted_mutual_info_score(labels, clusters), abs=1e-7)


def test_clusters_that_are_the_classes_are_perfect():
    for labels in (np.arange(6) // 2, np.zeros(6, int), np.arange(6)):
        table = clustering.Contingency(labels, labels)
        assert clustering.nmi(table) == pytest.approx(1) and clustering.ami(table) == pytest.approx(1)


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
    # random starts may merge two of the eight
    assert clustering.nmi(clustering.Contingency(labels.numpy(), found)) > .85


def test_kmeans_in_torch_fills_empty_clusters():
    """All but two images are the same: random starts coincide, yet as many clusters as distinct images come out."""
    points = torch.cat([torch.tensor([[10., 0]]).expand(20, 2), torch.tensor([[5., 3], [5, -3]])])
    found = clustering.kmeans_torch(points, 3, seed=0)
    assert len(np.unique(found)) == 3 and len(np.unique(found[:20])) == 1


# Geometry

@pytest.mark.parametrize('labels', [[0, 0, 0, 1, 2, 2, 2], [0, 1, 2, 3, 4, 5, 6], [0] * 7])
def test_class_distances_equal_the_pairwise_definition(labels):
    labels = np.array(labels)
    points = np.random.default_rng(0).normal(size=(7, 5))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)

    def spread(vectors):
        n = len(vectors)
        return sum(1 - vectors[i] @ vectors[j] for i in range(n) for j in range(n) if i != j) / (n * n - n)

    groups = [points[labels == c] for c in np.unique(labels)]
    means = np.array([group.mean(0) / np.linalg.norm(group.mean(0)) for group in groups])
    several = [spread(unit[labels == c]) for c in np.unique(labels) if (labels == c).sum() > 1]
    found = geometry.class_distances(points, labels)
    assert found['intra'] == pytest.approx(np.mean(several) if several else math.nan, nan_ok=True)
    assert found['inter'] == pytest.approx(spread(means) if len(means) > 1 else math.nan, nan_ok=True)
    assert found['intra_over_inter'] == pytest.approx(found['intra'] / found['inter'], nan_ok=True)


def test_distances_between_classes_are_those_of_the_means_of_the_embeddings_as_given():
    points, labels = torch.tensor([[10., 0], [0, 1], [1, 1], [0, 3]]), np.array([0, 0, 1, 1])
    for name, expected in (('dists@inter', 1 - 3.5 / math.sqrt(25.25 * 4.25)), ('c_dists@inter', .0761)):
        assert evaluation.compute([name], points, labels)[name] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize('shape', [(50, 8), (5, 8)])
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
    ('recall@1', 'unknown; choose from .*e_recall.*; did you mean e_recall@1[?]'),
    ('c_e_recall@1', 'unknown.*; did you mean c_recall@1[?]'),
    ('e_recall', 'expected a whole number after an @: e_recall@1'),
    ('e_recall@0', 'expected a whole number after an @'),
    ('e_recall@01', 'expected a whole number after an @'),
    ('nmi@1', 'expected no @'),
    ('dists', 'expected one of intra, inter, intra_over_inter after an @'),
    ('tpr@1', 'expected a fraction after an @: tpr@0.01'),
])
def test_a_metric_that_does_not_exist_is_refused_in_a_sentence(name, sentence):
    with pytest.raises(UserError, match=sentence):
        evaluation.parse(name)


def test_clusters_are_as_many_as_evaluated_classes(monkeypatch):
    asked = []
    monkeypatch.setattr(clustering, 'kmeans', lambda points, k, seed: asked.append(k) or np.zeros(len(points), int))
    evaluation.compute(['nmi', 'ami', 'f1', 'c_nmi'], torch.rand(9, 2), np.array([0, 0, 1, 1, 2, 2, 3, 3, 3]))
    assert asked == [4, 4]                                             # once for all three, once more for cosines


def test_a_metric_must_give_a_value_for_each_query(monkeypatch):
    monkeypatch.setitem(evaluation.METRICS, 'own', Metric('ranks', lambda ranks, n_positives: 0.))
    with pytest.raises(UserError, match='the function of own in METRICS returned an array .. for 30 queries; expected'):
        points = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
        evaluation.compute(['own'], points, np.arange(30) % 5)


def test_a_metric_with_an_input_of_its_own_is_computed(monkeypatch):
    monkeypatch.setitem(metrics.SHARED, 'norms', lambda wanted, job: {
        name: metric.function(job.embeddings.norm(dim=1).numpy()) for name, (metric, _) in wanted.items()})
    monkeypatch.setitem(evaluation.METRICS, 'own', Metric('norms', np.mean))
    points = torch.randn(30, 4)
    values = evaluation.compute(['nmi', 'own'], points, np.arange(30) % 5)
    assert values['own'] == pytest.approx(float(points.norm(dim=1).mean()))
    assert protocol.is_computed('own', 'class') and not protocol.is_computed('own', 'within')


def test_the_metric_of_the_documentation_selects_by_its_lowest_value(quick, run, tmp_path, monkeypatch, capsys):
    """docs/extending.md, as printed: registered, recorded, and the best where it is lowest."""
    section = (ROOT / 'docs' / 'extending.md').read_text().partition('\n## A metric\n')[2].partition('\n## ')[0]
    file, = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    entry = '\n'.join(re.findall(r'^\+    (.*)$', section, re.MULTILINE))
    own = types.ModuleType('first_rank')
    exec(file, vars(own))
    for name, metric in eval('{' + entry.strip() + '}', vars(metrics) | {'first_rank': own}).items():
        monkeypatch.setitem(evaluation.METRICS, name, metric)
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1', 'first_rank@4', '--storage_metrics', 'first_rank@4']
    assert run(*arguments, '--n_epochs', '3', '--lr', '.01') == 0
    values = [float(row['test_first_rank@4']) for row in rows_of(folder_of(tmp_path))]
    best = checkpoint.load(folder_of(tmp_path) / 'checkpoint_test_first_rank@4.pt')
    assert best['row']['test_first_rank@4'] == min(values) < max(values) and 1 <= min(values)
    chosen = selection.best_row(reading.read(folder_of(tmp_path)), columns.parse('test_first_rank@4'), 'best_test')
    assert chosen['epoch'] == best['epoch'] and not titles.is_fraction('test_first_rank@4')
    points, labels = torch.tensor([[0.], [1.], [1.5], [9.]]), np.array([0, 1, 0, 1])
    assert evaluation.compute(['first_rank@2'], points, labels)['first_rank@2'] == (2 + 3 + 2 + 2) / 4


def test_every_metric_of_the_registry_is_computed(opt):
    names = metric_names()
    points = torch.randn(30, 16, generator=torch.Generator().manual_seed(0))
    values = evaluation.compute(names, points, np.arange(30) % 5)
    assert list(values) == names and all(math.isfinite(value) for value in values.values())
    assert set(evaluation.compute(opt().evaluation_metrics, points, np.arange(30) % 5)) == set(opt().evaluation_metrics)
