"""Random galleries of --eval_draws, against a loop over draws and queries; mINP against its formula."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from evaluation.ranking import draws
from tests.evaluation.test_cameras import in_roles
from tests.helpers import folder_of, printed_metrics, rows_of

NAMES = ['e_recall@1', 'e_recall@2', 'mAP', 'map_at_r', 'minp']


def of_query(hits):
    """NAMES of a ranking, a list of 0 and 1."""
    places = [place for place, hit in enumerate(hits, start=1) if hit]
    precisions = [sum(hits[:place]) / place for place in places]
    cut = [value for place, value in zip(places, precisions, strict=True) if place <= len(places)]
    return [max(hits[:1]), max(hits[:2]), sum(precisions) / len(places), sum(cut) / len(places),
            len(places) / places[-1]]


def loop(points, labels, is_query, in_gallery, galleries):
    """[draws, metrics]: the means over queries of each gallery."""
    means = []
    for gallery in galleries:
        found = []
        for q in np.flatnonzero(is_query):
            order = sorted(gallery, key=lambda j, q=q: (float(((points[q] - points[j]) ** 2).sum()), j))
            hits = [int(labels[j] == labels[q]) for j in order]
            if q not in gallery and any(hits):
                found.append(of_query(hits))
        means.append(np.mean(found, axis=0) if found else [np.nan] * len(NAMES))
    return np.array(means)


@settings(max_examples=60)
@given(n=st.integers(2, 30), dim=st.integers(1, 3), n_classes=st.integers(1, 6), seed=st.integers(0, 999),
       size=st.integers(1, 3), role=st.integers(0, 2))
def test_draws_equal_the_walk_through_each_ranking(n, dim, n_classes, seed, size, role):
    """Few whole numbers: ties abound. With everyone in both roles, with official roles, and with overlapping ones."""
    random = np.random.default_rng(seed)
    points = random.integers(-2, 3, (n, dim)).astype(np.float32)
    labels = random.integers(0, n_classes, n)
    roles, (is_query, in_gallery) = in_roles(points, random)[role]
    pool = evaluation.Pool(torch.from_numpy(points), labels, **dict(zip(('is_query', 'in_gallery'), roles,
                                                                          strict=True)))
    found = evaluation.compute(NAMES, pool.embeddings, labels, pool=pool, draws=(3, size), seed=seed)
    again, of_gallery = np.random.default_rng(seed), np.flatnonzero(in_gallery)
    galleries = [of_gallery[draws.draw(labels[of_gallery], size, again)] for _ in range(3)]
    means = loop(points, labels, is_query, in_gallery, galleries)
    for name, values in zip(NAMES, means.T, strict=True):
        assert found[name] == pytest.approx(values.mean(), abs=1e-12, nan_ok=True)
        assert found[f'{name}_std'] == pytest.approx(values.std(ddof=1), abs=1e-12, nan_ok=True)


def test_a_draw_has_random_images_of_each_class():
    labels = np.array([2, 0, 0, 2, 1, 2, 0, 2])
    random, seen = np.random.default_rng(0), np.zeros(8)
    for _ in range(3000):
        found = draws.draw(labels, 2, random)
        assert np.bincount(labels[found]).tolist() == [2, 1, 2] and (np.diff(found) > 0).all()
        seen[found] += 1
    np.testing.assert_allclose(seen / 3000, [1 / 2, 2 / 3, 2 / 3, 1 / 2, 1, 1 / 2, 2 / 3, 1 / 2], atol=.04)


def test_a_ranking_of_the_criterion_is_used():
    points, labels = torch.tensor([[0.], [1.], [2.], [3.], [4.], [5.]]), np.array([0, 0, 0, 1, 1, 1])
    found = [evaluation.compute(['e_recall@1'], points, labels, draws=(4, 1), ranking=ranking)['e_recall@1']
             for ranking in (None, lambda points: (points, -points))]
    assert found[0] > .7 and found[1] < .7                         # the second prefers the smallest numbers


def test_minp_by_hand():
    """Ranks 1 and 4 of 2 positives, rank 3 of a single one: (2 / 4 + 1 / 3) / 2."""
    ranks = np.array([[1., 4.], [3., np.inf]])
    assert evaluation.metrics.rank_metrics.inverse_negative_penalty(ranks, np.array([2, 1])).tolist() == [1 / 2, 1 / 3]
    points, labels, cameras = torch.arange(5.)[:, None], np.array([0, 0, 1, 0, 0]), np.array([1, 1, 1, 2, 3])
    pool = evaluation.Pool(points, labels, is_query=np.arange(5) == 0, cameras=cameras)
    found = evaluation.compute(['minp'], points, labels, pool=pool)          # the one of its camera is left out
    assert found == {'minp': 2 / 3}


def test_a_run_records_them_and_may_select_by_them(quick, run, tmp_path, capsys):
    few = ['--n_epochs', '1', '--evaluation_metrics', 'e_recall@1', 'minp', 'nmi', '--eval_draws', '4']
    assert run(*quick, *few, '--storage_metrics', 'draws_e_recall@1') == 0
    row = rows_of(folder_of(tmp_path))[-1]
    names = [name.removeprefix('test_') for name in row if name.startswith('test_')]
    assert names == ['e_recall@1', 'minp', 'nmi', 'draws_e_recall@1', 'draws_e_recall@1_std', 'draws_minp',
                     'draws_minp_std']
    assert (folder_of(tmp_path) / 'checkpoint_test_draws_e_recall@1.pt').exists()
    capsys.readouterr()
    assert run('--evaluate', folder_of(tmp_path), '--eval_draws', '1', '--eval_draw_size', '2') == 0
    printed = printed_metrics(capsys.readouterr().out)
    assert 'test_draws_minp' in printed and 'test_draws_minp_std' not in printed
    for flags, sentence in ((['--eval_draws', '3', '--eval_draw_size', '6'], 'no class of the test split has more'),
                            (['--eval_draws', '-1'], '--eval_draws: expected'),
                            (['--eval_draws', '3', '--eval_draw_size', '0'], '--eval_draw_size: expected')):
        assert run('--evaluate', folder_of(tmp_path), *flags) == 2
        assert sentence in capsys.readouterr().err
    few = ['--n_epochs', '0', '--eval_draws', '2', '--eval_draw_size', '4', '--evaluation_metrics', 'e_recall@1']
    assert run(*quick, *few, '--use_tv_split', '--tv_split_by_samples', '--eval_reference', 'train', '--splits_to_eval',
               'val', '--group', 'of_training') == 0            # galleries of training images leave all queries
    assert float(rows_of(folder_of(tmp_path, 'of_training_s1'))[0]['val_draws_e_recall@1']) > 0
    assert run(*quick, '--storage_metrics', 'draws_minp', '--evaluation_metrics', 'minp') == 2
    assert 'the level draws is not evaluated; give --eval_draws' in capsys.readouterr().err
