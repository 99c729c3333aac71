"""Sampler files that others copy: alone in a folder, with torch only, each imports and runs its example."""
from pathlib import Path

import pytest

import datasampler
from tests.helpers import examples_alone, images_of, published


def test_copied_alone_they_import_and_run_their_examples(tmp_path):
    files = [Path(module.__file__) for module in published(datasampler.SAMPLERS).values()]
    ran = examples_alone(files, tmp_path)
    assert len(files) >= 9 and all(attempted >= 6 and failed == 0 for attempted, failed in ran.values()), ran


@pytest.mark.parametrize('name', ['class_random', 'hierarchical'])
def test_an_error_of_a_bug_is_no_sentence(name, opt, monkeypatch):
    monkeypatch.setattr(datasampler.SAMPLERS[name], 'Sampler', lambda *_: int('x'))
    with pytest.raises(ValueError, match='invalid literal'):
        datasampler.select(opt(data_sampler=name), images_of([5] * 4))
