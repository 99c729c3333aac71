"""Images of more than 8 bits per channel, in forms in which other programs write them, against 8-bit originals."""
import io
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import datasets
from datasets import decoding
from tests.helpers import folder_of
from utilities.errors import UserError


def as_png(values, clear=()):
    """
    A PNG file of 16 bits per channel, as OpenCV and libpng write it. values: uint16 [H, W, 1, 3 or 4]. clear: the
    values of a colour that is transparent.
    """
    height, width, n_channels = values.shape

    def chunk(kind, body):
        return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))

    header = struct.pack('>IIBBBBB', width, height, 16, {1: 0, 3: 2, 4: 6}[n_channels], 0, 0, 0)
    lines = b''.join(b'\0' + line.astype('>u2').tobytes() for line in values)
    transparent = chunk(b'tRNS', np.array(clear, '>u2').tobytes()) if clear else b''
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + transparent + chunk(b'IDAT', zlib.compress(lines))
            + chunk(b'IEND', b''))


def as_tiff(values):
    """A TIFF file of floats or of integers with 16 or 32 bits. values: [H, W]."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, 'TIFF')
    return file.getvalue()


def colours(values):
    return np.stack([values] * 3, axis=2)


# name: the suffix, function of a grey image, uint8 [H, W] -> file
FORMS = {
    'floats': ('.tiff', lambda grey: as_tiff((grey / 255).astype(np.float32))),
    '32 bits of 16': ('.tif', lambda grey: as_tiff(grey.astype(np.int32) * 257)),
    '16 bits, TIFF': ('.tif', lambda grey: as_tiff(grey.astype(np.uint16) * 257)),
    '16 bits, PNG': ('.png', lambda grey: as_png(grey[..., None].astype(np.uint16) * 257)),
    '16 bits, colour PNG': ('.png', lambda grey: as_png(colours(grey.astype(np.uint16) * 257))),
    'PGM': ('.pgm', lambda grey: b'P5 %d %d 65535\n' % grey.shape[::-1] + (grey.astype('>u2') * 257).tobytes()),
}
BLACK = {
    '32 bits': ('.tif', lambda grey: as_tiff(grey.astype(np.int32))),
    '16 bits of 8, TIFF': ('.tif', lambda grey: as_tiff(grey.astype(np.uint16))),
    '16 bits of 8, colour PNG': ('.png', lambda grey: as_png(colours(grey.astype(np.uint16)))),
    '16 bits of 8, opaque': ('.png', lambda grey: as_png(np.dstack([colours(grey), np.full_like(grey, 255)]))),
    '16 bits of 8, black and opaque': ('.png', lambda grey: as_png(np.dstack([colours(0 * grey.astype(np.uint16)),
                                                                              np.full(grey.shape, 65535, np.uint16)]))),
}


@pytest.fixture(scope='module')
def originals(tmp_path_factory):
    """8-bit images of 6 classes: a --source_path for --dataset folder. The brightest pixel of all is below 255."""
    folder, random = tmp_path_factory.mktemp('originals'), np.random.default_rng(0)
    for name in 'abcdef':
        (folder / 'images' / name).mkdir(parents=True)
        pattern = random.uniform(0, 250, (20, 24))
        for number in range(4):
            grey = (pattern + random.normal(0, 20, pattern.shape)).clip(0, 250).astype(np.uint8)
            Image.fromarray(grey).save(folder / 'images' / name / f'{number}.png')
    return folder


def converted(originals, folder, form):
    """The images in one of the FORMS."""
    suffix, write = (FORMS | BLACK)[form]
    for path in originals.glob('images/*/*.png'):
        place = folder / 'images' / path.parent.name / path.with_suffix(suffix).name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(write(np.asarray(Image.open(path))))
    return folder


@pytest.mark.parametrize('form', FORMS)
def test_pixels_are_those_of_8_bits(form, originals, tmp_path, opt):
    """In a data set, in training and evaluation; and alone, as photos of an index or a query are."""
    converted(originals, tmp_path, form)
    flags = {'dataset': 'folder', 'skip_bad_images': True}
    expected, found = (datasets.select(opt(source_path=str(place), **flags), 16) for place in (originals, tmp_path))
    assert expected.description['hash'] == found.description['hash']
    for one, other in ((expected.train, found.train), (expected.evaluation['test'], found.evaluation['test'])):
        assert len(one) == len(other) == 12 and len({one[i][0].sum() for i in range(12)}) > 6
        assert all(torch.equal(one[i, 3][0], other[i, 3][0]) for i in range(12))
    for path, original in zip(found.train.paths, expected.train.paths, strict=True):
        grey = np.asarray(Image.open(original))
        pixels = np.asarray(decoding.read_upright(path))
        assert np.array_equal(pixels if pixels.ndim == 2 else pixels[..., 0], grey), path
        with decoding.open_image(io.BytesIO(path.read_bytes())) as image:
            assert np.array_equal(np.asarray(decoding.upright(image).convert('L')), grey)


@pytest.mark.parametrize('form', BLACK)
def test_what_would_be_black_is_refused(form, originals, tmp_path, opt):
    """Values of 8 bits in files of 16 or 32."""
    converted(originals, tmp_path, form)
    train = datasets.select(opt(dataset='folder', source_path=str(tmp_path)), 16).train
    with pytest.raises(UserError, match=r'a/0\.\w+: not a readable image \(it would be black: .* save it with 8 bits'):
        train[0]


@pytest.mark.parametrize('values, what', [
    (np.linspace(0, 255, 480, dtype=np.float32), 'between 0 and 255'),
    (np.float32([np.nan] * 480), 'between nan and nan'),
    (np.linspace(-.1, 1, 480, dtype=np.float32), 'between -0.1 and 1'),
    (np.linspace(0, 70000, 480).astype(np.int32), 'between 0 and 70000')])
def test_other_values_are_refused(values, what, tmp_path):
    (tmp_path / 'other.tif').write_bytes(as_tiff(values.reshape(20, 24)))
    with pytest.raises(UserError, match=r'other.tif: not a readable image \(its values lie '
                                        rf'{what}; expected floats in \[0, 1\], or integers'):
        decoding.read_upright(tmp_path / 'other.tif')


def test_a_run_with_an_image_that_cannot_be_read(originals, quick, run, tmp_path, capsys):
    shutil.copytree(originals, tmp_path / 'data')
    (tmp_path / 'data' / 'images' / 'd' / 'other.png').write_bytes(b'')
    flags = [*quick, '--bs', '6', '--source_path', tmp_path / 'data']
    assert run(*flags) == 2
    assert 'other.png: not a readable image' in capsys.readouterr().err and not folder_of(tmp_path).exists()
    assert run(*flags, '--skip_bad_images', '--n_epochs', '0') == 0
    assert '1 of 25 images cannot be read' in capsys.readouterr().out


def test_transparent_colours_of_16_bits(tmp_path):
    values = np.full((4, 6, 4), 200, np.uint16)
    values[..., 3] = 255
    values[:2, :, 3] = 0
    (tmp_path / 'a.png').write_bytes(as_png(values * 257))
    assert np.unique(np.asarray(decoding.read_upright(tmp_path / 'a.png'))[:, 0, 0]).tolist() == [200, 255]


def test_black_ink_on_a_transparent_ground(tmp_path):
    values = np.zeros((4, 6, 4), np.uint16)
    values[:2, :, 3] = 65535
    (tmp_path / 'a.png').write_bytes(as_png(values))
    assert np.asarray(decoding.read_upright(tmp_path / 'a.png'))[:, 0, 0].tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize('n_channels', [1, 3])
def test_a_transparent_colour_of_16_bits(n_channels, tmp_path):
    values = np.full((4, 6, n_channels), 200 * 256 + 3, np.uint16)
    values[:2] = 100 * 256 + 7
    (tmp_path / 'a.png').write_bytes(as_png(values, clear=[100 * 256 + 7] * n_channels))
    assert np.asarray(decoding.read_upright(tmp_path / 'a.png').convert('L'))[:, 0].tolist() == [255, 255, 200, 200]
