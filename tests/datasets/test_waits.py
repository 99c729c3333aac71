"""The note on the time that a training loop waits for images, and the flags that it names."""
import time
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import datasets
from datasets import waits
from tests.conftest import draw_classes

NOTE = 'of the training time of epoch'


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; clock.append(seconds) moves it on."""
    moved = []
    monkeypatch.setattr(time, 'perf_counter', lambda: sum(moved))
    return moved


def slow(clock, n_batches, seconds):
    for number in range(n_batches):
        clock.append(seconds)
        yield number


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    """A --source_path with two classes of two JPEG files."""
    folder = draw_classes(tmp_path_factory.mktemp('photos') / 'images', 2, 2)
    for path in folder.glob('*/*.png'):
        Image.open(path).save(path.with_suffix('.jpg'))
        path.unlink()
    return folder.parent


def timed(clock, wait, step, n_batches=4):
    batches = waits.TimedBatches([None] * n_batches, torch.device('cpu'))
    batches.batches = slow(clock, n_batches, wait)
    for _ in batches:
        clock.append(step)
    return batches


@pytest.mark.parametrize('wait, step, share', [(1, 3, '25%'), (1, 4, None), (3, 0, '100%'), (0.2, 0.6, None)])
def test_the_note_names_the_share_of_long_epochs(clock, opt, patterns, capsys, wait, step, share):
    flags = opt(dataset='folder', source_path=str(patterns))
    batches = timed(clock, wait, step)
    assert batches.waited() == pytest.approx(4 * wait)
    for n_epochs in (1, 2):
        loader = SimpleNamespace(dataset=datasets.select(flags, 16).train, n_epochs=n_epochs)
        batches.explain(flags, loader, 7)
    error = capsys.readouterr().err
    assert error.count('\n') == bool(share)                               # nothing after the second epoch
    assert f'Note: {share} {NOTE} 7 was spent waiting for images. What may help: ' in error if share else not error


def test_the_note_names_only_flags_that_apply(clock, opt, patterns, photos, monkeypatch, tmp_path):
    monkeypatch.setattr(waits, 'n_cores', lambda: 8)
    monkeypatch.setattr('utilities.loading.n_cores', lambda: 8)

    def remedies(source, device='cpu', **flags):
        given = opt(dataset='folder', source_path=str(source), **{'decode': 'exact', 'kernels': 0} | flags)
        images = datasets.select(given, 16).train
        given.device = torch.device(device)
        return waits.remedies(given, images)

    cache = str(tmp_path)
    assert remedies(photos) == ['--kernels 8', '--image_cache FOLDER', '--decode auto']
    assert remedies(patterns) == ['--kernels 8', '--image_cache FOLDER']
    assert remedies(photos, decode='auto', kernels=8) == ['--image_cache FOLDER']
    assert remedies(photos, 'cuda', kernels=8, image_cache=cache) == ['--decode auto', '--augment_on_gpu']
    for flags in ({'randaugment': [2, 9]}, {'augment_on_gpu': True}, {'augmentation': 'characters'}):
        assert remedies(patterns, 'cuda', kernels=9, image_cache=cache, **flags) == []
    monkeypatch.setattr(waits, 'n_cores', lambda: 1)
    assert remedies(patterns) == ['--image_cache FOLDER']
    assert remedies(patterns, 'cuda', augment_on_gpu=True) == ['--kernels 1', '--image_cache FOLDER']


def test_a_run_prints_the_note_after_its_first_epoch_only(run, quick, monkeypatch, capsys):
    monkeypatch.setattr(waits, 'LEAST_SECONDS', 0)
    monkeypatch.setattr(waits, 'LEAST_SHARE', 0)
    assert run(*quick, '--no_train_metrics') == 0
    error = capsys.readouterr().err
    assert error.count(NOTE) == 1 and f'{NOTE} 1 was' in error
