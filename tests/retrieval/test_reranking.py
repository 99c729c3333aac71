"""Re-ranking against the definitions of the papers, written as loops, and the table of a run."""
import functools
import math

import numpy as np
import pytest
import torch

from evaluation import metrics
from retrieval import actions, reranking
from tests.evaluation.test_metrics import means
from tests.helpers import after_training, folder_of, printed_metrics

SEARCHES = {'kreciprocal': reranking.KReciprocal, 'alphaqe': reranking.alpha_expanded}
NAMES = ['e_recall@1', 'r_precision', 'map_at_r', 'mAP']


def images(sizes, seed=0, dim=5, noise=0.8):
    """Embeddings of classes with so many images, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = torch.randn(len(sizes), dim, generator=generator)
    return centres[labels] + noise * torch.randn(len(labels), dim, generator=generator), labels


def squared(points):
    points = np.asarray(points, float)
    return [[float(((a - b) ** 2).sum()) for b in points] for a in points]


def jaccard_distances(points, k1, k2, weight):
    """The final distance of Zhong et al. for all pairs of points, by loops over sets."""
    original, everyone = squared(points), range(len(points))
    # each image is the nearest one of its own
    order = [[p] + sorted((g for g in everyone if g != p), key=lambda g, p=p: (original[p][g], g)) for p in everyone]
    largest = [max(row) or 1.0 for row in original]

    def reciprocal(p, k):
        return {g for g in order[p][:k + 1] if p in order[g][:k + 1]}

    encodings = []
    for p in everyone:
        near = reciprocal(p, k1)
        members = set(near)
        for q in near:
            half = reciprocal(q, round(k1 / 2))
            if 3 * len(near & half) >= 2 * len(half):
                members |= half
        weights = [math.exp(-original[p][g] / largest[p]) if g in members else 0.0 for g in everyone]
        encodings.append([weight / sum(weights) for weight in weights])
    means = []
    for p in everyone:
        friends = order[p][:k2]
        means.append([sum(encodings[g][z] for g in friends) / len(friends) for z in everyone])
    final = np.zeros((len(points), len(points)))
    for p in everyone:
        for g in everyone:
            minima = sum(map(min, means[p], means[g]))
            maxima = sum(map(max, means[p], means[g]))
            final[p, g] = weight * original[p][g] / largest[p] + (1 - weight) * (1 - minima / maxima)
    return final


def expanded_similarities(points, n, alpha, in_gallery):
    """The similarity of each expanded query of Radenović et al. with all images, by loops."""
    unit = np.asarray(points, float)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    result = np.zeros((len(unit), len(unit)))
    for q in range(len(unit)):
        others = [g for g in range(len(unit)) if g != q and in_gallery[g]]
        others.sort(key=lambda g, q=q: -float(unit[q] @ unit[g]))
        total = unit[q].copy()
        for g in others[:n]:
            total += max(float(unit[q] @ unit[g]), 0.0) ** alpha * unit[g]
        result[q] = unit @ (total / np.linalg.norm(total))
    return result


def judged(distances, labels, is_query=None, cameras=None):
    """{metric: value} of NAMES for a matrix of distances, by loops; not within the same class and camera."""
    rankings = []
    for q in range(len(labels)) if is_query is None else np.flatnonzero(is_query):
        gallery = [g for g in range(len(labels)) if g != q and (is_query is None or not is_query[g])]
        if cameras is not None:
            gallery = [g for g in gallery if (labels[g], cameras[g]) != (labels[q], cameras[q])]
        gallery.sort(key=lambda g, q=q: (distances[q][g], g))
        rankings.append([int(labels[g] == labels[q]) for g in gallery])
    return means(NAMES, rankings)


def computed(points, labels, search, is_query=None):
    return metrics.compute(NAMES, points, labels, is_query, search=search, backend='sort')


@pytest.mark.parametrize('sizes, k1, k2, weight', [
    ([6] * 8, 20, 6, 0.3), ([6] * 8, 5, 2, 0.3), ([9, 1, 4, 12, 1, 7], 7, 1, 0.1), ([3, 2], 20, 6, 0.3),
    ([5] * 6, 4, 3, 0.0), ([5] * 6, 3, 8, 1.0)])
def test_k_reciprocal_encoding_is_the_definition_of_the_paper(sizes, k1, k2, weight):
    points, labels = images(sizes)
    expected = jaccard_distances(points, k1, k2, weight)
    search = reranking.KReciprocal(points, labels, k1=k1, k2=k2, weight=weight)
    found = -search.scores(np.arange(len(labels))).numpy()
    off = ~np.eye(len(labels), dtype=bool)
    np.testing.assert_allclose(found[off], expected[off], atol=2e-6)
    assert np.isinf(np.diag(found)).all()                                 # a query is not ranked itself
    if weight:                                                            # else distances of 1 are ties
        values = computed(points, labels, functools.partial(reranking.KReciprocal, k1=k1, k2=k2, weight=weight))
        assert values == pytest.approx(judged(expected, labels))


def test_all_queries_and_gallery_images_are_encoded_and_no_others():
    """The distances are those among queries and gallery together: without another query, they change."""
    points, labels = images([8] * 7, seed=1)
    is_query = np.arange(len(labels)) % 3 == 0
    expected = jaccard_distances(points, 6, 3, 0.3)
    method = functools.partial(reranking.KReciprocal, k1=6, k2=3)
    search = method(points, labels, is_query)
    found = -search.scores(np.arange(is_query.sum())).numpy()
    np.testing.assert_allclose(found, expected[is_query][:, ~is_query], atol=2e-6)
    assert computed(points, labels, method, is_query) == pytest.approx(judged(expected, labels, is_query))
    fewer = ~is_query | (np.arange(len(labels)) < 3)                      # the first query alone
    alone = method(points[torch.from_numpy(fewer)], labels[fewer], is_query[fewer])
    assert not np.allclose(found[0], -alone.scores(np.array([0])).numpy()[0], atol=1e-3)
    # images that are neither query nor gallery change nothing
    beside, other = images([4] * 3, seed=9)
    part = method(torch.cat([points, beside]), np.concatenate([labels, other]),
                  np.concatenate([is_query, np.zeros(12, bool)]), np.concatenate([~is_query, np.zeros(12, bool)]))
    np.testing.assert_allclose(-part.scores(np.arange(is_query.sum())).numpy(), found, atol=1e-6)


@pytest.mark.parametrize('n, alpha, divided', [(3, 3.0, False), (50, 3.0, False), (4, 0.0, True), (5, 1.0, True)])
def test_alpha_query_expansion_is_the_definition_of_the_paper(n, alpha, divided):
    points, labels = images([5, 1, 8, 6, 2])
    is_query = np.arange(len(labels)) % 4 == 0 if divided else None
    in_gallery = ~is_query if divided else np.ones(len(labels), bool)
    expected = -expanded_similarities(points, n, alpha, in_gallery)
    values = computed(points, labels, functools.partial(reranking.alpha_expanded, n=n, alpha=alpha), is_query)
    assert values == pytest.approx(judged(expected, labels, is_query))


def test_images_of_the_querys_camera_are_neighbours_but_not_ranked():
    points, labels = images([6] * 8)
    cameras = np.arange(len(labels)) % 3
    pool = metrics.Pool(points, labels, cameras=cameras)
    for method, distances in (('kreciprocal', jaccard_distances(points, 5, 2, 0.3)),
                              ('alphaqe', -expanded_similarities(points, 4, 3.0, np.ones(len(labels), bool)))):
        search = functools.partial(SEARCHES[method],
                                   **{'kreciprocal': {'k1': 5, 'k2': 2, 'weight': 0.3}, 'alphaqe': {'n': 4}}[method])
        values = metrics.compute(NAMES, points, labels, pool=pool, search=search, backend='sort')
        assert values == pytest.approx(judged(distances, labels, cameras=cameras))


def test_copies_single_images_and_collapsed_embeddings_have_finite_metrics():
    points, labels = images([4, 4, 4, 1])
    for several in (torch.cat([points, points]), torch.ones(26, 5), torch.zeros(26, 5)):
        for method in SEARCHES.values():
            assert all(0 <= value <= 1 for value in computed(several, np.tile(labels, 2), method).values())
    for method in SEARCHES.values():                            # no image of the query's class; no other image
        assert all(map(math.isnan, computed(points[:2], np.arange(2), method).values()))
        assert all(map(math.isnan, computed(points[:1], labels[:1], method).values()))
    copies = torch.cat([points, points])                                  # each image and its copy are of one class
    assert computed(copies, np.tile(np.arange(13), 2), reranking.KReciprocal)['e_recall@1'] == 1


def test_the_table_of_a_run(quick, run, tmp_path, capsys):
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'nmi', '--n_epochs', '1') == 0
    folder, lines = folder_of(tmp_path), {}
    capsys.readouterr()
    assert after_training(folder) == 0
    plain = float(printed_metrics(capsys.readouterr().out)['test_map_at_r'])
    assert after_training(folder, 'rerank') == 0
    out = capsys.readouterr().out
    for line in out.splitlines():
        lines[line.split()[0]] = line.split()[1:]
    assert lines['plain'] == ['kreciprocal', 'alphaqe'] and lines['test_map_at_r'][0] == f'{plain:.4f}'
    assert {name for name in lines if name.startswith('test_')} == {'test_e_recall@1', 'test_map_at_r'}
    assert all(len(lines[name]) == 3 for name in lines if name.startswith('test_'))
    _, opt = actions.parse([str(folder), 'rerank', *'--kreciprocal_k1 9 --kreciprocal_k2 4 --kreciprocal_lambda 0.6 '
                            '--alphaqe_n 7 --alphaqe_alpha 2'.split()])
    methods = reranking.searches(opt)
    assert methods['kreciprocal'].keywords == {'k1': 9, 'k2': 4, 'weight': 0.6}
    assert methods['alphaqe'].keywords == {'n': 7, 'alpha': 2}
    for flags, message in ((['--evaluation_metrics', 'nmi'], '--evaluation_metrics, such as map_'),
                           (['beta'], 'choose from'), (['--alphaqe_n', 'all'], 'expected a whole number')):
        assert after_training(folder, 'rerank', *flags) == 2
        assert message in capsys.readouterr().err
    assert run(*quick, '--n_epochs', '0', '--loss', 'hyperbolic', '--batch_mining', 'none', '--group', 'ball') == 0
    assert after_training(folder_of(tmp_path, 'ball_s1'), 'rerank') == 2
    assert 'ranks by a distance of its own' in capsys.readouterr().err
