"""Every layout a user may have, splits, images of all kinds, and data that are missing or bad."""
import io
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import configuration
import datasets
from datasets import base, decoding, splits, transforms
from retrieval import photos
from utilities.errors import UserError


def write(path, value=128, size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', size, (value % 256, 10, 10)).save(path)


def select(opt, source, dataset='folder', **flags):
    return datasets.select(opt(dataset=dataset, source_path=str(source), **flags), 16)


# Layouts

def test_cars196_both_layouts(opt, tmp_path):
    from scipy.io import savemat
    for c in range(4):
        write(tmp_path / 'a' / 'cars196' / 'images' / f'Car {c}' / '1.jpg')
    assert select(opt, tmp_path / 'a', 'cars196').train.class_names == ['Car 0', 'Car 1']

    names = ['Zonda', 'Beetle', 'Audi', 'Mini']
    kind = [('relative_im_path', object), ('class', object)]
    rows = np.array([(f'car_ims/{i}.jpg', i % 4 + 1) for i in range(8)], dtype=kind)
    for i in range(8):
        write(tmp_path / 'b' / 'cars196' / 'car_ims' / f'{i}.jpg')
    content = {'annotations': rows, 'class_names': np.array(names, object)}
    savemat(tmp_path / 'b' / 'cars196' / 'cars_annos.mat', content)
    data = select(opt, tmp_path / 'b', 'cars196')
    assert data.train.class_names == ['001.Zonda', '002.Beetle'] and len(data.train) == 4      # in their numbers' order
    assert data.train.paths[0].name == '0.jpg' and data.train.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize('root', ['omniglot', 'omniglot/omniglot-py', 'omniglot-py'])
def test_omniglot_in_torchvisions_layout(root, opt, tmp_path):
    for part, alphabet in (('images_background', 'Greek'), ('images_evaluation', 'Angelic')):
        for c in (1, 2):
            write(tmp_path / root / part / alphabet / f'character{c:02d}' / '0001_01.png')
    data = select(opt, tmp_path, 'omniglot')
    assert data.train.class_names == ['Angelic.character01', 'Angelic.character02']
    assert data.evaluation['test'].class_names == ['Greek.character01', 'Greek.character02']


def test_omniglot_of_the_development_data(shared, opt):
    data = select(opt, shared / 'data', 'omniglot')
    assert (len(data.train), data.train.n_classes, data.evaluation['test'].n_classes) == (2420, 121, 121)
    image = data.evaluation['train'][0][0]
    assert image.min() < .5 and image.max() == 1


def test_a_csv_file(opt, tmp_path):
    for i in range(8):
        write(tmp_path / f'{i}.png')
    file = tmp_path / 'list.csv'
    flags = {'csv': str(file)}
    file.write_text('path,label\n' + '\n'.join(f'{i}.png,{"abcd"[i // 2]}' for i in range(8)))
    assert select(opt, tmp_path, 'folder', **flags).evaluation['test'].class_names == ['c', 'd']
    parts = ['train', 'train', 'val', 'val', 'query', 'gallery', 'gallery', 'query']
    rows = [f'{"abcd"[i // 2]},{parts[i]},{tmp_path / f"{i}.png"}' for i in range(8)]
    file.write_text('\n'.join(['label,split,path', *rows]))
    data = select(opt, tmp_path, 'folder', **flags)
    assert list(data.evaluation) == ['train', 'val', 'test'] and data.evaluation['test'].is_query.sum() == 2
    for content, sentence in (('a,b\n1,2', 'expected a header with the columns path,label .*superclass.*group.*x1'),
                              ('', 'found no row'),
                              ('path,label\n0.png,a\n1.png,b, c', 'list.csv, line 3: more fields than the header')):
        file.write_text(content)
        with pytest.raises(UserError, match=sentence):
            select(opt, tmp_path, 'folder', **flags)
    for column, meant in (('spilt', 'split'), ('X1', 'x1'), (' split', 'split'), ('super_class', 'superclass')):
        file.write_text(f'path,label,{column}\n0.png,a,train')
        with pytest.raises(UserError, match=f'the column "{column}" is not read; if it is meant to be "{meant}"'):
            select(opt, tmp_path, 'folder', **flags)
    file.write_text('path,label,split,split\n0.png,a,train,test')
    with pytest.raises(UserError, match='its header has the column "split" twice'):
        select(opt, tmp_path, 'folder', **flags)
    file.write_bytes('path,label\n0.png,é'.encode('latin-1'))
    with pytest.raises(UserError, match='list.csv: not a CSV file in UTF-8'):
        select(opt, tmp_path, 'folder', **flags)
    file.write_text('path,label\na\0b.png,a')
    with pytest.raises(UserError, match=r"a\\x00b.png': names of images and classes cannot hold NUL bytes"):
        select(opt, tmp_path, 'folder', **flags)
    file.unlink()
    with pytest.raises(UserError, match='No such file'):
        select(opt, tmp_path, 'folder', **flags)


@pytest.mark.parametrize('names', [['class_0', 'class_1'], ['birds/owl', 'cats/lynx']])
def test_hidden_folders_and_links_to_a_folder_above_are_no_classes(names, opt, tmp_path):
    for name in (*names, '.ipynb_checkpoints', f'{names[0]}/.thumbs', '.trash/fish/perch'):
        write(tmp_path / 'images' / name / '0.png')
    (tmp_path / 'images' / names[0] / 'back').symlink_to('..')
    data = select(opt, tmp_path, 'folder', split_scheme='half', test_size=0)
    assert data.train.class_names == names and len(data.train) == 2


def test_a_csv_file_with_superclasses_of_several_levels(opt, tmp_path):
    for i in range(8):
        write(tmp_path / f'{i}.png')
    (tmp_path / 'list.csv').write_text('superclass,path,label,superclass_above\n' + '\n'.join(
        f's{i // 4},{i}.png,{"abcd"[i // 2]},all' for i in range(8)))
    data = select(opt, tmp_path, 'folder', csv=str(tmp_path / 'list.csv'), test_size=0)
    assert data.train.superclasses == ['s0', 's0', 's1', 's1'] and data.train.levels[1] == ['all'] * 4
    assert data.train.superclass_labels.tolist() == [[0, 0], [0, 0], [1, 0], [1, 0]]
    for rows, sentence in (('0.png,a,x\n1.png,a,y', 'line 3: superclass must be .* for a it is y here and x before'),
                           ('0.png,a,x\n1.png,b,', 'line 3: superclass must be .* for b it is empty'),
                           ('0.png,a,x\n1.png,b,NaN', 'line 3: superclass must be .* for b it is empty')):
        (tmp_path / 'list.csv').write_text(f'path,label,superclass\n{rows}')
        with pytest.raises(UserError, match=sentence):
            select(opt, tmp_path, 'folder', csv=str(tmp_path / 'list.csv'))
    (tmp_path / 'list.csv').write_text('path,label,superclass,superclass_above\n0.png,a,s,x\n1.png,b,s,y\n2.png,c,t,x')
    with pytest.raises(UserError, match='--train_level 1: a super-class is in two super-classes of a level above'):
        select(opt, tmp_path, 'folder', csv=str(tmp_path / 'list.csv'), train_level=1)


def test_nested_folders_are_superclasses(opt, tmp_path):
    for name in ('birds/owls/eagle_owl', 'birds/owls/tawny_owl', 'birds/gulls/herring_gull', 'mammals/cats/lynx'):
        for i in range(2):
            write(tmp_path / 'images' / name / f'{i}.png')
    data = select(opt, tmp_path, 'folder', split_scheme='half', test_size=0)
    assert data.train.class_names == ['birds/gulls/herring_gull', 'birds/owls/eagle_owl', 'birds/owls/tawny_owl',
                                      'mammals/cats/lynx']
    assert data.train.levels == [['birds/gulls', 'birds/owls', 'birds/owls', 'mammals/cats'],
                                 ['birds', 'birds', 'birds', 'mammals']]
    assert data.train.superclass_labels.tolist() == [[0, 0], [1, 0], [1, 0], [2, 1]]
    flags = {'split_scheme': 'half', 'test_size': 0}
    coarser = select(opt, tmp_path, 'folder', train_level=1, **flags)
    assert coarser.train.class_names == ['birds/gulls', 'birds/owls', 'mammals/cats']
    assert coarser.train.labels.tolist() == [0, 0, 1, 1, 1, 1, 2, 2] and coarser.train.paths == data.train.paths
    assert coarser.train.superclass_labels.tolist() == [[0], [0], [1]]
    assert coarser.evaluation['train'].class_names == data.train.class_names and coarser.description == data.description
    coarsest = select(opt, tmp_path, 'folder', train_level=2, **flags).train
    assert coarsest.class_names == ['birds', 'mammals'] and coarsest.superclass_labels is None
    with pytest.raises(UserError, match='--train_level 3: --dataset folder has 2 levels of super-classes here'):
        select(opt, tmp_path, 'folder', train_level=3, **flags)
    write(tmp_path / 'images' / 'fish' / 'perch' / '0.png')
    with pytest.raises(UserError, match='must all be in the same number of folders .* unlike'):
        select(opt, tmp_path, 'folder')
    write(tmp_path / 'images' / 'snake' / '0.png')                       # then only the folders in images/ are classes
    assert select(opt, tmp_path, 'folder', split_scheme='half', test_size=0).train.superclass_labels is None


def test_a_folder_that_cannot_be_listed_is_named(opt, tmp_path, monkeypatch):
    for name in ('birds/owl', 'cats/lynx'):
        write(tmp_path / 'images' / name / '0.png')

    def refused(folder, scandir=os.scandir):
        if str(folder).endswith(('owl', 'lost+found')):
            raise PermissionError(13, 'Permission denied', folder)
        return scandir(folder)

    monkeypatch.setattr(os, 'scandir', refused)
    for find in (lambda: select(opt, tmp_path), lambda: photos.find([tmp_path / 'images'])):
        with pytest.raises(UserError, match='images/birds/owl: Permission denied; allow to list this folder'):
            find()
    (tmp_path / 'images' / 'birds' / 'owl').rename(tmp_path / 'images' / 'birds' / 'lost+found')
    assert photos.find([tmp_path / 'images']) == [str(tmp_path / 'images' / 'cats' / 'lynx' / '0.png')]


def test_images_without_class_folders(opt, tmp_path):
    for i in range(4):
        write(tmp_path / 'images' / f'{i}.png')
    with pytest.raises(UserError, match='images: its images are in no class folders; make a folder for each class, '):
        select(opt, tmp_path)
    for flags in ({'unsupervised': True, 'split_scheme': 'closed_set', 'n_folds': 2}, {'evaluate': 'run'}):
        assert sum(map(len, select(opt, tmp_path, **flags).evaluation.values())) == 4


@pytest.mark.parametrize('dataset', [name for name, file in datasets.DATASETS.items() if hasattr(file, 'WHERE')])
def test_missing_data_name_the_expected_tree_and_where_to_get_them(dataset, opt, tmp_path):
    with pytest.raises(UserError) as caught:
        select(opt, tmp_path, dataset)
    first, tree = str(caught.value).split('\n', 1)
    assert first.startswith(f'--dataset {dataset}: expected {tmp_path}')
    assert tree == datasets.DATASETS[dataset].WHERE


def test_a_source_path_longer_than_a_name_can_be(opt, tmp_path):
    with pytest.raises(UserError, match=f'--dataset folder: expected {tmp_path}/99'):
        select(opt, tmp_path / ('9' * 300))


def test_listed_images_that_are_missing(opt, tmp_path):
    write(tmp_path / 'a.png')
    (tmp_path / 'list.csv').write_text(f'path,label\na.png,x\nb.png,y\n{"k" * 300}.png,y')     # no file system takes it
    sentence = f'2 of 3 listed images are missing, the first: {tmp_path / "b.png"}; --skip_bad_images leaves them out'
    with pytest.raises(UserError, match=sentence):
        select(opt, tmp_path, 'folder', csv=str(tmp_path / 'list.csv'))


def test_names_that_are_not_utf_8(opt, tmp_path):
    for name in (b'a', b'b\xff'):
        write(tmp_path / 'images' / os.fsdecode(name) / '1.png')
    with pytest.raises(UserError, match=r"b\\udcff/1.png': names .* bytes that are not UTF-8; rename it"):
        select(opt, tmp_path, 'folder')


# Splits

def table(sizes, **properties):
    classes = [f'{c:02d}' for c, size in enumerate(sizes) for _ in range(size)]
    return base.ImageTable([None] * len(classes), classes, **properties)


def test_the_first_half_of_the_sorted_classes_trains(opt):
    found = splits.split(opt(), table([2, 1, 3, 1, 1]))
    assert found == {'train': [0, 1, 2], 'test': [3, 4, 5, 6, 7]}


def test_a_validation_split_of_classes_and_of_samples(opt):
    sizes = [5] * 10 + [4] * 10
    by_class = splits.split(opt(use_tv_split=True), table(sizes))
    assert by_class == {'train': list(range(40)), 'val': list(range(40, 50)), 'test': list(range(50, 90))}
    by_sample = splits.split(opt(use_tv_split=True, tv_split_by_samples=True, tv_split_perc=.6), table(sizes))
    assert by_sample['train'][:3] == [0, 2, 4] and by_sample['val'][:2] == [1, 3]
    assert sorted(by_sample['train'] + by_sample['val']) == list(range(50))


def classes_of(opt, n_classes, **flags):
    """split -> numbers of its classes, of a data set of n_classes with one image each, which are disjoint."""
    found = splits.split(opt(**flags), base.ImageTable([None] * n_classes, [f'{c:05d}' for c in range(n_classes)]))
    assert sorted(sum(found.values(), [])) == list(range(n_classes))
    return found


@pytest.mark.parametrize('n_classes, n_train, starts, validated', [
    (200, 75, (0, 25, 50, 75), ((75, 100), (0, 25), (25, 50), (50, 75))),                           # CUB200-2011
    (196, 74, (0, 24, 49, 73), ((74, 98), (0, 24), (25, 49), (49, 73))),                            # CARS196
    (22634, 8488, (0, 2829, 5658, 8487), ((8488, 11317), (0, 2829), (2829, 5658), (5658, 8487))),   # SOP
])
def test_the_class_lists_of_the_reality_check(n_classes, n_train, starts, validated, opt):
    half = n_classes // 2
    for fold, (start, (first, last)) in enumerate(zip(starts, validated, strict=True)):
        found = classes_of(opt, n_classes, split_scheme='mlrc', fold=fold)
        assert found['train'] == sorted((start + i) % half for i in range(n_train))
        assert found['val'] == list(range(first, last)) and found['test'] == list(range(half, n_classes))


def test_the_reality_check_takes_no_notice_of_official_parts(opt, tmp_path):
    for c in range(10):
        write(tmp_path / f'{c}.png')
    rows = [f'{c}.png,{c},{"query" if c % 2 else "gallery"}' for c in range(10)]
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,split', *rows]))
    data = select(opt, tmp_path, 'folder', csv=str(tmp_path / 'list.csv'), split_scheme='mlrc', fold=3)
    assert {name: part.class_names for name, part in data.evaluation.items()} == {
        'train': ['0', '1', '3', '4'], 'val': ['2'], 'test': ['5', '6', '7', '8', '9']}
    assert data.evaluation['test'].is_query.all() and data.evaluation['test'].in_gallery.all()


def test_folds_of_classes(opt):
    found = [classes_of(opt, 21, split_scheme='class_folds', fold=fold) for fold in range(4)]
    assert [part['val'] for part in found] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]         # as evenly as can be
    assert all(part['test'] == list(range(10, 21)) for part in found) and found[2]['train'] == [0, 1, 2, 3, 4, 5, 8, 9]


@pytest.mark.parametrize('size, start, test', [
    (.5, .5, [5, 6, 7, 8, 9]), (.5, 0, [0, 1, 2, 3, 4]), (.3, .8, [0, 8, 9]), (.1, .7, [7]), (.2, 1, [0, 1]),
])
def test_the_test_classes_wrap_around(size, start, test, opt):
    for scheme in ('half', 'class_folds'):
        assert classes_of(opt, 10, split_scheme=scheme, test_size=size, test_start=start)['test'] == test


def test_a_closed_set_has_folds_of_images(opt):
    sizes = [8, 5, 2, 2, 2]
    found = [splits.split(opt(split_scheme='closed_set', fold=fold), table(sizes)) for fold in range(4)]
    for part in found:
        assert sorted(sum(part.values(), [])) == list(range(19)) and part['test'] == found[0]['test']
    assert found[0]['test'] == [4, 5, 6, 7, 10, 11, 12, 14, 16, 18]
    assert sorted(sum((part['val'] for part in found), [])) == sorted(set(range(19)) - set(found[0]['test']))
    assert [len(part['val']) for part in found] == [3, 2, 2, 2]


def test_predefined_is_the_default_where_there_are_parts(opt):
    parts = table([1, 1, 1], parts=['test', 'train', 'val'])
    assert splits.split(opt(), parts) == splits.split(opt(split_scheme='predefined'), parts)
    assert splits.split(opt(split_scheme='half'), parts) == {'train': [0], 'test': [1, 2]}
    with pytest.raises(UserError, match='--split_scheme predefined: cub200 has no official split'):
        splits.split(opt(split_scheme='predefined'), table([1, 1, 1]))


def test_the_size_of_the_test_split_alone(opt):
    alone = configuration.parse(['--dataset', 'cub200', '--test_size', '.3'])
    assert {name: len(images) for name, images in splits.split(alone, table([1] * 10)).items()} == {
        'train': 7, 'test': 3}
    with pytest.raises(UserError, match='--test_size 0.3: it has no effect on --split_scheme predefined; .* half, '):
        splits.split(alone, table([1, 1], parts=['train', 'test']))
    whole = configuration.parse(['--dataset', 'cub200', '--test_size', '.5'])                 # the default
    assert splits.split(whole, table([1, 1], parts=['train', 'test'])) == {'train': [0], 'test': [1]}


@pytest.mark.parametrize('parts', [['test', 'query', 'gallery'], ['test', 'gallery', 'gallery'], ['query'] * 3,
                                   ['gallery'] * 3])
def test_queries_and_gallery_come_together_and_without_other_test_images(parts, opt):
    with pytest.raises(UserError, match=f'the test images are marked {" and ".join(sorted(set(parts)))}; mark all'):
        splits.split(opt(split_scheme='predefined'), table([1, 1, 1, 1], parts=['train', *parts]))


@pytest.mark.parametrize('sizes, flags, sentence', [
    ([1] * 6, {'split_scheme': 'class_folds'}, '--n_folds 4: only 3 of the 6 classes are not test classes'),
    ([1] * 6, {'split_scheme': 'mlrc', 'fold': 1},
     'the val split is empty .6 classes .* --split_scheme mlrc, --fold 1, --n'),
    ([1] * 6, {'split_scheme': 'half', 'test_size': .1}, 'the test split is empty .*--test_size 0.1'),
    ([1, 2, 2, 1, 1, 2], {'split_scheme': 'closed_set', 'fold': 3, 'n_folds': 8}, 'the val split is empty'),
    ([3], {}, 'the train split is empty \\(1 classes in all\\)'), ([], {}, 'the t.* split is empty \\(0 classes'),
    ([3] * 4, {'use_tv_split': True, 'tv_split_perc': .1}, 'the train split is empty .*--tv_split_perc 0.1'),
    ([1] * 4, {'use_tv_split': True, 'tv_split_by_samples': True}, 'the val split is empty'),
])
def test_an_empty_split_is_refused(sizes, flags, sentence, opt):
    with pytest.raises(UserError, match=sentence):
        splits.split(opt(**flags), table(sizes))


def test_splits_that_may_be_empty(opt):
    for scheme in ('half', 'class_folds', 'closed_set'):
        found = splits.split(opt(split_scheme=scheme, test_size=0, n_folds=2), table([2] * 4))
        assert 'test' not in found and sum(map(len, found.values())) == 8
    new = {'evaluate': 'a run', 'test_size': 1, 'split_scheme': 'half'}
    assert splits.split(opt(**new, use_tv_split=True), table([2] * 4)) == {'test': list(range(8))}
    assert list(splits.split(opt(evaluate='run'), table([1], parts=['test']))) == ['test']
    with pytest.raises(UserError, match='split is empty'):
        splits.split(opt(**new), table([]))


def test_a_second_validation_split_is_refused(opt):
    with pytest.raises(UserError, match='this data set has an official validation split; give --use_tv_split false'):
        splits.split(opt(use_tv_split=True), table([1, 1, 1], parts=['train', 'val', 'test']))


def test_the_hash_tells_the_classes_and_the_numbers_of_their_images(opt, tmp_path):
    def describe(sizes):
        shutil.rmtree(tmp_path / 'images', ignore_errors=True)
        for c, size in enumerate(sizes):
            for i in range(size):
                write(tmp_path / 'images' / f'{c}' / f'{i}.png')
        return select(opt, tmp_path, 'folder').description

    first, again, other = describe([2, 3, 1, 2]), describe([2, 3, 1, 2]), describe([2, 3, 2, 2])
    assert first == again and first['hash'] != other['hash']
    assert first['splits']['train'] == other['splits']['train'] and first['splits']['test']['n_lone_queries'] == 1
    assert first['splits']['test']['classes'] == {'2': 1, '3': 2}


# Images

def save_all_kinds(folder):
    """Every kind of image that users have, of one picture: left half dark, right half light, 12 x 8."""
    folder.mkdir(parents=True)
    grey = np.repeat([[40] * 6 + [200] * 6], 8, axis=0).astype(np.uint8)
    image = Image.fromarray(grey)
    image.save(folder / 'grey.png')
    image.convert('RGB').save(folder / 'rgb.png')
    image.convert('CMYK').save(folder / 'cmyk.jpg', quality=100)
    image.convert('RGB').quantize(4).save(folder / 'palette.png')
    image.convert('RGB').quantize(4).save(folder / 'palette.gif')
    image.convert('1', dither=Image.Dither.NONE).save(folder / 'bits.png')
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / 'grey16.png')
    rgba = image.convert('RGBA')
    rgba.save(folder / 'rgba.png')
    image.convert('LA').save(folder / 'grey_alpha.png')
    exif = Image.Exif()
    exif[0x0112] = 6                                              # to be turned by 90 degrees clockwise
    image.convert('RGB').transpose(Image.Transpose.ROTATE_90).save(folder / 'turned.jpg', quality=100, exif=exif)
    image.save(folder / 'grey.webp', lossless=True)
    image.save(folder / 'grey.tif')
    image.save(folder / 'UPPER.PNG')


def test_images_of_every_kind_look_the_same(tmp_path):
    save_all_kinds(tmp_path / 'a')
    files = base.image_files(tmp_path / 'a')
    assert len(files) == 13
    for file in files:
        image = decoding.read_upright(file).convert('RGB')
        pixels = np.asarray(image).astype(int)
        assert image.size == (12, 8), file
        expected = (0, 255) if file.name == 'bits.png' else (40, 200)
        assert abs(pixels[:, :5] - expected[0]).max() <= 12 and abs(pixels[:, 7:] - expected[1]).max() <= 12, file


def test_transparent_pixels_are_white(tmp_path):
    Image.new('RGBA', (4, 4), (10, 20, 30, 0)).save(tmp_path / 'clear.png')
    image = Image.new('P', (4, 4), 0)
    image.putpalette([10, 20, 30] * 256)
    image.save(tmp_path / 'palette.png', transparency=0)
    for name in ('clear.png', 'palette.png'):
        assert np.asarray(decoding.read_upright(tmp_path / name)).min() == 255


def broken_images(folder):
    write(folder / 'images' / 'a' / 'whole.jpg', size=(60, 60))
    content = (folder / 'images' / 'a' / 'whole.jpg').read_bytes()
    (folder / 'images' / 'a' / 'truncated.jpg').write_bytes(content[:len(content) // 2])
    (folder / 'images' / 'a' / 'text.png').write_text('this is no image')
    (folder / 'images' / 'a' / 'empty.png').write_bytes(b'')
    for name in 'bcd':
        write(folder / 'images' / name / '1.png')
    return folder


def test_a_broken_image_is_named(opt, tmp_path):
    broken_images(tmp_path)
    for name in ('truncated.jpg', 'text.png', 'empty.png'):
        with pytest.raises(UserError, match=f'{name}: not a readable image .* --skip_bad_images'):
            decoding.read_upright(tmp_path / 'images' / 'a' / name)
    data = select(opt, tmp_path, 'folder')
    with pytest.raises(UserError, match=r'^[^ ]*empty.png: not a readable image'):     # also from a data worker
        list(torch.utils.data.DataLoader(data.evaluation['train'], num_workers=2))


def test_memory_that_runs_out_is_no_broken_image():
    with pytest.raises(MemoryError), decoding.named('a.png'):
        raise MemoryError


def test_no_other_program_reads_an_image_whatever_its_name(opt, tmp_path, capsys, other_program):
    broken_images(tmp_path)
    (tmp_path / 'images' / 'd' / 'photo.jpg').write_bytes(other_program.eps)
    (tmp_path / 'images' / 'd' / 'photo.eps').write_bytes(other_program.eps)
    for suffix in ('jpg', 'eps'):
        with pytest.raises(UserError, match='not a readable image .its format is not known'):
            decoding.read_upright(tmp_path / 'images' / 'd' / f'photo.{suffix}')
    data = select(opt, tmp_path, 'folder', skip_bad_images=True)
    assert not any('photo' in str(path) for path in data.evaluation['test'].paths)
    assert not other_program.started() and ': 1 (.eps 1): ' in capsys.readouterr().out


@pytest.mark.parametrize('name, kind', [('a.jfif', 'JPEG'), ('a.avif', 'AVIF'), ('a.heic', 'HEIF'),
                                        ('a.jp2', 'JPEG2000')])
def test_photos_of_phones_and_mails_are_read(name, kind, tmp_path):
    if kind not in decoding.formats():
        pytest.skip(f'{kind} cannot be read here')
    Image.fromarray(np.full((40, 60, 3), (200, 30, 30), np.uint8)).save(tmp_path / name, kind)
    file, = base.image_files(tmp_path)
    assert abs(np.asarray(decoding.read_upright(file)).astype(int) - (200, 30, 30)).max() < 12


def test_what_is_no_image_is_counted_and_named(opt, patterns, tmp_path, capsys):
    for layout, n_more in (('images', 1), ('images/above', 0)):
        folder = tmp_path / str(n_more) / layout
        shutil.copytree(patterns / 'images', folder)
        (folder / 'class_03' / 'more').mkdir()
        for name in ('class_00/1.heif', 'class_00/2.MOV', 'class_01/3.mov', 'class_02/notes', '.hidden', 'loose.mov'):
            (folder / name).touch()
        if n_more:
            write(folder / 'loose.png')
            write(folder / 'fish' / 'perch' / '1.png')
        select(opt, tmp_path / str(n_more), 'folder')
        line, *more = [line for line in capsys.readouterr().out.splitlines() if 'not among the images' in line]
        assert ': 5 (.mov 3, ' in line and 'no extension 1): ' in line and 'loose.mov' in line
        assert 'hidden' not in line
        names = ', '.join(str(folder / name) for name in ('class_03/more', 'fish/perch', 'loose.png'))
        assert more == n_more * ['Note: not among the images, since they are not directly in a class folder: 3: '
                                 f'{names}']


def test_pixels_are_counted_before_they_are_decoded(opt, patterns, tmp_path, capsys, monkeypatch, bomb):
    shutil.copytree(patterns, tmp_path / 'data')
    place = tmp_path / 'data' / 'images' / 'class_00' / 'bomb.png'
    place.write_bytes(bomb)
    large = io.BytesIO()
    Image.new('L', (1500, 1000)).save(large, 'JPEG')
    place.with_name('large.jpg').write_bytes(large.getvalue())
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 5 * 10 ** 5)
    monkeypatch.setattr(decoding, 'upright', lambda image: pytest.fail('it was decoded'))
    for name, pixels in (('bomb.png', '8,?000 x 8,?000|64000000'), ('large.jpg', '1,500 x 1,000|1500000')):
        with pytest.raises(UserError, match=f'{name}: not a readable image .*({pixels})'):
            decoding.read_upright(place.with_name(name))
    monkeypatch.undo()
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 5 * 10 ** 5)
    data = select(opt, tmp_path / 'data', 'folder', skip_bad_images=True)
    assert len(data.train) == 36 and '2 of 74 images cannot be read' in capsys.readouterr().out
    images = select(opt, tmp_path / 'data', 'folder').train
    with pytest.raises(UserError, match='bomb.png: not a readable image'):
        images[[path.name for path in images.paths].index('bomb.png')]


def test_scans_are_counted_before_they_are_decoded(tmp_path, many_scans):
    """But not those of a preview in the file, nor what follows the image; what libjpeg skips hides none."""
    place = tmp_path / 'scans.jpg'
    last = many_scans.index(b'\xff\xda', 1000)                           # the scan that is repeated
    for skipped in (b'', b'\0\1', b'\xff\xff\xff', b'\xff\xd0\xff\x01', b'\xff\xe5\0\0'):
        place.write_bytes(many_scans[:last] + skipped + many_scans[last:])
        for side in (None, 16):
            with pytest.raises(UserError, match='scans.jpg: not a readable image .a JPEG file of more than 100 scans'):
                decoding.read_upright(place, side=side)
    few = many_scans[:last] + b'\xff\xd9'
    preview = b'\xff\xe5' + (2 + 400).to_bytes(2) + 200 * b'\xff\xda'
    place.write_bytes(few[:2] + preview + few[2:] + 200 * b'\xff\xda\0\2')
    decoding.read_upright(place)


def test_image_sets_serve_samplers(patterns, opt):
    images = select(opt, patterns, 'folder').train
    assert list(images.image_dict) == list(range(6)) and all(len(found) == 6 for found in images.image_dict.values())
    path, index = images.image_dict[3][2]
    assert images.image_list[index] == (path, 3) and images.labels[index] == 3


def test_augmentation_is_a_function_of_the_seed_alone(patterns, opt):
    images = select(opt, patterns, 'folder').train
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second, other = images[(4, 11)], images[(4, 11)], images[(4, 12)]
    assert torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])
    assert first[1:] == (images.labels[4], 4) and torch.equal(state, torch.get_rng_state())


def test_by_plain_index_every_item_is_augmented_anew(patterns, opt):
    images = select(opt, patterns, 'folder').train
    torch.manual_seed(0)
    first, second = images[4][0], images[4][0]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    expected = images.transform(decoding.read_upright(images.paths[4]))           # as with any data set of torchvision
    assert torch.equal(first, expected)

    def loaded(workers):
        torch.manual_seed(1)
        subset = torch.utils.data.Subset(images, [4] * 8)
        return torch.cat([batch for batch, _, _ in torch.utils.data.DataLoader(subset, 4, num_workers=workers)])

    for workers in (0, 2):
        items = loaded(workers)
        assert len(torch.unique(items, dim=0)) == 8 and torch.equal(items, loaded(workers))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    select(opt, patterns, 'folder').evaluation['test'][0]
    assert torch.equal(state, torch.get_rng_state())                       # nothing random is done to these


def test_evaluation_crops_the_centre_and_characters_are_never_flipped(opt):
    _, evaluation = transforms.select(opt(), 224)
    assert [type(step).__name__ for step in evaluation.transforms[:2]] == ['Resize', 'CenterCrop']
    assert evaluation.transforms[0].size == [256]
    training, _ = transforms.select(opt(), 32, are_characters=True)
    assert 'Flip' not in repr(training) and 'Crop' not in repr(training)
    training, _ = transforms.select(opt(augmentation='mlrc'), 227)
    assert training.transforms[1].scale == (.16, 1) and training.transforms[0].size == [256]
    with pytest.raises(UserError, match='--augmentation fancy: unknown; choose from base, adv'):
        transforms.select(opt(augmentation='fancy'), 32)


def test_flags_of_crops_and_of_the_evaluation(opt):
    training, evaluation = transforms.select(opt(crop_scale=[.2, 1], crop_ratio=[1, 1], interpolation='bicubic',
                                                 eval_resize=288, eval_size=256), 224)
    crop = training.transforms[0]
    assert (list(crop.scale), list(crop.ratio), tuple(crop.size)) == ([.2, 1], [1, 1], (224, 224))
    assert evaluation.transforms[0].size == [288] and tuple(evaluation.transforms[1].size) == (256, 256)
    assert {step.interpolation.value for step in (crop, evaluation.transforms[0])} == {'bicubic'}
    _, evaluation = transforms.select(opt(eval_size=448), 224)
    assert evaluation.transforms[0].size == [512]
    with pytest.raises(UserError, match='--eval_resize 200: evaluation crops 224 pixels out of it'):
        transforms.select(opt(eval_resize=200), 224)
    with pytest.raises(UserError, match='--crop_scale 0.5 0.2: the first must not be greater'):
        configuration.parse(['--crop_scale', '.5', '.2'])
