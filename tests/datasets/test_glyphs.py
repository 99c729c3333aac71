"""The embedded data set."""
import os
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

import datasets
from datasets import glyphs
from utilities import errors


def test_glyphs_are_drawn_once_and_no_two_classes_share_an_outline(opt, monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    chosen = glyphs.letters(glyphs.font_files())
    assert len(chosen) > 600 and len({unicodedata.name(letter).split()[0] for letter in chosen}) == 5
    alike = 'A\u0391\u0410'
    kept = glyphs.distinct({letter: chosen[letter] for letter in [*alike, *list(chosen)[::24]]})
    assert 'A' in kept and not {'\u0391', '\u0410'} & set(kept)                  # Greek Alpha, Cyrillic A
    some = dict(list(kept.items())[::4])
    monkeypatch.setattr(glyphs, 'distinct', lambda letters: some)
    place = glyphs.folder()
    files = {file.relative_to(place): file.read_bytes() for file in place.glob('*/*.png')}
    assert len(files) == 20 * len(some) and all(Image.open(place / file).size == (40, 40) for file in files)
    monkeypatch.setattr(glyphs, 'render_all', None)                                # not called again
    assert glyphs.folder() == place
    monkeypatch.undo()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'again'))
    monkeypatch.setattr(glyphs, 'distinct', lambda letters: some)
    again = glyphs.folder()
    assert again.name == place.name and {file: (again / file).read_bytes() for file in files} == files
    data = datasets.select(opt(dataset='glyphs'), 32)
    assert data.train.n_classes == len(some) // 2 and 'Flip' not in repr(data.train.transform)


def test_two_processes_may_render_at_once(monkeypatch, tmp_path):
    rename = Path.rename

    def after_the_other(unfinished, path):
        (path / 'class').mkdir(parents=True)
        return rename(unfinished, path)

    monkeypatch.setattr(glyphs, 'distinct', lambda letters: {letter: letters[letter] for letter in 'AB'})
    monkeypatch.setattr(Path, 'rename', after_the_other)
    other = tmp_path / f'.glyphs.{os.getpid()}' / 'Latin_Capital_A'         # of a container with the same process id
    other.mkdir(parents=True)
    glyphs.render_all(glyphs.font_files(), tmp_path / 'glyphs')
    other.rmdir()
    other.parent.rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ['glyphs'] and (tmp_path / 'glyphs' / 'class').exists()

    def refuse(*_):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(Path, 'rename', refuse)
    with pytest.raises(errors.Unwritable, match='other: no access'):
        glyphs.render_all(glyphs.font_files(), tmp_path / 'other')

    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(glyphs.Image.Image, 'save', full)
    with pytest.raises(errors.Unwritable, match='other: its disk is full'):
        glyphs.render_all(glyphs.font_files(), tmp_path / 'other')
    assert [path.name for path in tmp_path.iterdir()] == ['glyphs']                    # nothing is left behind
