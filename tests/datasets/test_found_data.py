"""Data in the forms in which others have them: mirrors of data sets, official parts as folders, CSV files of pandas."""
import unicodedata

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.io import savemat

import configuration
import datasets
import Result_Evaluations
from datasets.base import ImageTable
from records import run_folder
from retrieval import photos
from tests.datasets.test_datasets import select, write
from tests.helpers import after_training, folder_of
from utilities.errors import UserError


def classes_by_split(data):
    return {split: images.class_names for split, images in data.evaluation.items()}


# Cars196

MODELS = ['AM General Hummer SUV 2000', 'Acura RL Sedan 2012', 'Dodge Caliber Wagon 2012', 'Dodge Caliber Wagon 2007']


def annotations(file, images, with_classes):
    """A file of the development kit: one row of structs, whose numbers are 1 x 1 arrays and whose names are texts."""
    fields = ['bbox_x1', 'bbox_y1', 'bbox_x2', 'bbox_y2', *(['class'] if with_classes else []), 'fname']
    rows = np.empty((1, len(images)), dtype=[(name, object) for name in fields])
    for i, (name, number) in enumerate(images):
        box = [np.array([[value]], np.uint16) for value in (2, 1, 18, 14)]
        rows[0, i] = (*box, *([np.array([[number]], np.uint8)] if with_classes else []), name)
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {'annotations': rows})


def kit(root, devkit, with_meta=True, test='cars_test_annos_withlabels.mat', inner=''):
    """cars_train/ and cars_test/ with 5 and 4 images, numbered each from 1, and the development kit."""
    images = {'train': [3, 1, 4, 1, 2], 'test': [2, 4, 3, 1]}
    for part, numbers in images.items():
        listed = [(f'{i:05d}.jpg', number) for i, number in enumerate(numbers, start=1)]
        for name, number in listed:
            write(root / f'cars_{part}' / (f'cars_{part}' if inner else '') / name, 40 * number)
        if part == 'train':
            annotations(devkit / 'cars_train_annos.mat', listed, True)
        else:
            annotations(devkit / 'cars_test_annos.mat', listed, test == 'cars_test_annos.mat')
            annotations(root / test if test != 'cars_test_annos.mat' else devkit / test, listed, True)
    if with_meta:
        savemat(devkit / 'cars_meta.mat', {'class_names': np.array([MODELS], dtype=object)})


@pytest.mark.parametrize('root, devkit, more', [
    ('cars196', 'devkit', {}), ('stanford_cars', 'devkit', {}), ('cars196', '.', {}),
    ('cars196', 'devkit', {'inner': 'Kaggle'}), ('cars196', '.', {'test': 'cars_test_annos.mat'}),
    ('cars196', 'devkit', {'with_meta': False})])
def test_the_development_kit_of_cars196(root, devkit, more, opt, tmp_path):
    kit(tmp_path / root, tmp_path / root / devkit, **more)
    data = select(opt, tmp_path, 'cars196')
    names = [f'{i:03d}.{name}' for i, name in enumerate(MODELS, start=1)]
    if not more.get('with_meta', True):
        names = [name[:3] for name in names]
    assert classes_by_split(data) == {'train': names[:2], 'test': names[2:]}
    train = data.evaluation['train']
    for index, path in enumerate(train.paths):                      # the colour tells the class
        assert abs(int(np.asarray(Image.open(path))[8, 10, 0]) - 40 * (int(train.labels[index]) + 1)) < 6
    assert len(train) == 5 and len(data.evaluation['test']) == 4    # images of both parts in both


def test_a_kit_without_the_classes_of_the_test_images(opt, tmp_path):
    kit(tmp_path / 'cars196', tmp_path / 'cars196' / 'devkit')
    (tmp_path / 'cars196' / 'cars_test_annos_withlabels.mat').unlink()
    with pytest.raises(UserError, match='no classes of the images in cars_test/.*put cars_test_annos_withlabels.mat'):
        select(opt, tmp_path, 'cars196')


def test_a_kit_that_is_damaged_or_of_other_data(opt, tmp_path):
    devkit = tmp_path / 'cars196' / 'devkit'
    kit(tmp_path / 'cars196', devkit)
    annotations(devkit / 'cars_train_annos.mat', [('00001.jpg', 5)], True)
    with pytest.raises(UserError, match='cars_train_annos.mat: expected class numbers from 1 to 4, found 5'):
        select(opt, tmp_path, 'cars196')
    (devkit / 'cars_train_annos.mat').write_bytes(b'<html>404</html>')
    with pytest.raises(UserError, match='cars_train_annos.mat: not the annotations of CARS196'):
        select(opt, tmp_path, 'cars196')


@pytest.mark.parametrize('root', ['cars196', 'cars196/car_data/car_data', 'cars196/images'])
def test_cars196_in_class_folders_of_both_parts(root, opt, tmp_path):
    for part, n in (('train', 3), ('test', 2)):
        for name in MODELS:
            for i in range(n):
                write(tmp_path / root / part / name / f'{i:05d}.jpg')
    data = select(opt, tmp_path, 'cars196')
    assert classes_by_split(data) == {'train': sorted(MODELS)[:2], 'test': sorted(MODELS)[2:]}
    assert len(data.train) == len(data.evaluation['test']) == 10


# CUB200, SOP, In-Shop

@pytest.mark.parametrize('root', ['cub200', 'CUB_200_2011', 'cub200/CUB_200_2011', 'cub2011/CUB_200_2011',
                                  'CUB_200_2011/CUB_200_2011', 'cub200/CUB_200_2011/CUB_200_2011'])
def test_cub200(root, opt, tmp_path):
    names = [f'{c:03d}.Bird_{c}/Bird_{c}_{i:04d}_{1000 + i}.jpg' for c in range(1, 5) for i in (3, 1, 2)]
    for name in names:
        write(tmp_path / root / 'images' / name)
    data = select(opt, tmp_path, 'cub200')
    assert classes_by_split(data) == {'train': ['001.Bird_1', '002.Bird_2'], 'test': ['003.Bird_3', '004.Bird_4']}


def products(tmp_path, images, lists, is_flat=False, end='\r\n\r\n'):
    number = 0
    for part, first in (('train', 1), ('test', 11319)):
        lines = ['image_id class_id super_class_id path']
        for class_id in (first, first + 1):
            for i in range(2):
                number += 1
                path = f'{("bicycle", "mug")[class_id % 2]}_final/{111 + class_id}_{i}.JPG'
                lines.append(f'{number} {class_id} 1 {path}')
                write(images / (path.split('/')[1] if is_flat else path))
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f'Ebay_{part}.txt').write_text('\r\n'.join(lines) + end, newline='')


@pytest.mark.parametrize('is_flat', [False, True])
@pytest.mark.parametrize('images, lists', [('online_products/images', 'online_products/Info_Files'),
                                           ('online_products/Stanford_Online_Products',) * 2,
                                           ('Stanford_Online_Products',) * 2])
def test_online_products_with_and_without_category_folders(is_flat, images, lists, opt, tmp_path, capsys):
    products(tmp_path, tmp_path / images, tmp_path / lists, is_flat)
    (tmp_path / 'images').mkdir()                                   # of other data
    data = select(opt, tmp_path, 'online_products')
    assert classes_by_split(data) == {'train': ['00001', '00002'], 'test': ['11319', '11320']}
    assert data.evaluation['test'].superclasses == ['mug', 'bicycle'] and data.train[0][0].shape == (3, 16, 16)
    assert capsys.readouterr().out == (
        'Note: --dataset online_products: train 4 images of 2 classes, not 59,551 of 11,318; test 4 images of 2 '
        'classes, not 60,502 of 11,316: results are not comparable with published ones\n')


@pytest.mark.parametrize('dataset, size, note', [
    ('cub200', (11788, 200), ''), ('cars196', (16185, 196), ''),
    ('cub200', (6033, 200), '6,033 images of 200 classes, not 11,788 of 200'),                 # of 2010
    ('cub200', (5864, 100), '5,864 images of 100 classes, not 11,788 of 200'),
    ('cars196', (8144, 196), '8,144 images of 196 classes, not 16,185 of 196')])       # training part
def test_other_data_under_a_published_name(dataset, size, note):
    n_images, n_classes = size
    table = ImageTable([None] * n_images, [f'{i % n_classes}' for i in range(n_images)])
    assert datasets.unlike_published(dataset, table) == (
        f'{note}: results are not comparable with published ones' if note else '')


def test_other_data_are_named_in_the_run_folder_and_in_tables(quick, run, tmp_path, capsys):
    folders_of(tmp_path / 'data' / 'cub200' / 'images', ['001.a', '002.b', '003.c', '004.d'])
    assert run(*quick, '--dataset', 'cub200', '--source_path', tmp_path / 'data', '--bs', '4', '--n_epochs', '1',
               '--evaluation_metrics', 'e_recall@1') == 0
    said = '8 images of 4 classes, not 11,788 of 200: results are not comparable with published ones'
    folder = tmp_path / 'runs' / 'cub200' / 'quick_s1'
    assert run_folder.read(folder)['other_data'] == said
    capsys.readouterr()
    assert Result_Evaluations.main(['--runs', str(tmp_path / 'runs'), '--metrics', 'e_recall@1']) == 0
    assert f'- group quick: {said}\n' in capsys.readouterr().out


def test_lists_without_their_header(opt, tmp_path):
    root = tmp_path / 'Stanford_Online_Products'
    products(tmp_path, root, root)
    lines = (root / 'Ebay_test.txt').read_text().split('\n')
    (root / 'Ebay_test.txt').write_text('\n'.join(lines[1:]))
    with pytest.raises(UserError, match='Ebay_test.txt, line 1: expected the header "image_id .*found "5 11319'):
        select(opt, tmp_path, 'online_products')
    (root / 'Ebay_test.txt').write_text('\n'.join([*lines[:2], '', *lines[2:]]))
    with pytest.raises(UserError, match='Ebay_test.txt, line 3: expected 4 columns, found 0'):
        select(opt, tmp_path, 'online_products')
    (root / 'Ebay_test.txt').write_bytes(b'header\n1 2 3 \xff')
    with pytest.raises(UserError, match='Ebay_test.txt: not a text in UTF-8'):
        select(opt, tmp_path, 'online_products')
    (root / 'Ebay_test.txt').unlink()
    with pytest.raises(UserError, match='Ebay_test.txt: No such file'):
        select(opt, tmp_path, 'online_products')


CLOTHES = 'In-shop Clothes Retrieval Benchmark'
HEADER = 'image_name                  item_id   evaluation_status'


def clothes(tmp_path, rows, images='inshop/img', lists='inshop'):
    """Images and the list of In-Shop, which it returns. rows: (path, item, part)."""
    for path, _, _ in rows:
        write(tmp_path / images / path)
    (tmp_path / lists).mkdir(parents=True, exist_ok=True)
    lines = [f'img/{path}   {item}   {part}' for path, item, part in rows]
    file = tmp_path / lists / 'list_eval_partition.txt'
    file.write_text('\n'.join([str(len(rows)), HEADER, *lines, '', '', '']))
    return file


@pytest.mark.parametrize('lists, images', [('inshop', 'inshop/img'), ('inshop/Eval', 'inshop/Img/img'),
                                           (f'{CLOTHES}/Eval', f'{CLOTHES}/img')])
def test_inshop(lists, images, opt, tmp_path):
    clothes(tmp_path, [('a.jpg', 'id_1', 'train'), ('b.jpg', 'id_1', 'train'), ('c.jpg', 'id_2', 'query'),
                       ('d.jpg', 'id_2', 'gallery'), ('e.jpg', 'id_3', 'query'), ('f.jpg', 'id_4', 'gallery')],
            images, lists)
    data = select(opt, tmp_path, 'inshop')
    test = data.evaluation['test']
    assert test.is_query.tolist() == [True, False, True, False] and test.labels.tolist() == [0, 0, 1, 2]
    assert data.evaluation['train'].is_query.all() and data.evaluation['train'].in_gallery.all()
    assert data.description['splits']['test']['n_lone_queries'] == 1
    assert data.description['other_data'] == (
        'train 2 images of 1 classes, not 25,882 of 3,997; query 2 images of 2 classes, not 14,218 of 3,985; gallery '
        '2 images of 2 classes, not 12,612 of 3,985: results are not comparable with published ones')


def test_the_count_of_inshops_list(opt, tmp_path):
    file = clothes(tmp_path, [('a.jpg', 'id_1', 'train'), ('b.jpg', 'id_2', 'query')])
    lines = file.read_text().splitlines()[2:]
    for content, sentence in (
            (['52712', HEADER, *lines], 'line 1: expected 2, the number of its rows, found "52712"'),
            ([HEADER, *lines], 'line 2: expected the header "image_name item_id evaluation_status", found "img/a.jpg'),
            (['2', *lines], 'line 2: expected the header "image_name item_id evaluation_status", found "img/a.jpg'),
            ([], 'line 2: expected the header .*, found ""')):
        file.write_text('\n'.join(content))
        with pytest.raises(UserError, match=sentence):
            select(opt, tmp_path, 'inshop')


def test_inshop_at_high_resolution(opt, tmp_path, capsys):
    rows = [('WOMEN/Dresses/id_1/01_1_front.jpg', 'id_1', 'train'),
            ('WOMEN/Dresses/id_1/02_1_side.jpg', 'id_1', 'train'),
            ('MEN/Denim/id_2/01_1_front.jpg', 'id_2', 'query'), ('MEN/Denim/id_2/02_1_back.jpg', 'id_2', 'gallery')]
    clothes(tmp_path, rows, f'{CLOTHES}/Img/img_highres', f'{CLOTHES}/Eval')
    data = select(opt, tmp_path, 'inshop')
    assert data.train.paths == [tmp_path / CLOTHES / 'Img' / 'img_highres' / path for path, _, _ in rows[:2]]
    assert data.train.superclasses == ['WOMEN/Dresses']
    assert 'the photos of img_highres are read, since there is no img\n' in capsys.readouterr().out


@pytest.mark.parametrize('root', ['cars196', 'stanford_cars'])
def test_cars196_of_a_mirror_without_the_development_kit(root, opt, tmp_path):
    kit(tmp_path / root, tmp_path / root / 'devkit', inner='Kaggle')
    for file in (tmp_path / root).rglob('*.mat'):
        file.unlink()
    annotations(tmp_path / root / 'cars_annos.mat', [('000001.jpg', 1)], True)
    with pytest.raises(UserError, match='the photos in cars_train/ and cars_test/ have other numbers; put cars_meta'):
        select(opt, tmp_path, 'cars196')


@pytest.mark.parametrize('folders', [['bounding_box_test', 'bounding_box_train', 'query'], ['images'],
                                     ['Test', 'train']])
def test_the_folder_above_is_given(folders, opt, tmp_path):
    for name in folders:
        write(tmp_path / 'Market-1501-v15.09.15' / name / 'a' / '1.png')
    with pytest.raises(UserError) as caught:
        select(opt, tmp_path)
    sentence = str(caught.value)
    assert all(name in sentence for name in folders)
    assert sentence.endswith(f': give --source_path {tmp_path / "Market-1501-v15.09.15"}')


# Official parts as folders

def folders_of(root, names):
    for number, name in enumerate(names):
        for i in range(2):
            write(root / name / f'{number}_{i}.png')


@pytest.mark.parametrize('below', ['images', '.'])
@pytest.mark.parametrize('train, val', [('train', 'val'), ('Training', 'Valid'), ('TRAIN', 'validation')])
def test_folders_of_the_official_split(below, train, val, opt, tmp_path, capsys):
    folders_of(tmp_path / below, [f'{train}/owl', f'{train}/lynx', f'{val}/perch', 'test/crow', 'test/fox', 'test/owl',
                                  'lost+found'])
    data = select(opt, tmp_path)
    assert classes_by_split(data) == {'train': ['lynx', 'owl'], 'val': ['perch'], 'test': ['crow', 'fox', 'owl']}
    assert data.train.class_names == ['lynx', 'owl'] and data.train.superclass_labels is None
    assert all(train in path.parts for path in data.train.paths)
    said = capsys.readouterr().out
    assert 'official split by the folders' in said and '; --split_scheme half would split all classes' in said
    halves = select(opt, tmp_path, split_scheme='half')
    assert 'official split' not in capsys.readouterr().out
    assert classes_by_split(halves) == {'train': ['crow', 'fox'], 'test': ['lynx', 'owl', 'perch']}
    assert len(halves.evaluation['test']) == 8                             # owl's images of both folders


def test_folders_of_queries_and_gallery(opt, tmp_path):
    folders_of(tmp_path, ['train/a', 'query/b', 'query/c', 'gallery/b', 'gallery/c', 'gallery/d'])
    test = select(opt, tmp_path).evaluation['test']
    assert test.is_query.sum() == 4 and test.class_names == ['b', 'c', 'd']
    assert [path.parts[-3] == 'query' for path in test.paths] == test.is_query.tolist()
    folders_of(tmp_path, ['test/e'])
    with pytest.raises(UserError, match='the test images are marked gallery and query and test'):
        select(opt, tmp_path)


def test_super_classes_in_the_official_parts(opt, tmp_path):
    folders_of(tmp_path / 'images', ['train/birds/owl', 'train/fish/perch', 'test/birds/crow', 'test/mammals/fox'])
    data = select(opt, tmp_path)
    assert data.train.class_names == ['birds/owl', 'fish/perch'] and data.train.superclasses == ['birds', 'fish']
    assert data.evaluation['test'].superclasses == ['birds', 'mammals']


@pytest.mark.parametrize('other', ['birds/owl', 'dogs'])
def test_official_parts_beside_other_classes_are_refused(other, opt, tmp_path):
    folders_of(tmp_path / 'images', ['train/crow', 'test/fox', other])
    with pytest.raises(UserError, match=f'the folders test, train would be the official split, but '
                                        f'{other.split("/")[0]} contains images or classes, too'):
        select(opt, tmp_path)


def test_a_class_may_be_named_train(opt, tmp_path):
    folders_of(tmp_path / 'images', ['bus', 'plane', 'test', 'train'])
    assert classes_by_split(select(opt, tmp_path)) == {'train': ['bus', 'plane'], 'test': ['test', 'train']}


def test_the_test_folder_alone_is_evaluated(quick, run, tmp_path, capsys):
    folders_of(tmp_path / 'data', ['train/a', 'train/b', 'val/c', 'val/d', 'test/e', 'test/f'])
    assert run(*quick, '--source_path', tmp_path / 'data', '--bs', '4', '--n_epochs', '1',
               '--evaluation_metrics', 'e_recall@1') == 0
    folder = folder_of(tmp_path)
    header = (folder / 'log.csv').read_text().splitlines()[0]
    assert 'val_e_recall@1' in header and 'test_e_recall@1' in header
    (tmp_path / 'data' / 'train').rename(tmp_path / 'train')
    capsys.readouterr()
    assert run('--evaluate', folder, '--splits_to_eval', 'test') == 0
    assert 'Note: the data have other classes or numbers of images' in capsys.readouterr().out


def test_the_folders_of_market_1501(opt, tmp_path, capsys):
    root = tmp_path / 'Market-1501-v15.09.15'
    for folder, names in {'bounding_box_train': ['0002_c1s1_000451_03', '0002_c3s1_000551_01', '0007_c2s3_071052_01'],
                          'query': ['0001_c6s3_076117_00', '0003_c1s6_015971_00'],
                          'bounding_box_test': ['0001_c2s1_001051_01', '0003_c4s6_015641_02', '-1_c1s1_000401_03',
                                                '0000_c3s1_000151_02', '-1_c5s2_000126_05'],
                          'gt_bbox': ['0001_c2s1_001051_00']}.items():
        for name in names:
            write(root / folder / f'{name}.jpg')
    (root / 'bounding_box_test' / 'Thumbs.db').touch()
    (root / 'gt_query').mkdir()
    (root / 'readme.txt').touch()
    data = select(opt, root, eval_level=['across'])
    assert classes_by_split(data) == {'train': ['0002', '0007'], 'test': ['0000', '0001', '0003']}
    test = data.evaluation['test']
    assert data.evaluation['train'].groups.tolist() == ['1', '3', '2']
    rows = zip(test.paths, test.is_query, test.in_gallery, test.is_distractor, test.groups, strict=True)
    assert [(path.name[:4], *map(bool, row), group) for path, *row, group in rows] == [
        ('0001', True, False, False, '6'), ('0003', True, False, False, '1'), ('0000', False, True, True, '3'),
        ('0001', False, True, False, '2'), ('0003', False, True, False, '4')]
    assert ('images in the folders of Market-1501: 3 train, 2 query, 1 distractor, 2 gallery; 2 of no person (-1, junk)'
            in capsys.readouterr().out)
    halves = select(opt, root, split_scheme='half')
    assert classes_by_split(halves) == {'train': ['0001', '0002'], 'test': ['0003', '0007']}
    assert 'without --split_scheme predefined, 1 distractors are left out\n' in capsys.readouterr().out
    write(root / 'query' / 'holiday.jpg')
    with pytest.raises(UserError, match='holiday.jpg: expected a name as in Market-1501, such as 0002_c1s1_000451_03'):
        select(opt, root)


# CSV files

def birds(tmp_path, n=8):
    """A list of n photos of four birds, two and two, as pandas has it."""
    for i in range(n):
        write(tmp_path / 'photos' / f'{i}.png', 30 * i)
    return pd.DataFrame({'path': [f'photos/{i}.png' for i in range(n)], 'label': [f'bird {i // 2}' for i in range(n)]})


def listed(opt, tmp_path, table, **flags):
    """The data of a table that pandas writes; flags: of to_csv."""
    table.to_csv(tmp_path / 'list.csv', **flags)
    return select(opt, tmp_path, csv=str(tmp_path / 'list.csv'))


def test_two_concatenated_lists_are_one(opt, tmp_path, capsys):
    table = birds(tmp_path)
    once = listed(opt, tmp_path, table, index=False)
    capsys.readouterr()
    (tmp_path / 'folder').symlink_to(tmp_path / 'photos')
    again = table.replace({'photos/5.png': './photos/5.png', 'photos/6.png': 'folder/6.png',
                           'photos/4.png': str(tmp_path / 'photos' / '4.png')})
    twice = listed(opt, tmp_path, pd.concat([table, again]), index=False)
    assert [str(path) for path in twice.train.paths] == [str(path) for path in once.train.paths]
    assert twice.description == once.description and len(twice.evaluation['test']) == 4
    assert capsys.readouterr().out == (f'Note: --csv {tmp_path / "list.csv"}: 8 of 16 rows list an image again and are '
                                       'left out\n')


@pytest.mark.parametrize('column, value', [('label', 'bird 9'), ('split', 'test'), ('group', 'east')])
def test_an_image_of_two_labels_splits_or_groups_is_refused(column, value, opt, tmp_path):
    table = birds(tmp_path).assign(split=['train'] * 4 + ['test'] * 4, group='west')
    other = table[:3].assign(**{column: value, 'path': ['./photos/0.png', './photos/1.png', './photos/2.png']})
    with pytest.raises(UserError, match='3 rows list an image again under another label, split or group, the first: '
                                        f'.*0.png, as bird 0 train .*in line 2 and as .*{value}.* in line 10; expected '
                                        'one row'):
        pd.concat([table, other]).to_csv(tmp_path / 'list.csv', index=False)
        select(opt, tmp_path, csv=str(tmp_path / 'list.csv'), eval_level=['across'])


def test_labels_are_compared_without_blanks_and_in_one_unicode_form(opt, tmp_path):
    table = birds(tmp_path)
    decomposed = unicodedata.normalize('NFD', 'Häher')
    forms = ['Häher', f' {decomposed}', 'Kauz', 'Kauz ', 'Star', '\tStar', 'Ä', '\u00a0A\u0308']
    table['label'], table['superclass'] = forms, ['v', 'v '] * 4
    data = listed(opt, tmp_path, table, index=False)
    assert classes_by_split(data) == {'train': ['Häher', 'Kauz'], 'test': ['Star', 'Ä']}
    assert data.train.superclasses == ['v', 'v']


@pytest.mark.parametrize('labels, note', [
    ([1, 1, '1.0', '1.0', 2, 2, 3, 3], '1 and 1.0'), ([*'aabb', 'Owl', 'Owl', 'owl', 'owl'], 'Owl and owl'),
    (['1', '01', '2', '2.', '3', '3.00', 'a', 'A'], '01 and 1, 2 and 2., 3 and 3.00, and 1 more'),
    ([1.5, 1.5, 2, 2, 'Nan', 'Nan', 'x', 'x'], '')])
def test_labels_that_may_be_one_class_are_noted(labels, note, opt, tmp_path, capsys):
    table = birds(tmp_path)
    table['label'] = list(map(str, labels))
    data = listed(opt, tmp_path, table, index=False)
    assert sum(map(len, classes_by_split(data).values())) == len(set(map(str, labels)))
    out = capsys.readouterr().out
    assert out == (f'Note: --csv {tmp_path / "list.csv"}: these labels are different classes, although they are one '
                   f'number, or differ in capitals or blanks only: {note}\n' if note else '')


@pytest.mark.parametrize('missing', [{'na_rep': 'NaN'}, {'na_rep': 'nan'}, {'na_rep': '<NA>'}, {}])
def test_a_missing_label_is_no_class(missing, opt, tmp_path):
    table = birds(tmp_path)
    table.loc[5, 'label'] = None
    sentence = 'the label .* is a missing value' if missing else 'path and label must not be empty'
    with pytest.raises(UserError, match=f'line 7: {sentence}'):
        listed(opt, tmp_path, table, index=False, **missing)


def test_the_index_of_pandas_is_no_column(opt, tmp_path, capsys):
    table = birds(tmp_path)
    table.to_csv(tmp_path / 'once.csv')                                    # ',path,label'
    again = pd.read_csv(tmp_path / 'once.csv')
    again.to_csv(tmp_path / 'twice.csv')                                   # ',Unnamed: 0,path,label'
    thrice = pd.read_csv(tmp_path / 'twice.csv')                           # 'Unnamed: 0.1', 'Unnamed: 0'
    assert 'Unnamed: 0.1' in thrice
    for found in (table, again, thrice):
        assert len(listed(opt, tmp_path, found).train) == 4
    assert capsys.readouterr().out == ''
    listed(opt, tmp_path, thrice.assign(source='x'))
    assert capsys.readouterr().out == f'Note: --csv {tmp_path / "list.csv"}: these columns are not read: source\n'


@pytest.mark.parametrize('rows, sentence', [
    (['photos/0.png,a,0,0,5,5', '', '', 'photos/1.png,,0,0,5,5'], 'line 5: path and label must not be empty'),
    (['', 'photos/0.png,a,0,0,5,5', '', 'photos/1.png,a,0,0,x,5'], 'line 5, .*: found 0,0,x,5, expected four'),
    (['', 'photos/0.png,a,0,0,5,5', '', 'photos/1.png,a,0,0,x,5,5,5'], 'line 5: more fields than the header has'),
    (['photos/0.png,a,0,0,5,5', '', 'photos/0.png,b,0,0,5,5'], 'as a in line 2 and as b in line 4')])
def test_lines_are_counted_as_an_editor_counts_them(rows, sentence, opt, tmp_path):
    birds(tmp_path)
    (tmp_path / 'list.csv').write_text('\r\n'.join(['path,label,x1,y1,x2,y2', *rows]), newline='')
    with pytest.raises(UserError, match=sentence):
        select(opt, tmp_path, csv=str(tmp_path / 'list.csv'))


@pytest.mark.parametrize('values', [('Train', 'Validation', 'Test'), ('training', 'valid', 'test'),
                                    ('TRAIN', 'VAL', 'TEST')])
def test_splits_in_other_words(values, opt, tmp_path):
    table = birds(tmp_path)
    table['split'] = [value for value, n in zip(values, (4, 2, 2), strict=True) for _ in range(n)]
    data = listed(opt, tmp_path, table, index=False)
    assert classes_by_split(data) == {'train': ['bird 0', 'bird 1'], 'val': ['bird 2'], 'test': ['bird 3']}
    for value in ('dev', '0', ''):
        with pytest.raises(UserError, match=f'line 2: split must be one of train, .*, not {value or "empty"}'):
            listed(opt, tmp_path, table.assign(split=value), index=False)


def roles(tmp_path):
    """A list as open-metric-learning has it: no roles in training; an image can be query and gallery."""
    table = birds(tmp_path)
    table['split'] = ['train'] * 4 + ['test'] * 4
    table['is_query'] = [None] * 4 + [True, False, True, True]
    table['is_gallery'] = [None] * 4 + [True, True, False, True]
    return table


@pytest.mark.parametrize('form', ['texts', 'numbers'])
def test_queries_and_gallery_of_open_metric_learning(form, opt, tmp_path):
    table = roles(tmp_path)
    if form == 'numbers':                                                              # 1.0, 0.0 and NaN
        table[['is_query', 'is_gallery']] = table[['is_query', 'is_gallery']].astype(float)
    data = listed(opt, tmp_path, table, index=False)
    test = data.evaluation['test']
    assert test.is_query.tolist() == [True, False, True, True] and test.in_gallery.tolist() == [True, True, False, True]
    assert data.train.is_query.all() and data.train.in_gallery.all()
    one = listed(opt, tmp_path, table.drop(columns='is_gallery'), index=False).evaluation['test']
    assert one.is_query.tolist() == [True, False, True, True] and (one.in_gallery == ~one.is_query).all()
    everyone = table.assign(is_query=True, is_gallery=True)
    both = listed(opt, tmp_path, everyone, index=False).evaluation['test']
    assert both.is_query.all() and both.in_gallery.all()


def test_roles_of_validation_images(opt, tmp_path):
    table = birds(tmp_path, 12).assign(split=['train'] * 4 + ['validation'] * 4 + ['test'] * 4)
    table['is_query'] = [None] * 4 + [True, False, True, False] + [True, True, False, False]
    table['is_gallery'] = [None] * 4 + [False, True, True, True] + [True, True, True, True]
    data = listed(opt, tmp_path, table, index=False)
    for split, start in (('val', 4), ('test', 8)):
        part = table[start:start + 4]
        images = data.evaluation[split]
        assert images.is_query.tolist() == [*part.is_query] and images.in_gallery.tolist() == [*part.is_gallery]


@pytest.mark.parametrize('change, sentence', [
    ({'is_query': 'yes'}, 'line 6: is_query must be true or false, not yes'),
    ({'is_query': None}, 'line 6: is_query must be true or false, not nothing'),
    ({'is_query': False, 'is_gallery': False}, 'line 6: the image is neither query nor gallery'),
    ({'split': 'query'}, 'line 2, column split: found query, expected test, since the columns is_query'),
    ({'path': 'photos/0.png'}, 'as bird 2 test query and gallery in line 6 and as bird 2 test gallery in line 7')])
def test_roles_that_are_refused(change, sentence, opt, tmp_path):
    table = roles(tmp_path)
    if 'path' in change:
        table.loc[5, 'path'] = table.loc[4, 'path']
    else:
        table = table.assign(**change)
    with pytest.raises(UserError, match=sentence):
        listed(opt, tmp_path, table, index=False)
    with pytest.raises(UserError, match='is_query and is_gallery need a column split'):
        listed(opt, tmp_path, roles(tmp_path).drop(columns='split'), index=False)


def test_validation_images_alone_are_no_test(opt, tmp_path):
    table = roles(tmp_path).replace({'test': 'validation'})
    with pytest.raises(UserError, match='the test split is empty .*; mark images as test, not only as val'):
        listed(opt, tmp_path, table, index=False)


def test_columns_under_the_names_of_wildlife_data_sets(opt, tmp_path, capsys):
    table = birds(tmp_path).rename(columns={'label': 'identity', 'path': 'image'}).assign(image_id=range(8), path='x')
    table['encounter'] = list('abababab')
    table.to_csv(tmp_path / 'list.csv', index=False)
    flags = {'csv': str(tmp_path / 'list.csv'), 'csv_columns': ['label=identity', 'path=image', 'group=encounter'],
             'eval_level': ['across']}
    data = select(opt, tmp_path, **flags)
    assert classes_by_split(data) == {'train': ['bird 0', 'bird 1'], 'test': ['bird 2', 'bird 3']}
    assert data.train.groups.tolist() == list('abab')
    assert 'these columns are not read: image_id, path of the file\n' in capsys.readouterr().out
    with pytest.raises(UserError, match='path=photo: .*list.csv has no such column, but image, identity, image_id'):
        select(opt, tmp_path, **flags | {'csv_columns': ['path=photo']})
    with pytest.raises(UserError, match='group=identity: the column is read as label already'):
        select(opt, tmp_path, **flags | {'csv_columns': ['label=identity', 'group=identity']})
    with pytest.raises(UserError, match='found the columns image, .*; --csv_columns label=NAME reads another column'):
        select(opt, tmp_path, csv=flags['csv'])
    with pytest.raises(UserError, match='expected NAME=COLUMN with a NAME of path, label, .*not labels=x'):
        configuration.parse(['--csv_columns', 'labels=x'])


@pytest.mark.parametrize('place, sentence', [
    (3, r"line 5: label has a line break \('bird 1\\nphotos/4.png,bird 2\\n.*a double quote is not closed"),
    (7, 'line 9: label has a line break')])
def test_a_quote_that_is_not_closed(place, sentence, opt, tmp_path):
    """Up to the next quote, or up to the end of the file."""
    table = birds(tmp_path)
    lines = ['path,label', *(f'{path},{label}' for path, label in table.itertuples(index=False))]
    lines[place + 1] = lines[place + 1].replace(',', ',"')
    lines[7 if place == 3 else 8] += '"' if place == 3 else ''
    (tmp_path / 'list.csv').write_text('\n'.join(lines) + '\n')
    with pytest.raises(UserError, match=sentence):
        select(opt, tmp_path, csv=str(tmp_path / 'list.csv'))


def test_line_breaks_in_columns_that_are_not_read(opt, tmp_path, capsys):
    """And the lines of what comes after them."""
    table = birds(tmp_path).assign(remark=['one', 'two\nlines', *['one'] * 6])
    assert len(listed(opt, tmp_path, table, index=False).train) == 4
    assert ': columns that are not read have line breaks, the first in line 3; if a double' in capsys.readouterr().out
    table.loc[4, 'label'] = ''
    with pytest.raises(UserError, match='line 7: path and label must not be empty'):
        listed(opt, tmp_path, table, index=False)


def test_a_quote_before_a_long_rest(opt, tmp_path):
    rest = '\n'.join(f'photos/{i}.png,a bird of rather rare colours' for i in range(4000))
    (tmp_path / 'list.csv').write_text(f'path,label\nphotos/0.png,"a\n{rest}\n')
    with pytest.raises(UserError, match=r'before line \d+: field larger than .*; a double quote may not be closed'):
        select(opt, tmp_path, csv=str(tmp_path / 'list.csv'))


def test_paths_of_windows_and_with_blanks(opt, tmp_path, capsys):
    table = birds(tmp_path)
    write(tmp_path / 'photos\\8.png')                                          # a backslash may be part of a name
    table['path'] = [f'photos\\{i}.png' for i in range(7)] + ['photos/7.png ']
    table.loc[8] = 'photos\\8.png', 'bird 3'
    data = listed(opt, tmp_path, table, index=False)
    paths = [path for images in data.evaluation.values() for path in images.paths]
    assert paths == [*(tmp_path / 'photos' / f'{i}.png' for i in range(8)), tmp_path / 'photos\\8.png']
    assert '8 of 9 paths are read with / for backslashes, and without blanks' in capsys.readouterr().out
    found = photos.find([str(tmp_path / 'list.csv')])
    assert found == [str(path) for path in paths] and '8 of 9 paths' in capsys.readouterr().err


def test_folders_whose_names_differ_by_blanks_or_capitals(opt, tmp_path, capsys):
    folders_of(tmp_path, ['train/owl', 'train/lynx', 'test/owl ', 'test/Lynx', 'test/crow'])
    data = select(opt, tmp_path)
    assert classes_by_split(data) == {'train': ['lynx', 'owl'], 'test': ['Lynx', 'crow', 'owl ']}
    assert (f'Note: --source_path {tmp_path}: these labels are different classes, although they are one number, or '
            "differ in capitals or blanks only: Lynx and lynx, owl and 'owl '\n") in capsys.readouterr().out


def test_long_numbers_are_labels_of_their_own(opt, tmp_path, capsys):
    folders_of(tmp_path, ['train/10000000000000000', 'train/10000000000000001', 'test/7', 'test/7.0'])
    select(opt, tmp_path)
    assert 'blanks only: 7 and 7.0\n' in capsys.readouterr().out


# Evaluation on changed data

def test_an_evaluation_on_changed_data_says_so(quick, run, tmp_path, capsys):
    """Also of a checkpoint alone, and of one that an earlier version wrote, which its config.yaml explains."""
    table = birds(tmp_path)
    file, folder = tmp_path / 'list.csv', folder_of(tmp_path)
    table.to_csv(file, index=False)
    assert run(*quick, '--source_path', tmp_path, '--csv', file, '--bs', '4', '--n_epochs', '1',
               '--evaluation_metrics', 'e_recall@1') == 0
    alone = tmp_path / 'alone.pt'
    alone.write_bytes((folder / 'checkpoint_last.pt').read_bytes())
    commands = [(run, '--evaluate', alone), (after_training, folder, 'embeddings', tmp_path / 'out.npz')]

    def said(command, *arguments):
        capsys.readouterr()
        assert command(*arguments) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith('Note: the data')]

    for command in commands:
        assert said(*command) == []
    labels = table['label'].tolist()
    write(tmp_path / 'photos' / '8.png')
    for changed, what in ((table[1:], 'other classes or numbers of images'),
                          (table.assign(label=[labels[2], labels[1], labels[0], *labels[3:]]), 'other labels, or'),
                          (table.replace({'photos/3.png': 'photos/8.png'}), 'other files, or another order')):
        changed.to_csv(file, index=False)
        for command in commands:
            (tmp_path / 'out.npz').unlink(missing_ok=True)
            note, = said(*command)
            assert note.startswith(f'Note: the data have {what}') and note.endswith('with those that it recorded.')
    states = torch.load(folder / 'checkpoint_last.pt', weights_only=True)
    del states['split_hash'], states['image_hashes']
    torch.save(states, folder / 'checkpoint_last.pt')
    assert said(run, '--evaluate', folder)
    torch.save(states, alone)
    assert said(run, '--evaluate', alone) == []
