"""Boxes of a CSV file are cropped wherever their images are read."""
import csv
import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image

import datasets
from datasets import boxes, decoding, transforms
from datasets.boxes import Box
from retrieval import review
from tests.datasets.test_loading import photos  # noqa: F401
from tests.helpers import after_training, folder_of, manual_seed
from utilities.errors import UserError
from utilities.loading import Loader


def write_list(file, rows):
    with open(file, 'w', newline='') as opened:
        csv.writer(opened).writerows([['path', 'label', *boxes.COLUMNS], *rows])


@pytest.fixture
def scenes(tmp_path):
    """A --source_path of four photos with four boxes each, list.csv, and the same boxes as images in images/."""
    random, rows = np.random.default_rng(0), []
    for number in range(4):
        image = Image.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8))
        image.save(tmp_path / f'{number}.png')
        for box in range(4):
            left, top = random.integers(0, 40, 2).tolist()
            right, bottom = left + int(random.integers(8, 40)), top + int(random.integers(8, 20))
            rows.append([f'{number}.png', 'abcd'[box], left, top, right, bottom])
            (tmp_path / 'images' / 'abcd'[box]).mkdir(parents=True, exist_ok=True)
            image.crop((left, top, right, bottom)).save(tmp_path / 'images' / 'abcd'[box] / f'{number}.png')
    write_list(tmp_path / 'list.csv', sorted(rows, key=lambda row: (row[1], row[0])))
    return tmp_path


def test_pixels_are_those_of_pillows_crop(photos, tmp_path):                              # noqa: F811
    """Of JPEG and other files, grey, turned and transparent ones: exact, at full size, by both readers."""
    for path in photos:
        image = decoding.read_upright(path)
        for box in ((0, 0, *image.size), (3, 2, image.width // 2, image.height - 1), (1, 1, 2, 2)):
            expected, source = np.asarray(image.crop(box)), Box(path, *box, 2)
            found = np.asarray(boxes.open_photo(source))
            assert np.array_equal(found.squeeze(), expected.squeeze()), (path, box)
            assert np.array_equal(np.asarray(boxes.read_upright(source)), expected), (path, box)
            assert found.flags.c_contiguous


@pytest.mark.parametrize('augmentation', ['base', 'mlrc', 'adv'])
def test_items_are_those_of_images_that_were_cropped_before(augmentation, scenes, opt):
    """In training and evaluation."""
    flags = {'dataset': 'folder', 'source_path': str(scenes), 'augmentation': augmentation}
    whole = datasets.select(opt(**flags), 16)
    found = datasets.select(opt(csv=str(scenes / 'list.csv'), **flags), 16)
    assert whole.description['hash'] == found.description['hash']
    for one, other in ((whole.train, found.train), (whole.evaluation['test'], found.evaluation['test'])):
        assert len(one) == len(other) == 8 and one.labels.tolist() == other.labels.tolist()
        assert all(torch.equal(one[index, 5][0], other[index, 5][0]) for index in range(8))


def test_decoding_at_reduced_size_scales_the_box(tmp_path, opt):
    """Of a photo whose colours tell the place: nearly the pixels of exact decoding, from fewer decoded ones."""
    x, y = np.meshgrid(np.linspace(0, 255, 2000), np.linspace(0, 255, 1500))
    Image.fromarray(np.stack([x, y, 0 * x], axis=2).astype(np.uint8)).save(tmp_path / 'large.jpg', quality=95)
    exact, reduced = (transforms.select(opt(decode=name, augmentation='none'), 64)[0] for name in ('exact', 'fast'))
    for box in ((101, 203, 1502, 1105), (0, 0, 2000, 1500), (1999 - 640, 1499 - 640, 2000, 1500)):
        photo = boxes.open_photo(Box(tmp_path / 'large.jpg', *box, 2))
        decode_at, scales = photo.decode, []
        photo.decode = lambda scale: scales.append(scale) or decode_at(scale)              # noqa: B023
        images = []
        for pipeline in (exact, reduced):
            manual_seed(0)
            images.append(pipeline(photo))
        assert scales[0] == 1 and scales[1] > 1
        assert (images[0] - images[1]).abs().max() < 2.5 / 255    # JPEG's rounding; 1 / 255 of the width are 8 pixels
    tiny = boxes.open_photo(Box(tmp_path / 'large.jpg', 1999, 5, 2000, 7, 2))
    assert [tiny.decode(scale).size > 0 for scale in (1, 2, 4, 8)] == [True] * 4


def test_a_run_with_boxes_names_them(quick, scenes, run, tmp_path, capsys):
    """Training, resumption, embeddings, wrong labels and suspects, of several boxes in each file."""
    flags = [*quick, '--source_path', scenes, '--csv', scenes / 'list.csv', '--bs', '4', '--n_epochs', '1',
             '--evaluation_metrics', 'e_recall@1', '--label_noise', '.5', '--no_train_metrics', 'false']
    assert run(*flags) == 0 and run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    names = {f'{scenes / row[0]}[{",".join(row[2:])}]'
             for row in csv.reader((scenes / 'list.csv').read_text().splitlines()[1:])}
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'out.npz') == 0
    written = np.load(tmp_path / 'out.npz')
    assert set(written['paths'].tolist()) == names and len(np.unique(written['embeddings'], axis=0)) == 16
    text = (folder_of(tmp_path) / 'splits.yaml').read_text()
    assert sum(text.count(name) for name in names) == 4                                  # --label_noise of 8 images
    flags = ['--device', 'cpu', '--kernels', '0']
    embedded = review.embed_photos(scenes / 'list.csv', folder_of(tmp_path), flags)['photos']
    assert {str(source) for source in embedded.images.sources} == names
    assert len(np.unique(embedded.embeddings.numpy(), axis=0)) == 16


@pytest.mark.parametrize('box, sentence', [
    (('5', '5', '5', '9'), 'line 2: x1,y1,x2,y2 must be pixels with 0 <= x1 < x2 and 0 <= y1 < y2, not 5,5,5,9'),
    (('-1', '5', '8', '9'), 'line 2: x1,y1,x2,y2 must be pixels with 0 <= x1'), (('', '5', '8', '9'), 'not nothing,5'),
    (('1', 'y', '8', '9'), 'not 1,y,8,9'), (('nan', '5', '8', '9'), 'not nan,5,8,9'),
    (('5', '5', '81', '9'), r'0.png: the box x1,y1,x2,y2 = 5,5,81,9 of line 2 of the CSV file is not inside the image, '
                            'which has 80 x 60 pixels; correct the line'),
    (('5', '5', '9', '60.6'), '= 5,5,9,61 of line 2 of the CSV file is not inside'),
])
def test_boxes_that_are_refused(box, sentence, scenes, opt, capsys):
    rows = [row.split(',') for row in (scenes / 'list.csv').read_text().splitlines()[2:]]
    write_list(scenes / 'list.csv', [['0.png', 'a', *box], *rows])
    flags = opt(dataset='folder', source_path=str(scenes), csv=str(scenes / 'list.csv'))
    with pytest.raises(UserError, match=sentence):
        datasets.select(flags, 16).train[0]
    if 'inside' in sentence:
        flags.skip_bad_images = True
        data = datasets.select(flags, 16)
        assert len(data.train) == 7 and len(data.evaluation['test']) == 8
        assert '1 of 16 images cannot be read and are left out' in capsys.readouterr().out


def test_a_column_of_the_box_is_missing(scenes, opt):
    (scenes / 'list.csv').write_text('path,label,x1,y1\n0.png,a,1,2')
    with pytest.raises(UserError, match='a box needs the columns x1,y1,x2,y2; missing: x2,y2'):
        datasets.select(opt(dataset='folder', source_path=str(scenes), csv=str(scenes / 'list.csv')), 16)


def test_loaders_in_other_processes_read_boxes(scenes, opt):
    data = datasets.select(opt(dataset='folder', source_path=str(scenes), csv=str(scenes / 'list.csv')), 16)
    test = data.evaluation['test']
    loader = Loader(test, batch_size=8, num_workers=1, multiprocessing_context=multiprocessing.get_context('fork'),
                    generator=torch.Generator())
    (batch, _, _), = loader
    expected = torch.stack([test[index][0] for index in range(8)])
    assert torch.allclose(batch.float() / 255, expected, atol=1e-6)
