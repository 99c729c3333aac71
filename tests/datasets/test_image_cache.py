"""--image_cache: the same pixels, decoded once, whatever happens while they are."""
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from argparse import Namespace
from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image

import datasets
import parameters
from datasets import decoding, image_cache, transforms
from reports import groups
from tests.conftest import draw_classes
from tests.datasets.test_datasets import broken_images, save_all_kinds
from tests.helpers import assert_same_end, folder_of
from utilities.errors import UserError
from utilities.loading import Loader

FORK = multiprocessing.get_context('fork')


@pytest.fixture
def source(tmp_path):
    """A --source_path of 4 classes of 5 images."""
    return draw_classes(tmp_path / 'source' / 'images', 4, 5).parent


@pytest.fixture
def select(opt, tmp_path):
    """select(source, ...): the data, read through a cache below tmp_path / 'cache'."""
    return lambda source, **flags: datasets.select(
        opt(**{'dataset': 'folder', 'source_path': str(source), 'image_cache': str(tmp_path / 'cache')} | flags), 16)


@pytest.fixture
def decoded(monkeypatch):
    """The paths that are decoded for a cache, 4 between two writes."""
    paths, read_upright = [], decoding.read_upright

    def read(path, limit):
        paths.append(path)
        return read_upright(path, limit)

    monkeypatch.setattr(image_cache, 'read_upright', read)
    monkeypatch.setattr(image_cache, 'CHUNK', 4)
    return paths


def caches(tmp_path):
    return sorted((tmp_path / 'cache').iterdir())


def assert_same_items(data, plain):
    assert data.evaluation.keys() == plain.evaluation.keys()
    for images, expected in [(data.train, plain.train), (data.evaluation['test'], plain.evaluation['test'])]:
        assert images.paths == expected.paths
        for index in range(len(expected)):
            image, *rest = images[index, 7 + index]
            wanted, *wanted_rest = expected[index, 7 + index]
            assert torch.equal(image, wanted) and rest == wanted_rest


@pytest.mark.parametrize('augmentation', transforms.AUGMENTATIONS)
def test_images_of_every_kind_are_the_same_bit_by_bit(augmentation, select, tmp_path):
    for name in 'ab':
        save_all_kinds(tmp_path / 'images' / name)
        clear = np.random.default_rng(0).integers(0, 256, (37, 23, 4), dtype=np.uint8)
        Image.fromarray(clear).save(tmp_path / 'images' / name / 'clear.png')
        Image.fromarray(clear[..., :3]).resize((61, 300)).save(tmp_path / 'images' / name / 'long.jpg')
    assert_same_items(select(tmp_path, augmentation=augmentation),
                      select(tmp_path, augmentation=augmentation, image_cache=None))
    read = select(tmp_path, augmentation=augmentation).train.read
    if augmentation not in ('red', 'mlrc', 'none'):
        for path in read.rows:
            assert np.array_equal(np.asarray(read(path)), np.asarray(decoding.open_photo(path))), path
        assert {np.asarray(read(path)).shape[2] for path in read.rows} == {1, 3}           # grey images stay grey


def test_a_run_is_the_same_with_and_without(quick, run, tmp_path):
    quick = [*quick, '--augmentation', 'mlrc', '--n_epochs', '1', '--evaluation_metrics', 'e_recall@1']
    assert run(*quick) == 0
    assert run(*quick, '--group', 'cached', '--image_cache', tmp_path / 'cache') == 0
    assert len(caches(tmp_path)) == 1
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'cached_s1'))


def test_it_is_a_flag_of_the_machine():
    assert 'image_cache' in parameters.flags_of_group('machine')
    assert groups.differences('A', [Namespace(flags={'image_cache': folder}) for folder in ('one', 'other')]) == []


def test_every_split_finds_the_same_cache_and_nothing_is_decoded_twice(source, select, decoded, tmp_path):
    for flags in ({}, {'split_scheme': 'class_folds', 'n_folds': 2, 'fold': 1}, {'use_tv_split': True},
                  {'augmentation': 'adv'}, {'skip_bad_images': True}):
        data = select(source, **flags)
        data.train[0], data.evaluation['test'][1]
    assert len(caches(tmp_path)) == 1 and len(decoded) == 20
    shutil.copytree(source, tmp_path / 'moved')                   # with the times of change
    select(tmp_path / 'moved')
    assert len(caches(tmp_path)) == 1 and len(decoded) == 20
    select(source, augmentation='mlrc')
    assert len(caches(tmp_path)) == 2


def test_a_changed_file_makes_a_new_cache(source, select, tmp_path):
    select(source)
    path = source / 'images' / 'class_01' / '3.png'
    Image.new('RGB', (24, 24), (1, 2, 3)).save(path)
    assert np.asarray(select(source).train.read(path))[0, 0].tolist() == [1, 2, 3] and len(caches(tmp_path)) == 2
    path.rename(path.with_name('4a.png'))
    select(source)
    assert len(caches(tmp_path)) == 3


def test_a_killed_process_loses_no_more_than_its_last_images(source, select, decoded, tmp_path):
    def until_the_eleventh():
        read = image_cache.read_upright

        def kill(path, limit):
            if len(decoded) == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return read(path, limit)

        image_cache.read_upright = kill                             # of this process only
        select(source)

    process = FORK.Process(target=until_the_eleventh)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder, = caches(tmp_path)
    assert len(image_cache.complete_rows(folder, 20)) == 8
    data = select(source)
    assert len(decoded) == 12
    assert_same_items(data, select(source, image_cache=None))


def test_two_processes_at_once_decode_once(source, select, monkeypatch, tmp_path, capfd):
    def read(path, limit):
        with open(tmp_path / 'log', 'a') as log:
            log.write(f'{path}\n')
        time.sleep(0.05)
        return decoding.read_upright(path, limit)

    monkeypatch.setattr(image_cache, 'read_upright', read)
    monkeypatch.setattr(image_cache, 'CHUNK', 4)
    processes = [FORK.Process(target=select, args=(source,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len((tmp_path / 'log').read_text().splitlines()) == 20
    told = capfd.readouterr().out
    assert told.count('--image_cache: filling') == 1 and told.count('another process is filling') == 1


@pytest.mark.parametrize('file, cut, n_again', [('pixels', 1, 2), ('pixels', 3 * 24 * 24 * 3, 4), ('index', 1, 1),
                                                ('index', 40 * 20, 20), ('both', 0, 20)])
def test_truncated_files_are_completed(file, cut, n_again, source, select, decoded, tmp_path):
    select(source)
    folder, = caches(tmp_path)
    if file == 'both':
        (folder / 'pixels').unlink()
        (folder / 'index').write_bytes(b'no index at all')
    else:
        os.truncate(folder / file, (folder / file).stat().st_size - cut)
    decoded.clear()
    data = select(source)
    assert len(decoded) == n_again
    assert_same_items(data, select(source, image_cache=None))


@pytest.mark.parametrize('row, column, value, n_again', [(5, 1, 25, 15), (19, 3, 2, 2)])
def test_a_damaged_row_is_the_end_of_the_index(row, column, value, n_again, source, select, decoded, tmp_path):
    select(source)
    index = np.memmap(caches(tmp_path)[0] / 'index', '<i8', 'r+').reshape(-1, 5)
    index[row, column] = value
    index.flush()
    decoded.clear()
    assert_same_items(select(source), select(source, image_cache=None))
    assert len(decoded) == n_again


def damage(folder, place):
    pixels = np.memmap(folder / 'pixels', np.uint8, 'r+')
    pixels[place] ^= 1
    pixels.flush()


def test_a_flipped_bit_is_found_in_the_sample_that_is_checked_at_the_start(source, select, monkeypatch, tmp_path):
    select(source)
    folder, = caches(tmp_path)
    size = 3 * 24 * 24
    damage(folder, 7 * size + 5)
    sentence = r'1 of 20 images looked at in .* are damaged, the first: .*class_01/2.png. Remove that folder'
    with pytest.raises(UserError, match=sentence):
        select(source)                                            # the sample is as large as this set
    monkeypatch.setattr(image_cache, 'SAMPLE', 3)
    looked_at = set(np.random.default_rng(1).permutation(20)[:3].tolist())
    assert 7 not in looked_at
    select(source)
    damage(folder, min(looked_at) * size)
    with pytest.raises(UserError, match='1 of 3 images looked at'):
        select(source)
    shutil.rmtree(folder)
    assert_same_items(select(source), select(source, image_cache=None))


@pytest.mark.parametrize('place, is_read_before', [(0, True), (700, True), (3 * 23 * 23 - 1, True), (3, False)])
def test_a_flipped_bit_is_found_when_its_image_is_read(place, is_read_before, source, select, monkeypatch, tmp_path):
    """In an image of 1,587 bytes, so that images begin anywhere in a word."""
    for path in source.rglob('*.png'):
        Image.open(path).resize((23, 23)).save(path)
    monkeypatch.setattr(image_cache, 'SAMPLE', 0)
    images = select(source).evaluation['test']
    row = images.read.rows[images.paths[3]]
    if is_read_before:
        images[3]
    damage(caches(tmp_path)[0], row * 3 * 23 * 23 + place)
    for index in (0, 1, 2, 4):
        images[index]
    with pytest.raises(UserError, match=f'--image_cache: {images.paths[3]} is damaged in {caches(tmp_path)[0]}. R'):
        images[3]
    loader = Loader(images, batch_size=5, num_workers=1)
    with pytest.raises(UserError, match=f'{images.paths[3]} is damaged'):
        list(loader)


def test_a_checksum_covers_the_shape(source, select, tmp_path):
    Image.new('RGB', (10, 30), 'red').save(source / 'images' / 'class_00' / '0.png')
    select(source)
    index = np.memmap(caches(tmp_path)[0] / 'index', '<i8', 'r+').reshape(-1, 5)
    index[0, 1:3] = index[0, 2], index[0, 1]
    index.flush()
    with pytest.raises(UserError, match='the first: .*class_00/0.png'):
        select(source)


def test_data_workers_that_are_started_anew_map_it_themselves(source, select):
    images = select(source).evaluation['train']
    images[0]                                                     # mapped here, too
    sent = pickle.dumps(images)                                   # what a process that is not forked gets
    assert len(sent) < 20_000
    expected, found = select(source, image_cache=None).evaluation['train'], pickle.loads(sent)
    assert all(torch.equal(found[index][0], expected[index][0]) for index in range(len(expected)))


def test_broken_images_are_named_when_they_are_used_or_left_out(select, decoded, tmp_path, capsys):
    source = broken_images(tmp_path)
    data = select(source)
    with pytest.raises(UserError, match=r'^[^ ]*empty.png: not a readable image .* --skip_bad_images'):
        list(torch.utils.data.DataLoader(data.evaluation['train'], num_workers=1))
    decoded.clear()
    data = select(source, skip_bad_images=True)
    assert len(data.train) == 2 and '3 of 7 images cannot be read and are left out' in capsys.readouterr().out
    assert not decoded and len(caches(tmp_path)) == 1
    assert_same_items(data, select(source, skip_bad_images=True, image_cache=None))


def test_paths_that_no_file_system_takes_are_left_out(source, select, tmp_path, capsys):
    file = tmp_path / 'list.csv'
    paths = [f'images/class_0{c}/{i}.png' for c in range(4) for i in range(2)]
    file.write_text('path,label\n' + ''.join(f'{path},{path[14]}\n' for path in paths)
                    + f'{paths[0]}/b.png,0\n{"k" * 300}.png,1\n')
    data = select(source, csv=str(file), skip_bad_images=True)
    assert len(data.train) == 4 and '2 of 10 images cannot be read' in capsys.readouterr().out


def test_too_little_disk_space(quick, run, monkeypatch, tmp_path, capsys):
    usage = namedtuple('usage', 'total used free')
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage(10 ** 9, 0, 100_000))
    assert run(*quick, '--image_cache', tmp_path / 'cache') == 2
    assert 'will need about 0.000124 GB more, and 0.0001 GB are free' in capsys.readouterr().err
    folder, = caches(tmp_path)
    assert (folder / 'pixels').stat().st_size == 0 and not (tmp_path / 'runs').exists()


def test_a_folder_that_cannot_be_written(source, select, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=r'--image_cache .*file: .*Not a directory.*; choose another folder'):
        select(source, image_cache=str(tmp_path / 'file'))

    def refuse(*_, **__):
        raise PermissionError(13, 'Permission denied', str(tmp_path / 'cache'))

    monkeypatch.setattr(image_cache.Path, 'mkdir', refuse)
    with pytest.raises(UserError, match='--image_cache .*cache: Permission denied; choose another folder'):
        select(source)
    monkeypatch.undo()
    select(source)
    monkeypatch.setattr(image_cache.Path, 'mkdir', refuse)
    select(source)                                                # complete: there is nothing to write
