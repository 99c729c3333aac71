"""Ranking and clustering of embeddings whose distances float32 inner products do not show, against float64."""
import threading

import numpy as np
import pytest
import torch

import evaluation
from evaluation import clustering
from evaluation.ranking import counting, deciding, neighbours, precision, ranks, sorting
from evaluation.ranking.nearest import nearest
from tests.evaluation.test_metrics import EXACT, RETRIEVAL, means

GEOMETRIES = [
    *(('one cluster', spread, 0, 1) for spread in (1, 1e-2, 1e-4, 1e-6)),
    *(('clusters', spread, 0, 1) for spread in (1e-1, 1e-3, 1e-5)),
    *(('ordinary', 1, offset, 1) for offset in (1e2, 1e4)),
    *(('ordinary', 1, 0, scale) for scale in (1e-30, 1e-18, 1e6, 1e15)),
    ('clusters', 1e-3, 100, 1), ('clusters', 1e-3, 0, 1e-25), ('one cluster', 1e-3, 0, 1e15),
    ('duplicates', 1e-3, 0, 1), ('outlier', 1e-3, 0, 1)]


def embeddings(kind, spread, offset, scale, n=240, dim=24, n_classes=30, seed=0):
    """[n, dim] float32, labels [n]: classes that overlap, of points around the origin or a few points of the sphere."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(n) % n_classes)
    centres = random.normal(size=({'ordinary': 1, 'one cluster': 1}.get(kind, 4), dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    if kind == 'ordinary':
        centres *= 0
    own = (random.normal(size=(n_classes, dim))[labels] + random.normal(size=(n, dim))) / dim ** .5
    points = centres[labels % len(centres)] + spread * own
    if kind == 'duplicates':
        points[n // 3:] = points[random.integers(0, n // 3, n - n // 3)]
    if kind == 'outlier':
        points[0] = 1e6
    return ((points + offset) * scale).astype(np.float32), labels


def in_float64(points, labels, is_query=None, by_product=False):
    """
    {metric: mean} of RETRIEVAL, from float64 sums of differences, or of products, equal distances in the order of the
    gallery.
    """
    points, every, rankings = points.astype(float), np.arange(len(points)), []
    queries, gallery = (every, every) if is_query is None else (every[is_query], every[~is_query])
    for part in np.array_split(queries, -(-len(queries) // 64)):
        distances = ((points[gallery] - points[part, None]) ** 2).sum(axis=2)
        if by_product:
            distances = -(points[gallery] * points[part, None]).sum(axis=2)
        distances[gallery == part[:, None]] = np.inf                  # the query itself comes last, and is left out
        order = gallery[distances.argsort(axis=1, kind='stable')[:, :len(gallery) - (is_query is None)]]
        rankings += (labels[order] == labels[part, None]).astype(int).tolist()
    return means(RETRIEVAL, rankings)


@pytest.mark.parametrize('geometry, n_queries', [
    pytest.param(geometry, 80 * (number % 2), id=' '.join(map(str, geometry)))
    for number, geometry in enumerate(GEOMETRIES)])
def test_every_way_of_ranking_gives_the_values_of_float64(geometry, n_queries):
    points, labels = embeddings(*geometry)
    is_query = np.arange(len(points)) < n_queries if n_queries else None
    expected = in_float64(points, labels, is_query)
    assert .005 < expected['map_at_r'] < expected['mAP'] < .98
    for backend in EXACT:
        found = evaluation.compute(RETRIEVAL, torch.from_numpy(points), labels, is_query, backend=backend)
        assert found == pytest.approx(expected, abs=1e-9), backend
        short = evaluation.compute(RETRIEVAL[4:7], torch.from_numpy(points), labels, is_query, backend=backend)
        assert short == pytest.approx({name: expected[name] for name in short}, abs=1e-9), backend


@pytest.mark.parametrize('geometry, n_queries', [(('clusters', 1e-4, 0, 1), 0), (('one cluster', 1e-5, 0, 1), 80)])
def test_scores_of_a_criterion_are_decided_in_float64(geometry, n_queries):
    points, labels = embeddings(*geometry)
    is_query = np.arange(len(points)) < n_queries if n_queries else None
    expected = in_float64(points, labels, is_query, by_product=True)
    for backend in EXACT:
        found = evaluation.compute(RETRIEVAL, torch.from_numpy(points), labels, is_query, backend=backend,
                                   ranking=lambda same: (same, same))
        assert found == pytest.approx(expected, abs=1e-9), backend


@pytest.mark.parametrize('geometry', [('ordinary', 1, 0, 1e-30), ('clusters', 1e-5, 0, 1e-3), ('ordinary', 1, 100, 1)])
def test_cosines_keep_their_digits(geometry):
    points, labels = embeddings(*geometry)
    unit = points.astype(float) / np.linalg.norm(points.astype(float), axis=1, keepdims=True)
    expected = in_float64(unit, labels)
    for backend in EXACT:
        found = evaluation.compute(['c_recall@1', 'c_map_at_r', 'c_mAP'], torch.from_numpy(points), labels,
                                   backend=backend)
        assert list(found.values()) == pytest.approx(
            [expected[name] for name in ('e_recall@1', 'map_at_r', 'mAP')], abs=1e-9), backend


@pytest.mark.parametrize('kind, spread, n_queries', [
    ('clusters', 1e-4, 0), ('one cluster', 1e-5, 300), ('duplicates', 1e-2, 300)])
def test_several_tiles_and_blocks_of_collapsed_clusters(kind, spread, n_queries, monkeypatch):
    monkeypatch.setattr(counting, 'TILE', 256)
    monkeypatch.setattr(counting, 'SAMPLE', 256)
    monkeypatch.setattr(precision, 'ROWS', 256)
    for module, size in ((deciding, 1 << 13), (sorting, 1 << 17), (ranks, 1 << 17)):
        monkeypatch.setattr(module, 'CHUNK', size)
    points, labels = embeddings(kind, spread, 0, 1, n=600, dim=16, n_classes=50)
    is_query = np.arange(len(points)) < n_queries if n_queries else None
    expected = in_float64(points, labels, is_query)
    for backend in EXACT:
        found = evaluation.compute(RETRIEVAL, torch.from_numpy(points), labels, is_query, backend=backend)
        assert found == pytest.approx(expected, abs=1e-6), backend


@pytest.mark.parametrize('n_queries', [0, 450])
def test_images_with_one_embedding_rank_by_their_index_whatever_the_last_digits_of_products(n_queries, monkeypatch):
    """Products of identical rows differ in their last digit, as those of some processors' BLAS do; embeddings that
    images of one class share, that classes share, and of one class that shares none."""
    monkeypatch.setattr(counting, 'TILE', 256)
    monkeypatch.setattr(counting, 'SAMPLE', 256)
    points, labels = embeddings('duplicates', 1, 0, 1, n=1150, dim=16, n_classes=100)
    points[labels == 3] = np.random.default_rng(1).normal(size=((labels == 3).sum(), 16))
    is_query = np.arange(len(points)) < n_queries if n_queries else None
    expected = in_float64(points, labels, is_query)

    def product(queries, gallery):
        scores = queries @ gallery.T
        scores[:, 1::3] *= 1 + np.finfo(np.float32).eps
        return scores

    for module in (neighbours, counting):
        monkeypatch.setattr(module, 'product', product)
    for backend in ('count', 'sort'):
        found = evaluation.compute(RETRIEVAL, torch.from_numpy(points), labels, is_query, backend=backend)
        assert found == pytest.approx(expected, abs=1e-9), backend


def test_what_all_queries_share_is_computed_before_the_threads(monkeypatch):
    places, around_their_mean = [], precision.around_their_mean
    monkeypatch.setattr(precision, 'around_their_mean', lambda *sets: (
        places.append(threading.current_thread()) or around_their_mean(*sets)))
    points, labels = embeddings('ordinary', 1, 0, 1)
    evaluation.compute(['mAP', 'h_ap'], torch.from_numpy(points), labels, backend='sort')
    assert places == [threading.main_thread()] * 2


def test_the_nearest_images_of_collapsed_clusters():
    points, labels = embeddings('clusters', 1e-6, 0, 1)
    search = neighbours.Search(torch.from_numpy(points), labels)
    for query, found in zip((3, 70), nearest(search, np.array([3, 70]), 12), strict=True):
        distances = ((points.astype(float) - points[query].astype(float)) ** 2).sum(axis=1)
        distances[query] = np.inf
        assert found.tolist() == distances.argsort(kind='stable')[:12].tolist()


@pytest.mark.parametrize('offset, scale, with_faiss', [
    (0, 1e-30, True), (0, 1e-30, False), (0, 1e15, True), (0, 1e15, False), (4096, 1, True), (4096, 1, False)])
def test_clusters_depend_on_neither_offset_nor_unit(offset, scale, with_faiss, monkeypatch):
    if not with_faiss:
        monkeypatch.setitem(__import__('sys').modules, 'faiss', None)
    generator = torch.Generator().manual_seed(0)
    points = torch.eye(8)[torch.arange(240) % 8] + .25 * torch.randn(240, 8, generator=generator)
    points = (points * 1024).round() / 1024                               # offsets round nothing
    expected, found = (clustering.kmeans(some, 8, seed=0) for some in (points, (points + offset) * scale))
    assert clustering.nmi(clustering.Contingency(expected, found)) > .99


@pytest.mark.parametrize('scale', [1e-30, 1e15])
def test_class_distances_and_spectrum_depend_on_no_unit(scale):
    points, labels = embeddings('ordinary', 1, 0, 1)
    names = ['dists@intra', 'dists@inter', 'rho_spectrum@1', 'rho_spectrum@-1']
    expected, found = (evaluation.compute(names, torch.from_numpy(points * np.float32(s)), labels) for s in (1, scale))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('dim', [48, 96])
def test_tied_distances_are_ordered_alike_by_every_backend(dim):
    """Codes of norm 1, many at the same distance: rounding favours neither positives nor others."""
    random = np.random.default_rng(0)
    labels = np.arange(2500) // 10
    codes = np.sign(random.normal(size=(250, dim)))[labels] * np.where(random.random((2500, dim)) < .25, -1, 1)
    codes = torch.tensor(codes, dtype=torch.float32)
    exact = evaluation.compute(['e_recall@1'], codes, labels, backend='sort')['e_recall@1']
    for backend in EXACT:
        found = evaluation.compute(['e_recall@1'], codes / dim ** .5, labels, backend=backend)
        assert found['e_recall@1'] == pytest.approx(exact, abs=.005), backend
