"""Rows of the study and MAP@R per test class, against a loop over the images; runs that are there are skipped."""
import re
import shutil
import types

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation.embedding import Embedded
from records import reading
from reports import final_rows
from retrieval.loading import embed, load
from studies import add_runs, class_values
from utilities.errors import UserError


def map_at_r_of_classes(embeddings, labels):
    """Musgrave et al., section 3.3, image by image."""
    found = {}
    for query, own in enumerate(labels):
        others = np.array([i for i in range(len(labels)) if i != query])
        near = others[np.argsort(np.linalg.norm(embeddings[others] - embeddings[query], axis=1), kind='stable')]
        n = np.sum(labels[others] == own)
        correct = labels[near[:n]] == own
        precision = np.cumsum(correct) / np.arange(1, n + 1)
        found.setdefault(own, []).append((precision * correct).sum() / n)
    return [np.mean(found[label]) for label in sorted(found)]


def test_a_class_of_one_image_has_no_value():
    labels = np.array([0, 0, 1, 2, 2, 2])
    embeddings = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    images = types.SimpleNamespace(labels=labels, is_query=None, in_gallery=None)
    values, sizes = class_values.class_means(Embedded(torch.from_numpy(embeddings), images))
    assert sizes.tolist() == [2, 3]
    with np.errstate(invalid='ignore'):                              # 0 / 0 in the class of one image
        expected = map_at_r_of_classes(embeddings, labels)
    assert values == pytest.approx([expected[0], expected[2]])


def test_rows_and_values_of_classes(quick, run, patterns, tmp_path, monkeypatch, capsys):
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', 'map_at_r', '--group', 'Photos_own_One') == 0
    rows, file = tmp_path / 'rows', tmp_path / 'rows' / 'photos_classes.csv'
    rows.mkdir()
    folder = tmp_path / 'runs' / 'folder' / 'Photos_own_One_s1'
    recorded = reading.read(folder)
    with monkeypatch.context() as patch:                             # rows are written before values of classes
        patch.setattr(class_values, 'class_means', lambda part: (np.full(6, 2.0), np.full(6, 6)))
        add_runs.main([str(tmp_path / 'runs')], rows)                # other runs would follow
        patch.setattr(class_values, 'class_means', lambda part: (np.full(6, np.nan), np.full(6, 6)))
        add_runs.main([str(tmp_path / 'runs')], rows)
    notes = capsys.readouterr().err
    for mean in ('2.000000', 'nan'):
        assert re.search(rf'Note: .*_One_s1: MAP@R is {mean} here, and 0\.\d+ in its records', notes)
    assert not file.exists()
    add_runs.main([str(tmp_path / 'runs')], rows)
    assert 'photos.csv: 0 runs added' in capsys.readouterr().out
    known, = final_rows.read(rows / 'photos.csv')
    assert (known.group, known.seed, len(known.rows)) == ('Photos_own_One', 1, len(recorded.rows))
    assert known.rows[-1]['test_map_at_r'] == pytest.approx(recorded.rows[-1]['test_map_at_r'], abs=1e-6)

    (values, sizes), = class_values.read(file).values()
    paths = sorted(patterns.glob('images/*/*.png'))[36:]
    network, transform = load(folder, 'cpu')
    embeddings = embed(network, transform, [Image.open(path) for path in paths]).numpy()
    assert values == pytest.approx(map_at_r_of_classes(embeddings, np.repeat(np.arange(6), 6)), abs=6e-5)
    assert values.mean() == pytest.approx(recorded.rows[-1]['test_map_at_r'], abs=6e-5)
    assert sizes.tolist() == [6] * 6

    text, text_of_rows = file.read_text(), (rows / 'photos.csv').read_text()
    shutil.copytree(folder, folder.with_name('Photos_own_Two_s1'))
    shutil.rmtree(folder)
    config = folder.with_name('Photos_own_Two_s1') / 'config.yaml'
    config.write_text(config.read_text().replace('Photos_own_One', 'Photos_own_Two'))
    add_runs.main([str(tmp_path / 'runs')], rows)                    # those of the removed folder stay
    assert file.read_text().startswith(text) and file.read_text().count('Photos_own_Two,1,') == 1
    lines = (rows / 'photos.csv').read_text().splitlines()
    assert lines[:len(text_of_rows.splitlines())] == text_of_rows.splitlines()
    assert {(run.group, len(run.rows)) for run in final_rows.read(rows / 'photos.csv')} == {
        ('Photos_own_One', len(recorded.rows)), ('Photos_own_Two', len(recorded.rows))}
    (tmp_path / 'none').mkdir()
    with pytest.raises(UserError, match='no finished runs'):
        add_runs.main([str(tmp_path / 'none')], rows)
    for old, new, message in (('6 6 6', '6 6', '6 values for 5 classes'), ('group', 'method', 'line 2: not a line')):
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            class_values.read(file)
