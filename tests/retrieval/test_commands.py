"""The command line: Retrieve_Images.py."""
import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import retrieval
import Retrieve_Images
from datasets import decoding
from retrieval import changes, server, store
from retrieval.photos import find
from tests.retrieval.test_index import images_of
from utilities import processes


def test_a_query_prints_writes_and_draws_the_nearest_images(call, index, trained, photos, tmp_path):
    queries = images_of(photos / 'class_01')[:2]
    code, out, err = call('query', index, *queries, photos / 'class_00' / 'broken.jpg', '--k', '3',
                          '--json', tmp_path / 'found.json', '--picture', tmp_path / 'found.png')
    assert code == 0 and 'Left out, since they cannot be read: 1 of 3 images\n' in err
    network, transform = retrieval.load(trained, 'cpu')
    embeddings = retrieval.embed(network, transform, [*queries, *images_of(photos)]).numpy()
    distances = np.linalg.norm(embeddings[:2, None] - embeddings[2:], axis=2)
    found = json.loads((tmp_path / 'found.json').read_text())
    assert [row['query'] for row in found] == queries
    for row, far in zip(found, distances, strict=True):
        nearest = np.argsort(far)[:3]
        assert [one['path'] for one in row['nearest']] == [images_of(photos)[i] for i in nearest]
        np.testing.assert_allclose([one['distance'] for one in row['nearest']], far[nearest], atol=1e-5)
        assert row['nearest'][0]['path'] == row['query'] and row['nearest'][0]['distance'] < 1e-5
    lines = out.splitlines()
    assert lines[0] == queries[0] and lines[1].startswith('  class: class_0') and lines[6] == queries[1]
    assert lines[2] == '  rank  distance  nearest'
    assert lines[4].split() == ['2', f'{np.sort(distances[0])[1]:.4f}', found[0]['nearest'][1]['path']]
    picture = np.asarray(Image.open(tmp_path / 'found.png').convert('RGB'))
    assert picture.std() > 30
    named = tmp_path / f'{"a photo with a name of many words " * 6}.jpg'
    shutil.copy(queries[0], named)
    code, out, _ = call('query', index, named, '--k', '2', '--picture', tmp_path / 'found.svg')
    assert code == 0 and (tmp_path / 'found.svg').read_text().startswith('<?xml')


def test_an_index_of_codes_answers_and_grows_like_another(call, trained, photos, tmp_path):
    pytest.importorskip('faiss')
    folder = tmp_path / 'codes'
    assert call('index', trained, photos / 'class_00', '--out', folder, '--codes', 'SQ8')[0] == 0
    code, out, _ = call('add', folder, photos)
    assert code == 0 and out.startswith(f'{folder}: 12 images, searched by SQ8: finds 100.0% of the exact 10 nearest')
    assert call('remove', folder, images_of(photos)[0])[0] == 0
    _, out, _ = call('query', folder, images_of(photos)[3], '--k', '1', '--json', '-')
    found = json.loads(out)[0]['nearest'][0]
    assert found['path'] == images_of(photos)[3] and found['distance'] < 1e-4
    for codes, sentence in (('int8', 'codes int8: could not parse'), ('PQ5', 'codes PQ5: The dimension of the vector')):
        code, _, err = call('index', trained, photos, '--out', tmp_path / 'none', '--codes', codes)
        assert code == 2 and sentence in err and not (tmp_path / 'none').exists()
    code, out, _ = call('index', trained, photos, '--out', folder)
    assert code == 0 and out == f'{folder}: 12 images, exact search\n'


def test_what_is_ignored_in_a_folder_is_counted_and_named(call, trained, photos, tmp_path, monkeypatch):
    for name in ('a.mov', 'b.MOV', 'notes', '.hidden.mov'):
        (photos / 'class_01' / name).touch()
    (photos / 'class_01' / 'sent.jfif').write_bytes(jpeg(photos))
    code, out, err = call('index', trained, photos, '--out', tmp_path / 'index')
    assert code == 0 and '13 images' in out
    assert ': 3 (.mov 2, no extension 1): ' in err and f'{photos}/class_01/a.mov, ' in err and 'hidden' not in err
    (tmp_path / 'phone').mkdir()
    (tmp_path / 'phone' / '1.heic').touch()
    others = decoding.suffixes() - {'.heic', '.heif'}
    for suffixes, expected, sentence in ((others, 2, 'pip install pillow-heif'),
                                         (others | {'.heic'}, 0, 'they cannot be read: 1 of 1 images')):
        monkeypatch.setattr(decoding, 'suffixes', lambda suffixes=suffixes: suffixes)
        code, _, err = call('add', tmp_path / 'index', tmp_path / 'phone')
        assert code == expected and sentence in err


def jpeg(photos):
    file = io.BytesIO()
    Image.open(photos / 'class_00' / '1.png').convert('RGB').save(file, 'JPEG')
    return file.getvalue()


def test_images_are_added_and_removed_and_the_moved_are_named(call, index, trained, photos, tmp_path):
    more = shutil.copytree(photos / 'class_01', tmp_path / 'more')
    assert call('add', index, more)[1] == f'{index}: 18 images, exact search\n'
    assert call('index', trained, photos, more, '--out', index)[1] == f'{index}: 18 images, exact search\n'
    more.rename(tmp_path / 'moved')
    code, _, err = call('query', index, tmp_path / 'moved' / '0.png', '--k', '18', '--picture', tmp_path / 'found.png')
    assert code == 0 and (tmp_path / 'found.png').exists()
    assert 'Moved or deleted since they were indexed: 6 of 18 images found; ' in err and f'{more}/0.png' in err
    assert call('remove', index, '--missing')[:2] == (0, f'images removed: 6\n{index}: 12 images, exact search\n')
    assert call('remove', index, '--missing')[:2] == (0, f'images removed: 0\n{index}: 12 images, exact search\n')
    (photos / 'list.csv').write_text('path\nclass_01/1.png\nclass_01/gone.png\n')
    assert call('remove', index, photos / 'list.csv')[1].startswith('images removed: 1\n')
    assert call('remove', index, photos / 'class_00', images_of(photos)[-1])[1].startswith('images removed: 7\n')


def test_sentences(call, index, trained, another, photos, tmp_path):
    some = images_of(photos)[0]
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'wrong.csv').write_text('file\na.png\n')
    (tmp_path / 'nul.csv').write_text('path\na\0.png\n')
    (tmp_path / 'nul.txt').write_text('a.png\n', encoding='utf-16-le')
    for arguments, sentence in (
            (['query', index, tmp_path / 'nowhere.jpg'], 'nowhere.jpg: there is no such file or folder'),
            (['query', index, tmp_path / 'empty'], 'empty: it names no image; expected a folder with images'),
            (['query', index, tmp_path / 'wrong.csv'], 'expected a header with the column path, found file'),
            (['add', index, tmp_path / 'nul.csv'], 'nul.csv: not a list of images in UTF-8 (it has NUL bytes)'),
            (['add', index, tmp_path / 'nul.txt'], 'nul.txt: not a list of images in UTF-8 (it has NUL bytes)'),
            (['query', index, photos / 'class_00' / 'broken.jpg'], 'broken.jpg: not a readable image'),
            (['query', index, some, '--run', another], 'did not make this index'),
            (['serve', index, '--port', '65536'], '--port: expected a whole number of at least 0 and at most 65535'),
            (['query', index, some, '--k', '0'], '--k: expected a whole number of at least 1'),
            (['query', index, some, '--vote', '-1'], '--vote: expected'),
            (['query', index, some, '--csv', tmp_path / 'nowhere' / 'a.csv'], '--csv'),
            (['query', index, some, '--csv', '-'], '--csv -: give the name of a file'),
            (['query', index, some, '--picture', tmp_path / 'a.gif'], 'ends in .png or .svg'),
            (['query', index, some, '--json', tmp_path / 'nowhere' / 'a'], '--json'),
            (['query', trained, some], 'not an index'),
            (['query', index, some, '--run', tmp_path], 'not a run folder'),
            (['index', trained, some, '--out', trained], 'it exists and is no index; give a new folder'),
            (['index', trained, some, '--out', some + '/index'], 'is a file; give a folder'),
            (['index', another, some, '--out', index], 'did not make this index'),
            (['index', trained, some], 'required: --out'),
            (['remove', index], 'name photos or folders, or give --missing'),
            (['remove', index, tmp_path], None),
            (['remove', index, tmp_path], 'the index has no image in'),
            (['query', index, some], 'the index has no images yet'),
            (['serve', index], 'the index has no images yet')):
        code, _, err = call(*arguments)
        assert (code == 0) if sentence is None else (code == 2 and sentence in err and len(err.splitlines()) == 1), err


def test_json_is_all_that_is_printed_to_stdout_on_a_machine_without_a_gpu(index, photos, monkeypatch, capsys):
    monkeypatch.setattr(processes, 'accelerator', lambda: None)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: False)
    capsys.readouterr()
    assert Retrieve_Images.main(['query', str(index), images_of(photos)[0], '--json', '-', '--kernels', '0']) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1 and 'No GPU found' in err


def test_the_page_gets_the_flags_of_serve(call, index, monkeypatch):
    served = []
    monkeypatch.setattr(server, 'serve', lambda *given: served.extend(given))
    assert call('serve', index, '--k', '7', '--vote', '3', '--threshold', '0.5', '--host', 'h', '--port', '9')[0] == 0
    searched, _, _, *others = served
    assert others == [7, 'h', 9, 3] and searched.open_set['threshold'] == 0.5


def test_an_index_can_be_queried_with_its_run_elsewhere(call, index, trained, photos, tmp_path):
    shutil.copytree(trained, tmp_path / 'moved')
    store.write(index, store.read(index) | {'run': str(tmp_path / 'gone')})
    some = images_of(photos)[0]
    code, _, err = call('query', index, some)
    assert code == 2 and f'its run is not at {tmp_path / "gone"} any more; give its path by --run' in err
    assert call('query', index, some, '--run', tmp_path / 'moved')[0] == 0


def test_photos_are_named_by_files_folders_and_lists(photos, tmp_path, capsys):
    (photos / '.hidden').mkdir()
    (photos / 'class_00' / 'back').symlink_to(photos)
    for name in ('.hidden/a.png', '.b.png', 'note.md', 'C.JPG'):
        (photos / name).touch()
    images = sorted([*images_of(photos / 'class_00'), str(photos / 'class_00' / 'broken.jpg')])
    assert find([photos / 'class_00']) == images
    assert find([photos]) == sorted([str(photos / 'C.JPG'), *images, *images_of(photos / 'class_01')])
    (photos / 'list.csv').write_text('label,path\na,class_01/1.png\nb,gone.png\n')
    (tmp_path / 'list.txt').write_text(f'{images[0]}\n\nphotos/class_01/1.png\n')
    assert find([photos / 'list.csv', tmp_path / 'list.txt', images[1]]) == [
        str(photos / 'class_01' / '1.png'), str(photos / 'gone.png'), images[0], images[1]]
    assert 'boxes' not in capsys.readouterr().err
    (photos / 'list.csv').write_text('path,bbox_x,bbox_y,W,H\na.png,1,1,9,9\na.png,9,9,9,9\n')
    assert find([photos / 'list.csv']) == [str(photos / 'a.png')]
    assert 'its boxes are not read: each image is taken once, and as a whole' in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_embedded(call, trained, photos, tmp_path, monkeypatch):
    embedded = changes.loading.embed_in_batches

    def stopped(*arguments):
        batches = embedded(*arguments)
        yield next(batches)
        raise KeyboardInterrupt

    arguments = ['index', trained, photos, '--out', tmp_path / 'index', '--bs', '4']
    with monkeypatch.context() as patch:
        patch.setattr(changes.loading, 'embed_in_batches', stopped)
        code, _, err = call(*arguments)
    assert code == 130 and 'The same command continues.' in err
    assert len(retrieval.Index(tmp_path / 'index')) in (3, 4)
    assert call(*arguments)[1] == f'{tmp_path / "index"}: 12 images, exact search\n'
