"""R-AUROC, the true-positive rate at a false-positive rate, OPIS and class thresholds, against loops over pairs."""
import math

import numpy as np
import pytest
import torch

import evaluation
from evaluation import rank_metrics, verification
from tests.helpers import LABELS, UNIT


@pytest.fixture
def points():
    """[90, 8] embeddings of 12 classes, one of a single image; their labels."""
    random = np.random.default_rng(0)
    labels = np.concatenate([np.arange(12), random.integers(0, 11, 78)])
    return torch.from_numpy(random.normal(size=(12, 8))[labels] + random.normal(size=(90, 8))), labels


def similarities(points, labels):
    """[(similarity, labels of both)] of all pairs of different images, in multiples of 1 / STEPS above −1."""
    unit = torch.nn.functional.normalize(points, dim=1).float().numpy()
    cosines = np.floor(unit @ unit.T * verification.STEPS + (verification.STEPS + .5))
    return [(int(cosines[i, j]), labels[i], labels[j]) for i in range(len(labels)) for j in range(i)]


def least_threshold(negatives, rate):
    """The lowest similarity that at most `rate` of the negatives reach."""
    negatives = np.array(negatives)
    return next(t for t in np.unique([0, *negatives + 1]) if np.sum(negatives >= t) <= rate * len(negatives) + 1e-9)


@pytest.mark.parametrize('rate, chunk, tile', [(.5, 200, 7), (.1, 1 << 20, 1024), (.01, 200, 7), (1e-5, 200, 7)])
def test_rates_and_thresholds_equal_loops_over_the_pairs(points, rate, chunk, tile, monkeypatch):
    monkeypatch.setattr(verification, 'CHUNK', chunk)
    monkeypatch.setattr(verification, 'TILE', tile)
    monkeypatch.setattr(verification, 'STEPS', 500)
    monkeypatch.setattr(verification, 'N_BINS', 1001)
    pairs = similarities(*points)
    positives, negatives = ([s for s, a, b in pairs if (a == b) == same] for same in (True, False))
    found = evaluation.compute([f'tpr@{rate}', f'threshold_spread@{rate}'], *points)
    least = least_threshold(negatives, rate)
    assert found[f'tpr@{rate}'] == pytest.approx(np.mean([s >= least for s in positives]), abs=1e-12)
    thresholds = [least_threshold([s for s, a, b in pairs if (a == c) != (b == c)], rate) for c in range(12)]
    distances = [math.sqrt(max(0, 2 - 2 * (t / 500 - 1))) for t in thresholds]
    assert found[f'threshold_spread@{rate}'] == pytest.approx(np.std(distances), abs=1e-12)


def test_opis_equals_its_definition(points, monkeypatch):
    monkeypatch.setattr(verification, 'TILE', 7)
    embeddings, labels = points
    unit = torch.nn.functional.normalize(embeddings, dim=1).double().numpy()
    i, j = np.tril_indices(90, -1)
    distances = np.linalg.norm(unit[i] - unit[j], axis=1)
    negatives = [s for s, a, b in similarities(*points) if a != b]
    low, high = (math.sqrt(2 - 2 * (least_threshold(negatives, rate) / verification.STEPS - 1)) for rate in (.01, .1))
    variances = []
    for d in np.linspace(low, high, 101):
        utilities = []
        for c in range(11):                                # the last class has one image
            of_first, of_second = labels[i] == c, labels[j] == c
            sensitivity = np.mean(distances[of_first & of_second] <= d)
            specificity = np.mean(distances[of_first != of_second] > d)
            utilities.append(2 * sensitivity * specificity / (sensitivity + specificity))
        variances.append(np.var(utilities))
    assert evaluation.compute(['opis'], *points)['opis'] == pytest.approx(np.mean(variances), abs=1e-9)


def test_the_utilities_of_six_points():
    pairs = verification.Pairs(UNIT, LABELS.numpy())
    assert verification.utilities(pairs, np.linspace(.5, 1, 101)).var(axis=0).mean() == pytest.approx(.194700, abs=1e-6)


def test_thresholds_do_not_depend_on_norms_or_order(points):
    embeddings, labels = points
    names = ['tpr@0.1', 'opis', 'threshold_spread@0.05', 'c_opis']
    found = evaluation.compute(names, embeddings, labels)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    scaled = (embeddings * torch.linspace(1, 5, 90)[:, None])[order]
    assert evaluation.compute(names, scaled, labels[order.numpy()]) == pytest.approx(found, abs=1e-9)
    assert found['c_opis'] == pytest.approx(found['opis'], abs=1e-12)


@pytest.mark.parametrize('labels', [[0] * 6, range(6)])
def test_without_pairs_of_one_kind_nothing_is_defined(labels):
    values = evaluation.compute(['tpr@0.1', 'opis', 'r_auroc'], UNIT, np.array(labels))
    assert all(math.isnan(value) for value in values.values())


@pytest.mark.parametrize('share, noise', [(1, 0), (1, 1e-5), (.5, 0)])
def test_opis_is_not_defined_where_images_of_different_classes_coincide(points, share, noise, capsys):
    """All embeddings, or half of them, are one point, exactly or but for noise that float32 cosines do not show."""
    embeddings, labels = points
    same = torch.arange(len(labels)) < share * len(labels)
    embeddings = torch.where(same[:, None], embeddings[:1] + noise * embeddings, embeddings)
    assert math.isnan(evaluation.compute(['opis'], embeddings, labels)['opis'])
    assert 'Note: opis is not defined (nan): more than 1% of the pairs of two classes' in capsys.readouterr().err


def test_opis_is_defined_where_few_images_coincide(points, capsys):
    embeddings, labels = points
    embeddings = torch.cat([embeddings, embeddings[:1]])
    assert 0 < evaluation.compute(['opis'], embeddings, np.append(labels, 5))['opis'] < 1
    assert not capsys.readouterr().err


def test_r_auroc_equals_its_definition(points):
    assert rank_metrics.auroc(-np.array([.6, .1, .5, .4, .4, .2]), np.array([1, 1, 1, 1, 0, 0])) == .3125
    embeddings, labels = points
    norms = np.round(np.random.default_rng(1).random(90), 1)                   # with ties
    pool = evaluation.Pool(embeddings, labels, norms=norms)
    for name, space in (('r_auroc', embeddings), ('c_r_auroc', torch.nn.functional.normalize(embeddings, dim=1))):
        distances = torch.cdist(space, space).fill_diagonal_(math.inf)
        correct = labels[distances.argmin(dim=1)] == labels
        queries = [i for i in range(90) if (labels == labels[i]).sum() > 1]
        scores = [(norms[i] > norms[j]) + (norms[i] == norms[j]) / 2
                  for i in queries if correct[i] for j in queries if not correct[j]]
        assert evaluation.compute([name], embeddings, labels, pool=pool)[name] == pytest.approx(np.mean(scores))
    own = evaluation.compute(['c_r_auroc'], embeddings, labels)
    pool = evaluation.Pool(embeddings, labels, norms=embeddings.norm(dim=1).numpy())
    assert own == evaluation.compute(['c_r_auroc'], embeddings, labels, pool=pool)
