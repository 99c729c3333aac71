"""Sampler files that others copy: alone in a folder, with torch only, each imports and runs its example."""
import subprocess
import sys
from pathlib import Path

import pytest

import datasampler

ALONE = ('class_random', 'full_random', 'image_random')
SCRIPT = """
import doctest, importlib, sys
import torch
sys.modules['utilities'] = sys.modules['datasampler'] = None
sys.path.insert(0, '.')
for name in sys.argv[1:]:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed, (name, found)
"""


def test_copied_alone_they_import_and_run_their_examples(tmp_path):
    files = [Path(datasampler.SAMPLERS[name].__file__) for name in ALONE]
    for file in files:
        (tmp_path / file.name).write_text(file.read_text())
    done = subprocess.run([sys.executable, '-I', '-c', SCRIPT, *(file.stem for file in files)], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize('name', ALONE)
def test_an_error_of_a_bug_is_no_sentence(name, opt, monkeypatch):
    monkeypatch.setattr(datasampler.SAMPLERS[name], 'Sampler', lambda *_: int('x'))
    with pytest.raises(ValueError, match='invalid literal'):
        datasampler.select(opt(data_sampler=name), type('Images', (), {'image_dict': {}, 'image_list': []}))
