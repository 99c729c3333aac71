"""Overlap of splits: planted copies are found, listed, drawn and recorded; the pairs against loops."""
import csv
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from records import run_folder
from retrieval import overlap
from tests.helpers import after_training, assert_same_end, folder_of


def rows(file):
    with open(file, newline='') as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def planted(patterns, tmp_path):
    """A --source_path: in the last, a test class, are a copy of a training image and an altered one of another."""
    folder = tmp_path / 'planted'
    shutil.copytree(patterns, folder)
    images = folder / 'images'
    shutil.copy(images / 'class_00' / '0.png', images / 'class_11' / 'copy.png')
    altered = Image.open(images / 'class_01' / '2.png')
    altered.putpixel((3, 3), (0, 0, 0))
    altered.save(images / 'class_11' / 'altered.png')
    return folder


def test_a_run_records_what_its_splits_share_and_goes_on(quick, run, planted, tmp_path, capsys):
    quick = [*quick, '--source_path', planted, '--n_epochs', '1', '--evaluation_metrics', 'e_recall@1']
    assert run(*quick) == 0 and run(*quick, '--group', 'other') == 0
    folder = folder_of(tmp_path)
    before = yaml.safe_load((folder / 'splits.yaml').read_text())
    capsys.readouterr()
    assert after_training(folder, 'overlap', '--threshold', '0.98') == 0
    found = rows(folder / 'overlap.csv')
    assert [(row['path_1'], row['path_2']) for row in found[:2]] == [
        (str(planted / 'images' / name), str(planted / 'images' / 'class_11' / copy))
        for name, copy in (('class_00/0.png', 'copy.png'), ('class_01/2.png', 'altered.png'))]
    assert found[0] == found[0] | {'split_1': 'train', 'class_1': 'class_00', 'split_2': 'test', 'class_2': 'class_11',
                                   'similarity': '1.000000', 'same_file': '1'}
    assert found[1]['same_file'] == '0' and .98 <= float(found[1]['similarity']) < 1
    after = run_folder.read_splits(folder)
    numbers = after.pop('overlap')
    assert after == before and numbers['threshold'] == .98
    assert numbers['train and test']['copies'] == 1
    assert numbers['train and test']['near_duplicates'] == len(found) - 1
    assert numbers['train and test']['images']['test'] == len({row['path_2'] for row in found})
    assert 'train and test' in capsys.readouterr().out
    assert Image.open(folder / 'overlap.png').width > 500
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert run('--resume', folder_of(tmp_path, 'other_s1'), '--n_epochs', '2') == 0
    assert_same_end(folder, folder_of(tmp_path, 'other_s1'))
    assert 'overlap' in run_folder.read_splits(folder)


def test_a_data_set_by_an_untrained_network(quick, planted, tmp_path, capsys):
    flags = ['folder', 'overlap', '--threshold', '1', *quick[2:]]
    assert after_training(*flags, '--source_path', planted) == 0
    folder = tmp_path / 'runs' / 'folder' / 'overlap'
    assert [row['path_2'] for row in rows(folder / 'overlap.csv')][0].endswith('copy.png')
    assert after_training(*flags, '--use_tv_split') == 0   # of the images without the copies
    assert not list(folder.glob('overlap.*')) and capsys.readouterr().out.count(' and ') == 4
    assert sorted(path.name for path in (tmp_path / 'runs' / 'folder').iterdir()) == ['overlap']


@pytest.mark.parametrize('place, flags, message', [
    ('nowhere', [], 'nowhere: not a run folder'),
    ('folder', ['--resume', 'nowhere'], '--resume has no effect'),
    ('folder', ['--split_scheme', 'half', '--test_size', '0'], 'there is nothing to compare'),
    ('folder', ['--threshold', '1.5'], '--threshold: expected a number of at least 0 and at most 1')])
def test_refusals(quick, place, flags, message, capsys):
    more = [*quick[2:], '--no_train_metrics', 'false'] if place == 'folder' else []
    assert after_training(place, 'overlap', *more, *flags) == 2 and message in capsys.readouterr().err


def test_other_data_than_those_of_the_run(quick, run, planted, tmp_path, capsys):
    assert run(*quick, '--n_epochs', '0') == 0
    assert after_training(folder_of(tmp_path), 'overlap', '--source_path', planted) == 2
    assert 'the data have other classes or numbers of images' in capsys.readouterr().err


@pytest.mark.parametrize('chunk, most', [(1 << 22, 10 ** 5), (60, 10 ** 5), (60, 20)])
def test_the_pairs_equal_loops(chunk, most, monkeypatch):
    monkeypatch.setattr(overlap, 'CHUNK', chunk)
    monkeypatch.setattr(overlap, 'MOST', most)
    random = np.random.default_rng(0)
    one, other = overlap.directions([random.normal(size=(n, 4)).astype('f4') for n in (40, 30)])
    assert np.abs(np.linalg.norm(one, axis=1) - 1).max() < 1e-6
    contents = [[None if number < 6 else number for number in random.integers(0, 12, n)] for n in (40, 30)]
    pairs, numbers = overlap.overlap(one, other, *contents, threshold=.5)
    same = {(i, j) for i in range(40) for j in range(30) if contents[0][i] and contents[0][i] == contents[1][j]}
    near = {(i, j): one[i] @ other[j] for i in range(40) for j in range(30) if one[i] @ other[j] >= .5} 
    near = {pair: similarity for pair, similarity in near.items() if pair not in same}
    assert numbers == {'copies': len(same), 'near_duplicates': len(near), 'images': [
        len({pair[side] for pair in [*same, *near]}) for side in (0, 1)]}
    listed = {pair[:2] for pair in pairs if pair[3]}, [pair[:2] for pair in pairs if not pair[3]]
    assert listed[0] <= same and len(listed[0]) == min(most, len(same))
    assert listed[1] == sorted(near, key=lambda pair: (-near[pair], pair))[:most]
