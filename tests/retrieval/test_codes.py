"""Short codes: each code by its definition, its ranking and re-scoring against brute force, and the table of a run."""
import csv
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from evaluation.ranking import nearest_rows
from retrieval import codes
from tests.evaluation.test_metrics import means
from tests.helpers import after_training, folder_of, printed_metrics
from utilities import plotting
from utilities.errors import UserError

METRICS = ['e_recall@1', 'map_at_r']


def points_of(n, dim, seed=0):
    """[n, dim] float32 of norm 1."""
    points = np.random.default_rng(seed).normal(size=(n, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def decoded(name, points, normalize):
    """What queries and gallery images are compared by, in float64, by the definition of each code."""
    if name == 'int8':
        rows = []
        for point in points:
            scale = np.float32(max(abs(point)) / np.float32(127))
            rows.append([float(np.float32(round(float(number / scale)) * scale)) if scale else 0. for number in point])
        return points.astype(float), np.array(rows)
    if name == 'binary':
        return (np.array([[1. if number > 0 else 0. for number in point] for point in points]),) * 2
    short = points[:, :int(name)].astype(float)
    return (short / np.linalg.norm(short, axis=1, keepdims=True) if normalize else short,) * 2


def brute_force(name, pool, n_rescored=None, normalize=True):
    """The metrics with the gallery sorted by rounded distance and index; then the first n_rescored by the true one."""
    points, rankings = pool.embeddings.numpy(), []
    queries, gallery = decoded(name, points, normalize)
    everyone = np.ones(len(points), bool)
    is_query = everyone if pool.is_query is None else pool.is_query
    in_gallery = pool.in_gallery if pool.in_gallery is not None else everyone if pool.is_query is None else ~is_query
    for q in np.flatnonzero(is_query):
        others = [j for j in np.flatnonzero(in_gallery) if j != q]
        if pool.groups is not None:
            others = [j for j in others if pool.groups[j] == pool.groups[q]]
        if pool.cameras is not None:
            others = [j for j in others if (pool.labels[j], pool.cameras[j]) != (pool.labels[q], pool.cameras[q])]
        order = sorted(others, key=lambda j: (round(float(((queries[q] - gallery[j]) ** 2).sum()), 9), j))
        if n_rescored:
            true = ((points[q].astype(float) - points.astype(float)) ** 2).sum(axis=1)
            order[:n_rescored] = sorted(order[:n_rescored], key=lambda j: (round(float(true[j]), 12), j))
        rankings.append([int(pool.labels[j] == pool.labels[q]) for j in order])
    return means(METRICS, rankings)


def measured(name, pool, n_rescored=0, normalize=True):
    code, = codes.build_codes([name], pool.embeddings.shape[1], None, normalize)
    return codes.measure(code, pool, n_rescored)


# Whole numbers: duplicates, and ties of codes, abound.
@st.composite
def pools(draw):
    n, dim = draw(st.integers(2, 20)), draw(st.integers(2, 5))
    rows = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim)
    points = torch.tensor(draw(st.lists(rows, min_size=n, max_size=n)), dtype=torch.float32)
    labels = np.unique(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), return_inverse=True)[1]
    is_query = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda q: any(q) and not all(q)))
    in_gallery = None if is_query is None or draw(st.booleans()) else np.arange(n) % 3 > 0
    groups = np.arange(n) // 7 if draw(st.booleans()) else None
    cameras = np.arange(n) % 3 if draw(st.booleans()) else None
    is_query = None if is_query is None else np.array(is_query)
    return evaluation.Pool(points, labels, is_query=is_query, in_gallery=in_gallery, groups=groups, cameras=cameras)


@settings(max_examples=40, deadline=None)
@given(pool=pools(), name=st.sampled_from(['1', '2', 'binary']), n_rescored=st.integers(1, 6))
def test_prefixes_and_signs_equal_brute_force_with_ties_and_single_images(pool, name, n_rescored):
    row = measured(name, pool, n_rescored, normalize=False)
    for front, n in (('', None), ('rescored_', n_rescored)):
        expected = brute_force(name, pool, n, normalize=False)
        assert {metric: row[front + metric] for metric in METRICS} == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize('name, n_queries', [('int8', 0), ('int8', 40), ('3', 40), ('binary', 0)])
def test_codes_of_many_images_equal_brute_force(name, n_queries, monkeypatch):
    monkeypatch.setattr(codes, 'CHUNK', 3000)                # several chunks
    labels = np.arange(150) // 5
    points = points_of(30, 12)[labels] + .6 * points_of(150, 12, seed=1)
    points[7] = points[3]
    pool = evaluation.Pool(torch.from_numpy(points), labels, is_query=np.arange(150) % 4 == 0 if n_queries else None)
    row = measured(name, pool, 20)
    assert {metric: row[metric] for metric in METRICS} == pytest.approx(brute_force(name, pool), abs=1e-12)
    again = brute_force(name, pool, 20)
    assert {metric: row[f'rescored_{metric}'] for metric in METRICS} == pytest.approx(again, abs=1e-12)
    assert row['ms'] > 0 and row['rescored_ms'] > 0 and again['map_at_r'] >= row['map_at_r'] - 1e-12


def test_all_images_re_scored_have_the_metrics_of_the_embeddings():
    labels = np.arange(60) // 4
    pool = evaluation.Pool(torch.from_numpy(points_of(15, 8)[labels] + points_of(60, 8, seed=1)), labels)
    expected = evaluation.compute(METRICS, pool.embeddings, labels)
    for name in ('8', '2', 'int8', 'binary'):
        row = measured(name, pool, 1000)
        assert {metric: row[f'rescored_{metric}'] for metric in METRICS} == pytest.approx(expected, abs=1e-12)
    assert measured('8', pool)['map_at_r'] == expected['map_at_r']


def test_int8_is_within_half_a_step_and_reads_its_rows_as_embeddings():
    points = np.concatenate([points_of(9, 6), np.zeros((1, 6), np.float32), 1e30 * points_of(2, 6),
                             1e-30 * points_of(1, 6)])
    stored = codes.to_int8(points)
    read = codes.Int8(stored)
    assert stored.dtype == np.uint8 and stored.shape == (13, 10) and read.shape == (13, 6) and len(read) == 13
    steps = abs(points.astype(float)).max(axis=1, keepdims=True) / 127
    assert (abs(np.asarray(read) - points.astype(float)) <= .5001 * steps).all() and not read[9].any()
    assert read[2].shape == (6,) and np.array_equal(read[2], np.asarray(read)[2])
    assert np.array_equal(read[np.array([4, 1])], np.asarray(read)[[4, 1]]) and read[3:5].dtype == np.float32
    assert np.array_equal(codes.to_int8(np.asarray(read))[:, :6], stored[:, :6])


@pytest.mark.parametrize('has_faiss', [True, False])
def test_the_timed_searches_find_the_nearest(has_faiss, monkeypatch):
    if has_faiss:
        pytest.importorskip('faiss')
    else:
        monkeypatch.setitem(sys.modules, 'faiss', None)
    monkeypatch.setattr(nearest_rows, 'ROWS', 40)
    points = points_of(100, 12)
    for code in codes.build_codes(['12', '4', 'int8', 'binary'], 12, points, normalize=True):
        find, gallery = code.prepare(code.encode(points)), np.asarray(code.decode(code.encode(points)))
        asked = code.as_query(points[:10])
        found = ((asked[:, None] - gallery.astype(float)) ** 2).sum(axis=2)
        rows = find(asked, 5)
        assert rows.shape == (10, 5) and code.encode(points).nbytes == 100 * code.n_bytes
        np.testing.assert_allclose(np.take_along_axis(found, rows, 1), np.sort(found, axis=1)[:, :5], atol=1e-5)


def test_product_quantisation_takes_the_nearest_centroid_of_each_part_and_keeps_the_query():
    faiss = pytest.importorskip('faiss')
    labels = np.arange(300) // 3
    points = points_of(100, 8)[labels] + .3 * points_of(300, 8, seed=1)
    code, = codes.build_codes(['pq2'], 8, points_of(400, 8, seed=2))
    stored = code.encode(points)
    index = code.encode.__self__
    centroids = faiss.vector_to_array(index.pq.centroids).reshape(2, 256, 4)
    for part in range(2):
        own = points[:, 4 * part:4 * part + 4]
        squared = ((own[:, None] - centroids[part]) ** 2).sum(axis=2)
        np.testing.assert_allclose(squared[np.arange(300), stored[:, part]], squared.min(axis=1), atol=1e-6)
    gallery = np.hstack([centroids[part][stored[:, part]] for part in range(2)]).astype(float)
    row = codes.measure(code, evaluation.Pool(torch.from_numpy(points), labels))
    rankings = []
    for q in range(300):
        squared = ((points[q] - gallery) ** 2).sum(axis=1)
        order = sorted(set(range(300)) - {q}, key=lambda j: (round(float(squared[j]), 7), j))       # noqa: B023
        rankings.append([int(labels[j] == labels[q]) for j in order])
    assert {metric: row[metric] for metric in METRICS} == pytest.approx(means(METRICS, rankings), abs=2e-3)
    assert stored.dtype == np.uint8 and stored.shape == (300, 2) and row['bytes'] == 2


@pytest.mark.parametrize('names, sentence', [
    (['13'], 'codes 13: the embeddings have 12 dimensions; give at most 12 dimensions'),
    (['pq5'], 'codes pq5: the embeddings have 12 dimensions; give a divisor of 12 after pq'),
    (['pq4'], 'codes pq4: product quantisation is fitted to 256 training images or more, and there are 50'),
])
def test_codes_that_embeddings_cannot_have_are_refused(names, sentence):
    with pytest.raises(UserError, match=sentence):
        codes.build_codes(names, 12, points_of(50, 12))


def test_the_table_of_a_run(quick, run, tmp_path, capsys, monkeypatch):
    assert run(*quick, '--n_epochs', '1', '--matryoshka', '4', '16', '--evaluation_metrics',
               *METRICS) == 0
    folder, drawn, write = folder_of(tmp_path), [], plotting.save
    monkeypatch.setattr(plotting, 'save', lambda figure, file: drawn.append(figure) or write(figure, file))
    capsys.readouterr()
    assert after_training(folder, 'codes', '16', '4', 'int8', 'binary', '--rescore', '5') == 0
    out = capsys.readouterr().out
    with open(folder / 'codes_test.csv', newline='') as file:
        rows = {row['code']: row for row in csv.DictReader(file)}
    assert [*rows] == ['16', '4', 'pca4', 'int8', 'binary'] and (folder / 'codes_test.png').exists()
    assert [row['bytes'] for row in rows.values()] == ['64', '16', '16', '20', '2']
    assert 'test: 36 images, embeddings of 16 dimensions; re-scored: the 5 nearest by the code' in out
    line, = [line.split() for line in out.splitlines() if line.startswith('pca4')]
    assert line[1:4] == ['16', *(f'{100 * float(rows["pca4"][metric]):.2f}' for metric in METRICS)]
    figure, = drawn
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        'prefix', 'PCA', 'int8', 'binary', 're-scored']
    for name, flags in (('16', []), ('pca4', ['--pca', '4'])):
        assert run('--evaluate', folder / 'checkpoint_last.pt', *flags) == 0
        printed = printed_metrics(capsys.readouterr().out)
        assert [printed[f'test_{metric}'] for metric in METRICS] == [rows[name][metric] for metric in METRICS]
    assert after_training(folder, 'codes', '8', 'binary', '--rescore', '0') == 0
    assert 're-scored' not in capsys.readouterr().out
    for names, sentence in ((['int4'], 'codes int4: unknown; give a number of dimensions, int8, binary, or pq and'),
                            (['32'], 'codes 32: the embeddings have 16 dimensions; give at most 16 dimensions')):
        assert after_training(folder, 'codes', *names) == 2
        assert sentence in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, 'faiss', None)
    assert after_training(folder, 'codes', 'pq4') == 2
    assert 'codes pq4: product quantisation needs faiss: pip install faiss-cpu' in capsys.readouterr().err


def test_a_loss_with_a_distance_of_its_own_is_refused(quick, run, tmp_path, capsys):
    assert run(*quick, '--n_epochs', '0', '--loss', 'hyperbolic', '--batch_mining', 'none') == 0
    assert after_training(folder_of(tmp_path), 'codes', '8') == 2
    assert 'codes: --loss hyperbolic ranks by a distance of its own' in capsys.readouterr().err
