"""Boxes of a CSV file are cropped wherever their images are read."""
import csv

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ExifTags, Image

import datasets
from datasets import boxes, decoding
from datasets.decoding import Box
from tests.datasets.test_loading import photos  # noqa: F401
from tests.helpers import after_training, folder_of
from utilities.errors import UserError


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
    """Of JPEG and other files, grey, turned and transparent ones: exact, at full size."""
    for path in photos:
        image = decoding.read_upright(path)
        for box in ((0, 0, *image.size), (3, 2, image.width // 2, image.height - 1), (1, 1, 2, 2)):
            expected, source = np.asarray(image.crop(box)), Box(path, *box, 2)
            assert np.array_equal(np.asarray(decoding.read_upright(source)), expected), (path, box)


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


def test_a_run_with_boxes_names_them(quick, scenes, run, tmp_path, capsys):
    """Training, resumption and embeddings, of several boxes in each file."""
    flags = [*quick, '--source_path', scenes, '--csv', scenes / 'list.csv', '--bs', '4', '--n_epochs', '1',
             '--evaluation_metrics', 'e_recall@1', '--no_train_metrics', 'false']
    assert run(*flags) == 0 and run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    names = {f'{scenes / row[0]}[{",".join(row[2:])}]'
             for row in csv.reader((scenes / 'list.csv').read_text().splitlines()[1:])}
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'out.npz') == 0
    written = np.load(tmp_path / 'out.npz')
    assert set(written['paths'].tolist()) == names and len(np.unique(written['embeddings'], axis=0)) == 16


def boxes_of(data):
    """{(name, label): box} of the training and test images."""
    return {(source.path.name, images.class_names[images.labels[i]]): tuple(source[1:5])
            for images in data.evaluation.values() for i, source in enumerate(images.sources)}


def selected(scenes, opt, table, **flags):
    """The data of a table that pandas writes."""
    table.to_csv(scenes / 'list.csv', index=False)
    return datasets.select(opt(dataset='folder', source_path=str(scenes), csv=str(scenes / 'list.csv'), **flags), 16)


@pytest.fixture
def table(scenes):
    """scenes' list as pandas reads it: photos of 80 x 60 pixels."""
    return pd.read_csv(scenes / 'list.csv')


def renamed(table, *names, sizes=False):
    """The table with other columns for the boxes; sizes: the last two are the width and height."""
    values = table[[*boxes.COLUMNS]].to_numpy(float)
    if sizes:
        values[:, 2:] -= values[:, :2]
    table = table.drop(columns=[*boxes.COLUMNS])
    return table.assign(**dict(zip(names, values.T, strict=True)))


def expected(table):
    return {(row.path, row.label): (row.x1, row.y1, row.x2, row.y2) for row in table.itertuples()}


@pytest.mark.parametrize('names, are_sizes', [
    (('xmin', 'ymin', 'xmax', 'ymax'), False), (('XMin', 'YMin', 'XMax', 'YMax'), False),
    (('x_1', 'y_1', 'x_2', 'y_2'), False), (('bbox_x1', 'bbox_y1', 'bbox_x2', 'bbox_y2'), False),
    (('left', 'top', 'right', 'bottom'), False), (('left', 'top', 'width', 'height'), True),
    (('x', 'y', 'w', 'h'), True), (('bbox_x', 'bbox_y', 'bbox_w', 'bbox_h'), True)])
def test_boxes_under_other_names(names, are_sizes, scenes, table, opt, capsys):
    found = boxes_of(selected(scenes, opt, renamed(table, *names, sizes=are_sizes)))
    assert found == expected(table)
    order = 'width, height' if are_sizes else 'right, bottom'
    assert (f'Note: --csv {scenes / "list.csv"}: boxes are read from {",".join(names)}: left, top, {order}, in pixels'
            in capsys.readouterr().out)


@pytest.mark.parametrize('names, are_sizes', [(boxes.COLUMNS, False), (('x', 'y', 'width', 'height'), True)])
def test_boxes_in_fractions_of_the_image(names, are_sizes, scenes, table, opt, capsys):
    """Of upright photos, and of one that EXIF turns."""
    turned = Image.open(scenes / '3.png').transpose(Image.Transpose.ROTATE_90)         # turned back to 80 x 60
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned.save(scenes / '3.png', exif=exif)
    fractions = table.assign(**{name: table[name] / size for name, size in zip(boxes.COLUMNS, [80, 60] * 2,
                                                                               strict=True)})
    data = selected(scenes, opt, renamed(fractions, *names, sizes=are_sizes))
    assert boxes_of(data) == expected(table)
    assert 'in fractions of the image\n' in capsys.readouterr().out
    label = data.train.class_names[data.train.labels[0]]
    whole = datasets.select(opt(dataset='folder', source_path=str(scenes)), 16)
    assert data.train.sources[0].path.name == whole.train.paths[0].name and label == whole.train.class_names[0]
    assert torch.equal(data.train[0, 5][0], whole.train[0, 5][0])


@pytest.mark.parametrize('mode', ['RGB', 'L'])               # Pillow reads uncompressed grey TIFF files in another way
@pytest.mark.parametrize('suffix', ['png', 'jpg', 'tif'])
@pytest.mark.parametrize('orientation', range(1, 9))
def test_an_image_that_exif_turns_and_its_size(orientation, suffix, mode, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = tmp_path / f'a.{suffix}'
    image = Image.linear_gradient('L').resize((30, 20)).convert(mode)
    image.save(file, exif=exif)
    size = (30, 20) if orientation < 5 else (20, 30)
    found = decoding.read_upright(file)
    assert decoding.upright_size(file) == found.size == size
    if orientation > 1:
        image = image.transpose([0, 3, 1, 5, 4, 6, 2][orientation - 2])        # of Image.Transpose
    assert np.abs(np.asarray(found).astype(int) - np.asarray(image)).max() <= 8 * (suffix == 'jpg')


def test_boxes_that_reach_beyond_their_images_are_clipped(scenes, table, opt, capsys):
    table.loc[0, ['x1', 'y1', 'x2', 'y2']] = -4, 5, 200, 60
    table.loc[1, ['x1', 'y1', 'x2', 'y2']] = 70, 50, 81, 61
    found = boxes_of(selected(scenes, opt, table))
    table.loc[0, ['x1', 'x2']] = 0, 80
    table.loc[1, ['x2', 'y2']] = 80, 60
    assert found == expected(table)
    assert ': 2 of 16 boxes reach beyond their images and are clipped\n' in capsys.readouterr().out


@pytest.mark.parametrize('box, sentence', [
    ((5, 5, 5, 9), 'line 2, columns x1,y1,x2,y2: found 5,5,5,9, expected left < right and top < bottom'),
    ((None, 5, 8, 9), 'line 2, columns x1,y1,x2,y2: found nothing,5,8,9, expected four numbers'),
    ((1, 'y', 8, 9), 'found 1,y,8,9,'), ((float('inf'), 5, 8, 9), 'found inf,5,8,9, expected four numbers'),
    ((5, 5, 6, 9), 'line 2, .*: found 5,5,6,9, expected a box of at least 2 x 2 pixels within .*0.png, which has 80 x'),
    ((80, 5, 95, 20), 'found 80,5,95,20, expected'), ((79, 5, 95, 20), 'found 79,5,95,20, expected'),
    ((.1, .1, 1.2, .9), 'found 0.1,0.1,1.2,0.9, expected .*; fractions of the image are read if all boxes lie between '
                        '0 and 1'),
    ((.1, .2, .5, .6), 'columns x1,y1,x2,y2: line 2 has fractions of the image, 0.1,0.2,0.5,0.6, but line 3 has '
                       r'\d+,\d+,\d+,\d+; expected fractions from 0 to 1 in all lines, or pixels in all'),
])
def test_boxes_that_are_refused(box, sentence, scenes, table, opt):
    table = table.astype(dict.fromkeys(boxes.COLUMNS, object))
    table.loc[0, [*boxes.COLUMNS]] = box
    with pytest.raises(UserError, match=sentence):
        selected(scenes, opt, table)


def test_an_image_that_has_become_smaller(scenes, table, opt):
    """Also where its boxes were read before, as in a long run."""
    table.loc[0, [*boxes.COLUMNS]] = 0, 0, 80, 60
    data = selected(scenes, opt, table)
    Image.new('RGB', (40, 30)).save(data.train.paths[0])
    with pytest.raises(UserError, match='0,0,80,60 of line 2 of the CSV file is not inside the image, which has 40 x'):
        data.train[0]


def test_a_column_of_the_box_is_missing(scenes, opt):
    for columns, sentence in (('x1,y1', 'a box needs the columns x1,y1,x2,y2; missing: x2,y2'),
                              ('xmin,ymin,xmax', 'needs the columns xmin,ymin,xmax,ymax; missing: ymax'),
                              ('x_center,y_center,width,height', 'not read from one column, nor by their centres'),
                              ('bbox', 'not read from one column, .*; write the columns x1,y1,x2,y2, or x,y,width')):
        (scenes / 'list.csv').write_text(f'path,label,{columns}\n0.png,a,1,2,3,4')
        with pytest.raises(UserError, match=sentence):
            datasets.select(opt(dataset='folder', source_path=str(scenes), csv=str(scenes / 'list.csv')), 16)
