"""--decode auto: JPEG files are decoded at reduced size in training; all other pixels are those of --decode exact."""
import numpy as np
import pytest
import torch
from PIL import Image

from datasets import decoding, image_cache, transforms
from datasets.pipeline import MARGIN, resized_by_torch

SIZE = 32


@pytest.fixture(scope='module')
def photo(tmp_path_factory):
    """A smooth JPEG photo of 300 x 200 pixels."""
    folder = tmp_path_factory.mktemp('photo')
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    noise.resize((300, 200), Image.Resampling.BICUBIC).save(folder / 'photo.JPG', 'JPEG', quality=95)
    return folder / 'photo.JPG'


def augmented(transform, path, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transform(decoding.open_photo(path))


@pytest.mark.parametrize('augmentation', ['base', 'red', 'mlrc'])
def test_evaluation_and_files_of_other_formats_are_exact(opt, photo, patterns, augmentation):
    (train, test), (auto, auto_test) = (transforms.select(opt(augmentation=augmentation, decode=decode), SIZE)
                                        for decode in ('exact', 'auto'))
    png = next(patterns.glob('images/*/*.png'))
    assert torch.equal(augmented(auto_test, photo), augmented(test, photo))
    assert torch.equal(augmented(auto, png), augmented(train, png))
    differences = [(augmented(auto, photo, seed) - augmented(train, photo, seed)).abs().mean() for seed in range(8)]
    assert 0 < max(differences) and sum(differences) / 8 < 6 / 255


def test_the_reduced_size_has_a_margin(photo):
    opened = decoding.open_photo(photo)
    decode, scales = opened.decode, []
    opened.decode = lambda scale: scales.append(scale) or decode(scale)
    for side in (47, 48, 95, 96):                                    # MARGIN * 16 = 24, in pixels of the reduced photo
        resized_by_torch(opened, (16, 16), 7, 9, side, side + 5)
    assert MARGIN == 1.5 and scales == [1, 2, 2, 4]


def test_a_region_of_the_reduced_photo_is_where_it_belongs(photo):
    """A ramp of grey from left to right, decoded at 1/2: each resized pixel has the grey of its place."""
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (200, 256, 1))
    path = photo.with_name('ramp.jpg')
    Image.fromarray(np.ascontiguousarray(ramp[..., 0])).save(path, quality=100)
    left, width = 31, 160
    found = resized_by_torch(decoding.open_photo(path), (16, 16), 11, left, 160, width)
    expected = left + (torch.arange(16) + 0.5) * width / 16 - 0.5
    assert found.shape == (1, 16, 16)
    assert (found[0].float() - expected).abs()[:, 1:-1].max() <= 2.5               # a pixel of 1/2 size is 2 greys wide


def test_cached_photos_are_resized_like_decoded_ones(opt, photo, tmp_path):
    folder = tmp_path / 'images' / 'one'
    folder.mkdir(parents=True)
    Image.open(photo).resize((60, 40)).save(folder / 'small.jpg', quality=95)       # too small for a reduced size
    flags = opt(dataset='folder', source_path=str(tmp_path), image_cache=str(tmp_path / 'cache'), decode='auto')
    path = folder / 'small.jpg'
    cached = image_cache.ImageCache(flags, [path])(path)
    auto, exact = (transforms.select(opt(decode=decode), SIZE)[0] for decode in ('auto', 'exact'))
    for seed in range(3):
        torch.manual_seed(seed)
        image = auto(cached)
        assert torch.equal(image, augmented(auto, path, seed))
    assert cached.is_jpeg and not torch.equal(image, augmented(exact, path, seed))
