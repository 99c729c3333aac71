"""The level across: rankings without the images of the query's class and group, as Market-1501 counts them."""
import csv
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluation
from datasets import splits
from datasets.base import ImageSet, ImageTable
from reports import ensembles
from tests.evaluation.test_metrics import EXACT, means, small_tiles
from tests.helpers import after_training, folder_of, rows_of

NAMES = ['e_recall@1', 'e_recall@3', 'mAP', 'map_at_r', 'mAP_trapezoid']


def trapezoids(hits):
    """The area under the precisions of a ranking as Market-1501's evaluation computes it."""
    precisions = [sum(hits[:i + 1]) / (i + 1) for i in range(len(hits))]
    return sum((before + here) / 2 for before, here, hit in zip([1, *precisions], precisions, hits, strict=False)
               if hit) / sum(hits)


def brute_force(points, labels, cameras, is_query, in_gallery):
    """NAMES of the level across, query by query, and the number of skipped queries."""
    rankings = []
    for q in np.flatnonzero(is_query):
        order = [j for j in np.flatnonzero(in_gallery) if j != q]
        order.sort(key=lambda j: (float(((points[q] - points[j]) ** 2).sum()), j))
        rankings.append([int(labels[j] == labels[q]) for j in order
                         if labels[j] != labels[q] or cameras[j] != cameras[q]])
    found = [hits for hits in rankings if any(hits)]
    areas = {'mAP_trapezoid': np.mean([trapezoids(hits) for hits in found]) if found else math.nan}
    return means(NAMES[:-1], found) | areas, len(rankings) - len(found)


def in_roles(case, random):
    """(is_query, in_gallery) of a Pool, and as arrays: everyone; queries and gallery apart; and overlapping."""
    n = len(case)
    is_query, in_gallery = random.random((2, n)) < .6
    is_query[0], in_gallery[-1] = True, True
    everyone = np.ones(n, bool)
    return [((None, None), (everyone, everyone)), ((is_query, None), (is_query, ~is_query)),
            ((is_query, in_gallery), (is_query, in_gallery))]


@settings(max_examples=50)
@given(n=st.integers(2, 30), dim=st.integers(1, 3), n_classes=st.integers(1, 6), n_cameras=st.integers(1, 4),
       seed=st.integers(0, 999), tile=st.integers(1, 9), deviations=st.sampled_from([0, 4]), role=st.integers(0, 2),
       backend=st.sampled_from(EXACT))
def test_every_backend_equals_the_walk_through_the_ranking(
        n, dim, n_classes, n_cameras, seed, tile, deviations, role, backend):
    """Few whole numbers: ties abound, as do classes of one image, of one camera, and queries without a positive."""
    random = np.random.default_rng(seed)
    points = random.integers(-2, 3, (n, dim)).astype(np.float32)
    labels, cameras = random.integers(0, n_classes, n), random.integers(0, n_cameras, n)
    roles, full = in_roles(points, random)[role]
    pool = evaluation.Pool(torch.from_numpy(points), labels, cameras=cameras,
                           **dict(zip(('is_query', 'in_gallery'), roles, strict=False)))
    expected, _ = brute_force(points, labels, cameras, *full)
    with pytest.MonkeyPatch.context() as patch:
        small_tiles(patch, tile, deviations, sample=4)
        found = evaluation.compute(NAMES, pool.embeddings, labels, pool=pool, backend=backend)
        short = evaluation.compute(NAMES[:2], pool.embeddings, labels, pool=pool, backend=backend)
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert short == pytest.approx({name: expected[name] for name in short}, nan_ok=True)


def images(classes, parts, groups, **more):
    table = ImageTable([None] * len(classes), list(classes), parts, groups=list(groups), **more)
    return ImageSet(table, range(len(classes)), None)


@pytest.mark.parametrize('parts', [None, ['query'] * 4 + ['gallery'] * 5 + ['distractor'],
                                   ['test'] * 9 + ['distractor']])
def test_skipped_queries_are_counted(parts):
    classes, groups = 'aabbcabcca', '1212112112'
    if parts:
        classes = classes[:-1] + 'x'
    part = images(classes, parts, groups)
    points = np.random.default_rng(0).normal(size=(10, 2))
    _, expected = brute_force(points, part.labels, part.groups, part.is_query, part.in_gallery)
    assert splits.lone_queries(part, part.groups) == expected
    one = np.zeros(10)
    assert splits.lone_queries(part, one) == part.is_query.sum()
    if parts:
        assert not part.is_query[-1] and part.in_gallery[-1]


def test_many_groups_and_classes_take_little_memory():
    table = ImageTable([Path(str(i)) for i in range(4000)], [str(i // 2) for i in range(4000)],
                       groups=[str(i) for i in range(4000)])
    part = ImageSet(table, range(4000), None)
    tracemalloc.start()
    assert splits.lone_queries(part, part.groups) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_distractors_are_in_the_gallery_only(opt):
    """Among test images, and in the ensembles' scores: a distractor is no query, no positive and of no cluster."""
    random = np.random.default_rng(0)
    classes, parts = [*'aabbccdd', 'none', 'none'], ['test'] * 8 + ['distractor'] * 2
    part, points = images(classes, parts, ['1'] * 10), torch.from_numpy(random.normal(size=(10, 3))).float()
    flags = opt(evaluation_metrics=['mAP', 'nmi', 'dists@intra'])
    found = ensembles.scores(flags, evaluation.embedding.Embedded(points, part))
    without = evaluation.compute(['nmi', 'dists@intra'], points[:8], part.labels[:8])
    assert {name: found[f'test_{name}'] for name in without} == without
    order = [sorted(set(range(10)) - {q}, key=lambda j: float((points[q] - points[j]).norm())) for q in range(8)]
    ranks = [1 + order[q].index(q ^ 1) for q in range(8)]
    assert found['test_mAP'] == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-6)
    assert evaluation.embedding.Embedded(points, part).search().query_index.tolist() == list(range(8))


@pytest.mark.parametrize('superclass', ['x', 'y'])
def test_distractors_are_of_no_super_class_but_in_the_gallery_of_theirs(superclass, opt):
    """As with a super-class of their own, but within a super-class."""
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 3))).float()
    flags = opt(evaluation_metrics=['mAP', 'nmi', 'h_ap', 'asi', 'ndcg'], eval_level=['class', 'parent', 'within'])
    found = []
    for name in ('none', superclass):
        above = dict(zip('abcd', 'xxyy', strict=True)) | {'0': name}
        part = images([*'0aabbccdd', *'000'], [*['distractor'], *['test'] * 8, *['distractor'] * 3], '1' * 12,
                      levels=[above])
        embedded = {'test': evaluation.embedding.Embedded(points, part)}
        found.append(evaluation.protocol.compute_metrics(flags, embedded, ['test'], flags.evaluation_metrics))
    within = [row.pop('test_within_mAP') for row in found]
    assert found[0] == found[1] and within[0] > within[1]


def test_a_run_with_cameras(quick, patterns, run, tmp_path, capsys):
    """Queries, gallery and distractors of a CSV: log.csv has the level, splits.yaml the number of skipped queries, and
    the values are those of the written embeddings. A resumed run goes on."""
    rows = []
    for file in sorted(patterns.rglob('*.png')):
        c, i = int(file.parent.name[-2:]), int(file.stem)
        part = 'train' if c < 6 else 'distractor' if c == 11 else 'query' if i % 2 else 'gallery'
        rows.append([file, 'none' if c == 11 else file.parent.name, part, i // 2 if c < 10 else 0])
    with open(tmp_path / 'list.csv', 'w', newline='') as file:
        csv.writer(file).writerows([['path', 'label', 'split', 'group'], *rows])
    flags = [*quick, '--csv', tmp_path / 'list.csv', '--evaluation_metrics', 'e_recall@1', 'nmi',
             *NAMES[1:], '--n_epochs', '1']
    assert run(*flags, '--eval_level', 'class', 'across', '--storage_metrics', 'across_mAP') == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert (folder / 'checkpoint_test_across_mAP.pt').exists()
    assert yaml.safe_load((folder / 'splits.yaml').read_text())['splits']['test']['n_lone_queries_across'] == 3
    row = rows_of(folder)[-1]
    assert 'test_across_nmi' not in row and 'test_nmi' in row
    assert after_training(folder, 'embeddings', tmp_path / 'out.npz', '--splits_to_eval', 'test') == 0
    written = np.load(tmp_path / 'out.npz')
    of_path = {str(path): (part, group) for path, _, part, group in rows}
    parts, cameras = (np.array(column) for column in zip(*(of_path[path] for path in written['paths']), strict=True))
    expected, _ = brute_force(written['embeddings'].astype(float), written['labels'], cameras, parts == 'query',
                              parts != 'query')
    assert {name: float(row[f'test_across_{name}']) for name in NAMES} == pytest.approx(expected, abs=1e-9)
    capsys.readouterr()
    assert run(*quick, '--eval_level', 'across') == 2
    assert 'has no groups (cameras, places, days) here; give --dataset folder and a --csv' in capsys.readouterr().err


@pytest.mark.parametrize('rows, sentence', [
    (['a,x,train,1', 'b,y,test,'], 'line 3: group must not be empty; give each image without a known group a value'),
    (['a,x,train,nan', 'b,y,test,1'], 'line 2: group must not be empty'),
    (['a,x,test,1', 'b,x,distractor,1'], 'line 2: the label x is also given to distractors, which are of no class'),
    (['a,x,train,1', 'b,y,distractor,1'], 'there are distractors, but no test images that they could be confused with'),
])
def test_groups_and_distractors_that_are_refused(rows, sentence, quick, run, tmp_path, capsys, patterns):
    for name in 'ab':
        (tmp_path / name).write_bytes(next(patterns.rglob('*.png')).read_bytes())
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,split,group', *rows]))
    assert run(*quick, '--csv', tmp_path / 'list.csv', '--source_path', tmp_path, '--eval_level', 'across') == 2
    assert sentence in capsys.readouterr().err
