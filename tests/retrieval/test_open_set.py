"""Unknown classes: the metrics, the gallery and the threshold against loops over queries; the command."""
import argparse
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval
from evaluation.embedding import Embedded
from retrieval import identification, open_set
from retrieval.identification import Answers
from tests.helpers import after_training, folder_of, printed_metrics

METRICS, AT_THRESHOLD = identification.METRICS, identification.AT_THRESHOLD


def answers_of(similarity, is_known, is_right, labels):
    is_known = np.array(is_known, bool)
    return Answers(np.array(similarity, float), is_known, is_known & np.array(is_right, bool), np.array(labels))


def brute_force(found, threshold):
    """The definitions of docs/protocols.md in loops; thresholds are tried one by one."""
    queries = list(zip(found.similarity.tolist(), found.is_known, found.is_right, found.labels, strict=True))
    known, unknown = ([query for query in queries if query[1] == side] for side in (True, False))

    def rate(queries, accepted):
        return sum(map(accepted, queries)) / len(queries) if queries else np.nan

    def fpir(least):
        return rate(unknown, lambda query: query[0] >= least)

    def fnir(least):
        return rate(known, lambda query: not (query[0] >= least and query[2]))

    def beats(query, other, must_be_right):
        return (query[0] > other[0]) + (query[0] == other[0]) / 2 if query[2] or not must_be_right else 0

    def over_classes(queries, is_good):
        rates = [rate([query for query in queries if query[3] == label], is_good) for label in {q[3] for q in queries}]
        return np.mean(rates) if rates else np.nan

    steps = sorted({q[0] for q in queries} | {np.nextafter(q[0], np.inf) for q in queries})
    pairs = [(one, other) for one in known for other in unknown]
    values = {name: np.mean([beats(*pair, right) for pair in pairs]) if pairs else np.nan
              for name, right in (('os_auroc', False), ('os_oscr', True))}
    reached = [least for least in steps if rate(known, lambda q: q[0] >= least) >= .95 - 1e-12]      # noqa: B023
    values['os_fpr@0.95'] = fpir(max(reached)) if reached else np.nan
    for limit in (.01, .1):
        low = [least for least in steps if fpir(least) <= limit + 1e-12]
        values[f'os_fnir@{limit}'] = fnir(min(low)) if unknown else np.nan
    values |= {'os_fpir': fpir(threshold), 'os_fnir': fnir(threshold),
               'os_baks': over_classes(known, lambda q: q[2] and q[0] >= threshold),
               'os_baus': over_classes(unknown, lambda q: q[0] < threshold)}
    return values | {'os_gm': (values['os_baks'] * values['os_baus']) ** .5}


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans(), st.integers(0, 5)), min_size=1,
                max_size=60), st.integers(0, 12))
def test_metrics_equal_loops_with_ties_single_images_and_empty_groups(queries, threshold):
    """Few levels of similarity, so that many are equal to each other and to the threshold."""
    similarity, is_known, is_right, labels = zip(*queries, strict=True)
    found = answers_of(np.array(similarity) / 8, is_known, is_right, labels)
    values = {name: metric(found) for name, metric in METRICS.items()}
    values |= {name: metric(found, threshold / 8) for name, metric in AT_THRESHOLD.items()}
    assert values == pytest.approx(brute_force(found, threshold / 8), abs=1e-12, nan_ok=True)


class Images(argparse.Namespace):
    """What an ImageSet says of its images."""

    def __len__(self):
        return len(self.labels)


def images_of(labels, is_query=None, in_gallery=None):
    everyone = np.ones(len(labels), bool)
    is_query = everyone if is_query is None else np.array(is_query)
    if in_gallery is None:
        in_gallery = everyone if is_query.all() else ~is_query
    return Images(labels=np.array(labels), is_query=is_query, in_gallery=np.array(in_gallery))


def random_part(seed, sizes=(7, 1, 4, 2, 5, 6), ranking=None, is_query=None):
    """An Embedded on a coarse grid, so that several distances are equal and some images are copies."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    points = random.integers(-1, 2, (len(labels), 3)) / 2 + np.eye(6)[labels][:, :3]
    return Embedded(torch.from_numpy(points).float(), images_of(labels, is_query), ranking)


def nearest_of(points, query, gallery, by_ranking):
    """The similarity and the index of the nearest image of `gallery`; −inf and None where it is empty."""
    scores = [points[query] @ points[j] if by_ranking else 1 - ((points[query] - points[j]) ** 2).sum() / 2
              for j in gallery]
    best = max(range(len(gallery)), key=lambda place: (scores[place], -gallery[place]), default=None)
    return (-np.inf, None) if best is None else (scores[best], gallery[best])


@pytest.mark.parametrize('by_ranking, share, seed', [(False, 0, 0), (False, .3, 1), (False, .7, 2), (False, .3, 3),
                                                     (True, .3, 0), (True, .7, 1), (True, 0, 2)])
def test_answers_equal_a_loop_over_queries(by_ranking, share, seed, monkeypatch):
    ranking = (lambda points: (points, points)) if by_ranking else None
    part = random_part(seed, ranking=ranking)
    labels, points = part.images.labels, part.embeddings.double().numpy()
    is_query, in_gallery = identification.divided(part.images, share, seed)
    assert not (is_query & in_gallery).any() and (is_query | in_gallery).all()
    n_known = 6 - round(6 * share)
    sizes = np.bincount(labels[in_gallery], minlength=6)
    assert (sizes > 0).sum() == n_known and all(n in (0, (m + 1) // 2) for n, m in zip(sizes, np.bincount(labels),
                                                                                      strict=True))
    monkeypatch.setattr('retrieval.identification.chunks', lambda rows, n: np.array_split(rows, 4))
    found = identification.top_answers(identification.build_search(part, share, seed))
    gallery = np.flatnonzero(in_gallery).tolist()
    for place, query in enumerate(np.flatnonzero(is_query)):
        similarity, image = nearest_of(points, query, gallery, by_ranking)
        assert found.similarity[place] == pytest.approx(similarity, abs=1e-12)
        assert found.is_right[place] == (labels[image] == labels[query]) and found.labels[place] == labels[query]
        assert found.is_known[place] == (sizes[labels[query]] > 0)


def test_a_fixed_gallery_stays_and_loses_the_unknown_classes():
    images = images_of([0, 0, 1, 1, 2, 2, 3], [True, False] * 3 + [True])
    is_query, in_gallery = identification.divided(images, 1 / 3, 0)
    assert is_query.tolist() == images.is_query.tolist() and in_gallery.sum() == 2
    assert not (in_gallery & images.is_query).any()
    listed = images_of(images.labels, images.is_query, ~images.is_query)       # a CSV names both roles of each image
    again = identification.divided(listed, 1 / 3, 0)
    assert again[0].tolist() == is_query.tolist() and again[1].tolist() == in_gallery.tolist()


def test_images_of_both_roles_are_divided_and_known_classes_keep_a_gallery():
    """Each of ten classes has two images that are queries and in the gallery, and three that are queries only."""
    labels = np.repeat(np.arange(10), 5)
    images = images_of(labels, [True] * 50, [True, True, False, False, False] * 10)
    is_query, in_gallery = identification.divided(images, .2, 0)
    sizes = np.bincount(labels[in_gallery], minlength=10)
    assert sorted(sizes) == [0] * 2 + [1] * 8 and not (in_gallery & ~images.in_gallery).any()
    assert np.array_equal(np.bincount(labels[is_query]), np.where(sizes, 4, 5)) and not (is_query & in_gallery).any()


def test_validation_classes_without_gallery_images_do_not_count():
    """A query that is never accepted since the gallery has no image of its class is not missed."""
    is_query = [True, True, False] * 3 + [True] * 6
    points = torch.eye(5)[[0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3]
    part = Embedded(points, images_of(np.repeat(range(5), 3), is_query))
    row = identification.calibrate(part, .1, 0)
    assert (row['fnir'], row['fnir_low'], row['fnir_high'], row['fpir']) == (0, 0, 0, 0) and row['threshold'] < 1


def test_distractors_stay_in_the_gallery_and_are_no_queries():
    images = images_of([0, 0, 0, 1, 1, 1, 2, 2], [True] * 6 + [False] * 2)
    images.in_gallery = np.ones(8, bool)                     # images of a plain split, and distractors
    is_query, in_gallery = identification.divided(images, .5, 0)
    assert in_gallery[6:].all() and in_gallery.sum() == 2 + 2 and (is_query == ~in_gallery).all()
    fixed = images_of([0, 0, 1, 1, 2], [True, False] * 2 + [False])
    is_query, in_gallery = identification.divided(fixed, .5, 0)
    assert in_gallery[4] and in_gallery.sum() == 2 and (is_query == fixed.is_query).all()


@pytest.mark.parametrize('seed', range(3))
def test_the_calibration_equals_searches_with_and_without_the_class(seed, monkeypatch):
    """In a loop over queries; the intervals against resamples that copy the queries of each sampled class."""
    monkeypatch.setattr(identification, 'N_RESAMPLES', 200)
    part = random_part(seed, sizes=(7, 1, 4, 2, 5, 9))
    labels, points = part.images.labels, part.embeddings.double().numpy()
    is_query, in_gallery = identification.divided(part.images, 0, seed)
    gallery = np.flatnonzero(in_gallery)
    queries, known, unknown, right = np.flatnonzero(is_query), [], [], []
    for query in queries:
        similarity, image = nearest_of(points, query, gallery, None)
        known.append(similarity)
        right.append(labels[image] == labels[query])
        unknown.append(nearest_of(points, query, gallery[labels[gallery] != labels[query]], None)[0])
    known, unknown, right = map(np.array, (known, unknown, right))
    row = identification.calibrate(part, .2, seed)
    missed = ~right | (known < row['threshold'])
    assert row['gallery_size'] == len(gallery) and row['fpir'] <= .2
    too_low = max(step for step in unknown if np.mean(unknown >= step) > .2 + 1e-9)
    assert row['threshold'] == pytest.approx(too_low, abs=1e-12)
    assert row['fpir'] == pytest.approx(np.mean(unknown >= row['threshold']))
    assert row['fnir'] == pytest.approx(np.mean(missed))
    random, values = np.random.default_rng(seed), {'threshold': [], 'fpir': [], 'fnir': []}
    classes = np.unique(labels[queries])
    for _ in range(200):
        some = np.concatenate([np.flatnonzero(labels[queries] == classes[number])
                               for number in random.integers(0, len(classes), len(classes))])
        values['threshold'].append(identification.threshold_at(unknown[some], .2))
        values['fpir'].append(np.mean(unknown[some] >= row['threshold']))
        values['fnir'].append(np.mean(missed[some]))
    for name, ends in values.items():
        assert [row[f'{name}_low'], row[f'{name}_high']] == pytest.approx(np.quantile(ends, [.025, .975]))


SHORTER = ['--evaluation_metrics', 'e_recall@1', '--n_epochs', '1']


def test_thresholds_are_printed_stored_and_used(quick, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(identification, 'N_RESAMPLES', 50)
    assert run(*quick, *SHORTER, '--use_tv_split', '--tv_split_perc', '0.5', '--bs', '6') == 0
    folder, name = folder_of(tmp_path), 'checkpoint_val_e_recall@1'
    assert after_training(folder, 'open_set', '.4') == 0
    stored, out = json.loads((folder / 'open_set.json').read_text()), capsys.readouterr().out
    printed = printed_metrics('metric' + out.partition('metric')[2].partition('classes')[0])
    assert {*printed} == {f'test_{name}' for name in [*METRICS, 'os_threshold', *AT_THRESHOLD]}
    assert all(float(value) == stored['test'][name.removeprefix('test_')] for name, value in printed.items())
    assert len(stored['test']['unknown_classes']) == 2 and stored['test']['gallery_size'] == 12
    assert stored['test']['os_threshold'] == stored['threshold']['threshold']
    network, _ = retrieval.load(folder, 'cpu')
    assert network.id == stored['network_id'] and network.open_set == stored['threshold']
    assert after_training(folder, 'open_set', '.4', '--fpir', '.3') == 0
    again = json.loads((folder / 'open_set.json').read_text())
    assert again['test']['os_auroc'] == stored['test']['os_auroc'] and again['fpir'] == .3
    assert again['test']['os_threshold'] <= stored['test']['os_threshold']
    assert after_training(folder / f'{name}.pt', 'open_set') == 0
    assert (folder / f'{name}_open_set.json').exists() and retrieval.load(folder / f'{name}.pt', 'cpu')[0].open_set
    stored = (folder / 'open_set.json').read_text()
    for flags, kind in ((['--test_start', '0'], 'test'), (['--tv_split_perc', '.3'], 'training')):
        capsys.readouterr()
        assert after_training(folder, 'open_set', *flags) == 0
        out = capsys.readouterr().out
        assert re.search(rf'No threshold: the validation split has \d {kind} classes, such as class_', out)
        assert '\nthreshold: ' not in out and out.endswith('open_set.json stays as it was\n')
        assert 'os_threshold' not in out and (folder / 'open_set.json').read_text() == stored, flags
    images = {'val': ['class_03', 'class_04'], 'test': ['class_00', 'class_07']}
    images = {split: argparse.Namespace(class_names=names) for split, names in images.items()}
    reason = open_set.no_threshold(argparse.Namespace(evaluate=folder), argparse.Namespace(evaluation=images))
    assert reason.startswith('the test split has 1 training classes, such as class_00')
    for flags, sentence in ((['.05'], 'open_set 0.05: 0 of the 6 test classes would be unknown; give a share'),
                            (['1'], 'open_set 1: 6 of the 6 test classes would be unknown'),
                            (['1.5'], 'expected a number of at least 0 and at most 1'),
                            (['--fpir', '0'], 'expected a number above 0 and at most 0.5'),
                            (['--evaluation_metrics', 'nmi'], '--evaluation_metrics has no effect')):
        assert after_training(folder, 'open_set', *flags) == 2
        assert sentence in ' '.join(capsys.readouterr().err.split())


def test_without_validation_classes_there_are_metrics_but_no_threshold(quick, run, tmp_path, capsys):
    for more, reason in (((), 'there are no validation classes'), (('--use_tv_split', '--tv_split_by_samples'),
                                                                   'the validation split has 6 training classes')):
        assert run(*quick, *SHORTER, *more, '--group', str(len(more))) == 0
        folder = folder_of(tmp_path, f'{len(more)}_s1')
        capsys.readouterr()
        assert after_training(folder, 'open_set') == 0
        printed, stored = capsys.readouterr(), json.loads((folder / 'open_set.json').read_text())
        assert reason in printed.err and reason in printed.out and reason in stored['reason']
        assert '_threshold' not in printed.out and 'os_auroc' in printed.out
        network, _ = retrieval.load(folder, 'cpu')
        assert network.open_set is None and reason in network.no_threshold


def test_a_similarity_of_its_own_gives_no_threshold_to_an_index(quick, run, tmp_path):
    assert run(*quick, *SHORTER, '--use_tv_split', '--tv_split_perc', '.5', '--bs', '6') == 0
    assert after_training(folder_of(tmp_path), 'open_set', '--pca', '4') == 0
    network, _ = retrieval.load(folder_of(tmp_path), 'cpu')
    assert network.open_set is None and 'its threshold is for --pca 4' in network.no_threshold
