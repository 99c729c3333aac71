"""MAP@R per test class against a loop over the images; runs that have a line are skipped."""
import shutil

import numpy as np
import pytest
from PIL import Image

from records import reading
from retrieval.loading import embed, load
from studies import class_values
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


def test_the_values_of_classes(quick, run, patterns, tmp_path, monkeypatch):
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', 'map_at_r', '--group', 'Photos_own_One') == 0
    folder, file = tmp_path / 'runs' / 'folder' / 'Photos_own_One_s1', tmp_path / 'classes.csv'
    class_values.main([str(folder), '--file', str(file)])
    (values, sizes), = class_values.read(file).values()
    paths = sorted(patterns.glob('images/*/*.png'))[36:]
    network, transform = load(folder, 'cpu')
    embeddings = embed(network, transform, [Image.open(path) for path in paths]).numpy()
    assert values == pytest.approx(map_at_r_of_classes(embeddings, np.repeat(np.arange(6), 6)), abs=6e-5)
    assert values.mean() == pytest.approx(reading.read(folder).rows[-1]['test_map_at_r'], abs=6e-5)
    assert sizes.tolist() == [6] * 6

    text = file.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(class_values, 'class_means', lambda part: (np.full(6, 2.0), np.full(6, 6)))
        with pytest.raises(UserError, match=r'MAP@R is 2\.000000 here, and 0\.\d+ in its records'):
            class_values.main([str(folder), '--file', str(tmp_path / 'other.csv')])
    shutil.rmtree(folder)                                            # its line is there, so that it is not read again
    class_values.main([str(folder), '--file', str(file)])
    assert file.read_text() == text
    with pytest.raises(UserError, match='not the folder of a run'):
        class_values.main([str(tmp_path / 'notes'), '--file', str(file)])
    for old, new, message in (('6 6 6', '6 6', '6 values for 5 classes'), ('group', 'method', 'line 2: not a line')):
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            class_values.read(file)
