"""Short codes: their metrics against brute force over what the codes stand for, and the table of a run."""
import sys

import numpy as np
import pytest
import torch

from evaluation.ranking.neighbours import Search
from retrieval import codes, search
from tests.evaluation.test_metrics import means
from tests.helpers import after_training, folder_of, printed_metrics
from utilities.errors import UserError

METRICS = ['e_recall@1', 'map_at_r']


def points_of(n, dim, seed=0):
    """[n, dim] float32 of norm 1."""
    points = np.random.default_rng(seed).normal(size=(n, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def in_classes(n, dim, size):
    """[n, dim] float32 in classes of `size`, and their labels."""
    labels = np.arange(n) // size
    return points_of(n // size, dim)[labels] + .3 * points_of(n, dim, seed=1), labels


def nearest(queries, gallery, own, k):
    """The places in the gallery of the k nearest of each query but itself, in float64."""
    found = []
    for query, itself in zip(queries.astype(float), own, strict=True):
        squared = ((gallery.astype(float) - query) ** 2).sum(axis=1)
        order = sorted({*range(len(gallery))} - {itself}, key=lambda j: squared[j])          # noqa: B023
        found.append(order[:k])
    return found


@pytest.mark.parametrize('code', ['Flat', '5', 'SQ8', 'PQ2', 'IVF4,Flat', 'PCA3,L2norm,Flat'])
@pytest.mark.parametrize('has_queries', [False, True])
def test_a_row_is_that_of_brute_force_over_the_decoded_gallery(code, has_queries):
    pytest.importorskip('faiss')
    points, labels = in_classes(120, 8, 4)
    train = points_of(400, 8, seed=2)
    is_query = np.arange(120) % 4 == 0 if has_queries else None
    asked = Search(torch.from_numpy(points), labels, is_query)
    row = codes.measure(code, asked, train)
    dim, factory = (5, 'Flat') if code == '5' else (8, code)
    queries, gallery = asked.queries.numpy()[:, :dim], asked.gallery.numpy()[:, :dim]
    index = search.filled(factory, train[:, :dim], gallery)
    decoded = index.sa_decode(index.sa_encode(gallery))
    if factory.startswith('PCA'):                            # compared among the components
        mean = train.mean(axis=0, dtype=float)
        axes = np.linalg.svd(train - mean)[2][:3].T
        queries, decoded = ((part - mean) @ axes for part in (queries, gallery))
        queries, decoded = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (queries, decoded))
    rankings = [[int(asked.gallery_labels[j] == label) for j in order] for label, order in zip(
        asked.query_labels, nearest(queries, decoded, asked.own, 119), strict=True)]
    if code != 'IVF4,Flat':                                  # which visits one of four cells
        assert {name: row[name] for name in METRICS} == pytest.approx(means(METRICS, rankings), abs=1e-6)
        truth = nearest(asked.queries.numpy(), asked.gallery.numpy(), asked.own, 10)
        found = nearest(queries, decoded, asked.own, 10)
        recall = np.mean([len({*one} & {*other}) / 10 for one, other in zip(truth, found, strict=True)])
        assert row['recall of 10'] == pytest.approx(recall, abs=1e-6) and (recall == 1) == (code == 'Flat')
    else:
        assert .2 < row['recall of 10'] < 1
    assert row['bytes'] == {'Flat': 32, '5': 20, 'SQ8': 8, 'PQ2': 2, 'IVF4,Flat': 33, 'PCA3,L2norm,Flat': 12}[code]


@pytest.mark.parametrize('code, sentence', [
    ('13', 'codes 13: the embeddings have 12 dimensions'), ('foo', 'codes foo: could not parse index string foo'),
    ('PQ5', 'codes PQ5: The dimension of the vector .d. should be a multiple of the number of subquantizers'),
    ('PQ4', 'codes PQ4: Number of training points .50. should be at least as large as number of clusters .256.'),
    ('IVF64,SQ8', r'Number of training points \(50\)'), ('HNSW8', 'codes HNSW8: .*not implemented'),
    ('PCA24,Flat', 'codes PCA24,Flat: PCA matrix cannot output 24 dimensions from 12')])
def test_codes_that_embeddings_cannot_have_are_refused(code, sentence):
    pytest.importorskip('faiss')
    points, labels = in_classes(52, 12, 4)
    with pytest.raises(UserError, match=sentence):
        codes.measure(code, Search(torch.from_numpy(points), labels), points[:50])


def test_the_table_of_a_run(quick, run, tmp_path, capsys, monkeypatch):
    pytest.importorskip('faiss')
    assert run(*quick, '--n_epochs', '1', '--matryoshka', '4', '16', '--evaluation_metrics', *METRICS) == 0
    folder = folder_of(tmp_path)
    capsys.readouterr()
    assert after_training(folder, 'codes', '4', 'SQ8', 'PCA4,Flat') == 0
    out = capsys.readouterr().out
    names, *lines = out.partition('test: 36 queries in 36 images, embeddings of 16 dimensions\n')[2].splitlines()
    assert names.split() == ['code', 'bytes', 'recall', 'of', '10', *METRICS, 'ms']
    rows = {line.split()[0]: dict(zip(['bytes', 'recall', *METRICS], line.split()[1:], strict=False)) for line in lines}
    assert [*rows] == ['Flat', '4', 'SQ8', 'PCA4,Flat']
    assert [row['bytes'] for row in rows.values()] == ['64', '16', '16', '16'] and rows['Flat']['recall'] == '1.0000'
    for name, flags in (('Flat', []), ('PCA4,Flat', ['--pca', '4'])):
        assert run('--evaluate', folder / 'checkpoint_last.pt', *flags) == 0
        printed = printed_metrics(capsys.readouterr().out)
        assert [float(printed[f'test_{metric}']) for metric in METRICS] == pytest.approx(
            [float(rows[name][metric]) for metric in METRICS], abs=1e-4)
    for name, sentence in (('int8', 'codes int8: could not parse index string int8'),
                           ('32', 'codes 32: the embeddings have 16 dimensions')):
        assert after_training(folder, 'codes', name) == 2
        assert sentence in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, 'faiss', None)
    assert after_training(folder, 'codes', 'PQ4') == 2
    assert ': it needs faiss: pip install faiss-cpu' in capsys.readouterr().err


def test_a_loss_with_a_distance_of_its_own_is_refused(quick, run, tmp_path, capsys):
    pytest.importorskip('faiss')
    assert run(*quick, '--n_epochs', '0', '--loss', 'hyperbolic', '--batch_mining', 'none') == 0
    assert after_training(folder_of(tmp_path), 'codes', '8') == 2
    assert 'codes: --loss hyperbolic ranks by a distance of its own' in capsys.readouterr().err
