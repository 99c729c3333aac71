"""The index against brute force, and against kills at every moment."""
import argparse
import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from PIL import Image

import retrieval
from evaluation.ranking import nearest_rows
from retrieval import changes, search, store
from retrieval.index import Index
from tests.helpers import after_training, executed, executing, wait_for
from tests.test_structure import ROOT
from utilities.errors import UserError

NETWORK = argparse.Namespace(source='run', id='x', settings={}, open_set=None)


def index_of(folder, embeddings, names=None, recall=0.95, codes='float32'):
    """An index of given embeddings."""
    store.create(folder, NETWORK, recall, codes=codes)
    names = names or [f'/photos/{row}.png' for row in range(len(embeddings))]
    changes.extended(folder, store.read(folder), [[name, 1, 1] for name in names], embeddings, [])
    changes.refit(Index(folder))
    return Index(folder)


def clustered(n, dim, size, spread, seed=0):
    """[n, dim] float32 of norm 1: clusters of `size` points."""
    random = np.random.default_rng(seed)
    points = np.repeat(random.normal(size=(n // size, dim)), size, axis=0) + spread * random.normal(size=(n, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def brute_force(embeddings, queries, k):
    """Rows and distances, one query at a time in float64."""
    found = []
    for query in queries.astype(float):
        distances = np.sqrt(((embeddings.astype(float) - query) ** 2).sum(axis=1))
        rows = sorted(range(len(embeddings)), key=lambda row: (distances[row], row))[:k]      # noqa: B023
        found.append((rows, distances[rows]))
    return [np.array(part) for part in zip(*found, strict=True)]


def test_an_index_is_current_until_it_is_written_or_another_takes_its_place(tmp_path):
    rows = np.eye(3, 4, dtype=np.float32)
    index, _ = (index_of(tmp_path / name, rows, [f'/{name}/{row}.png' for row in range(3)]) for name in ('one', 'two'))
    assert index.is_current()
    (tmp_path / 'one').rename(tmp_path / 'old')
    assert not index.is_current()
    (tmp_path / 'two').rename(tmp_path / 'one')                       # of the same size, network and generation
    assert not index.is_current() and index.paths == [f'/one/{row}.png' for row in range(3)]
    index = Index(tmp_path / 'one')
    store.write(index.folder, index.content | {'recall': 1.0})
    assert not index.is_current()


@pytest.fixture(params=[True, False], ids=['faiss', 'torch'])
def with_faiss(request, monkeypatch):
    if request.param:
        pytest.importorskip('faiss')
    else:
        monkeypatch.setitem(sys.modules, 'faiss', None)
        monkeypatch.setattr(nearest_rows, 'ROWS', 100)
    return request.param


@pytest.mark.parametrize('n_queries', [1, 30])
def test_exact_search_is_brute_force(n_queries, with_faiss, tmp_path):
    embeddings = clustered(400, 24, 4, 0.2)
    embeddings[7] = embeddings[3]                            # duplicates: both at distance 0, the first row first
    queries = np.concatenate([embeddings[3:4], clustered(n_queries - 1, 24, 1, 0, seed=2)]) if n_queries > 1 else (
        embeddings[3:4])
    index = index_of(tmp_path / 'index', embeddings)
    for k in (1, 10, 1000):
        rows, distances = index.nearest(queries, k)
        expected, far = brute_force(embeddings, queries, min(k, 400))
        assert np.array_equal(rows, expected)
        np.testing.assert_allclose(distances, far, rtol=1e-6, atol=0)
    paths, _ = index.query(queries, 2)
    assert paths[0] == ['/photos/3.png', '/photos/7.png'] and distances[0, 1] == 0


def test_an_index_of_codes_takes_a_quarter_and_finds_the_nearest_of_them(with_faiss, tmp_path):
    embeddings = clustered(400, 64, 4, 0.2)
    embeddings[7] = embeddings[3]
    plain, index = (index_of(tmp_path / codes, embeddings, codes=codes) for codes in ('float32', 'int8'))
    sizes = [one.content['files']['embeddings']['bytes'] for one in (plain, index)]
    assert sizes == [400 * 64 * 4, 400 * (64 + 4)]
    assert [one.content['version'] for one in (plain, index)] == [1, 2] and 'codes' not in plain.content
    read = np.asarray(index.embeddings)
    assert 0 < abs(read - embeddings).max() < 1 / 127 and str(index).endswith('400 images as int8 codes, exact search')
    queries = clustered(20, 64, 4, .2, seed=2)
    rows, distances = index.nearest(queries, 10)
    expected, far = brute_force(read, queries, 10)
    assert np.array_equal(rows, expected)
    np.testing.assert_allclose(distances, far, rtol=1e-6)
    assert index.nearest(read[3:4], 2)[0].tolist() == [[3, 7]]
    changes.keep(index, [row % 3 > 0 for row in range(400)])
    kept = Index(tmp_path / 'int8')
    assert np.array_equal(kept.stored, index.stored[np.arange(400) % 3 > 0]) and len(Index(tmp_path / 'int8')) == 266
    changes.extended(tmp_path / 'int8', kept.content, [['/photos/new.png', 1, 1]], embeddings[:1], [])
    assert Index(tmp_path / 'int8').nearest(embeddings[:1], 1)[0].tolist() == [[266]]


def test_a_large_index_of_codes_has_cells(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    monkeypatch.setattr(search, 'LARGE', 1000)
    embeddings = clustered(1100, 24, 11, 0.05)
    index = index_of(tmp_path / 'index', embeddings, recall=0.9, codes='int8')
    assert index.content['search']['n_cells'] == 33 and index.inverted_file.ntotal == 1100
    rows, _ = index.nearest(embeddings[::7], 11)
    assert np.mean(rows // 11 == np.arange(0, 1100, 7)[:, None] // 11) >= 0.9


def test_a_large_index_finds_planted_neighbours_by_visiting_few_cells(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    monkeypatch.setattr(search, 'LARGE', 2000)
    embeddings = clustered(4004, 24, 11, 0.05)
    index = index_of(tmp_path / 'index', embeddings, recall=0.99)
    how = index.content['search']
    assert how['n_cells'] == 63 and how['n_visited'] < 16 and index.inverted_file.ntotal == 4004
    rows, _ = index.nearest(embeddings[::7], 11)             # the query itself, and its ten planted neighbours
    assert np.mean(rows // 11 == np.arange(0, 4004, 7)[:, None] // 11) >= 0.99
    assert str(index).endswith(f'visits {how["n_visited"]}: finds {how["recall"]:.1%} of the exact 10 nearest')
    monkeypatch.setitem(sys.modules, 'faiss', None)          # the same index on a machine without faiss
    assert np.array_equal(Index(tmp_path / 'index').nearest(embeddings[:3], 11)[0],
                          brute_force(embeddings, embeddings[:3], 11)[0])


def test_the_recall_that_chooses_the_cells_is_that_of_queries_and_not_of_themselves(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    embeddings = clustered(3000, 8, 30, 0.3)
    how, centroids, cells = search.train(embeddings, 0.9)
    index = search.inverted_file(embeddings, centroids, cells, how['n_visited'])
    expected = brute_force(embeddings, embeddings[:300], 11)[0]
    found = index.search(embeddings[:300], 11)[1]
    recall = np.mean([len(set(one) & set(other) - {row}) / 10
                      for row, (one, other) in enumerate(zip(expected, found, strict=True))])
    assert 0.9 <= how['recall'] < 1 and abs(recall - how['recall']) < 0.04
    assert np.array_equal(cells, brute_force(centroids, embeddings, 1)[0][:, 0])


def test_search_stays_exact_where_cells_do_not_help(tmp_path, monkeypatch):
    monkeypatch.setattr(search, 'LARGE', 2000)
    noise = clustered(2000, 64, 1, 0)
    assert not index_of(tmp_path / 'noise', noise).content['search']['n_cells']
    assert index_of(tmp_path / 'small', noise[:1999]).content['search'] == search.EXACT


def test_another_recall_chooses_the_search_again(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    monkeypatch.setattr(search, 'LARGE', 1000)
    embeddings = clustered(1100, 16, 11, 0.05)
    index_of(tmp_path / 'index', embeddings, recall=1)
    changes.create(tmp_path / 'index', NETWORK, 0.9)
    changes.refit(Index(tmp_path / 'index'))
    how = Index(tmp_path / 'index').content['search']
    assert how['n_cells'] == 33 and how['recall'] >= 0.9 and how['n_images'] == 1100
    changes.create(tmp_path / 'index', NETWORK, 1)
    changes.refit(Index(tmp_path / 'index'))
    index = Index(tmp_path / 'index')
    assert index.inverted_file is None and index.content['files'].keys() == {'embeddings', 'photos'}
    assert np.array_equal(index.embeddings, embeddings) and len(list((tmp_path / 'index').iterdir())) == 3


def images_of(folder):
    return sorted(str(path) for path in folder.rglob('*.png'))


@pytest.fixture
def network(trained):
    return retrieval.load(trained, 'cpu')


def make(folder, network, paths, **flags):
    changes.create(folder, network[0])
    return changes.add(folder, *network, paths, bs=4, **flags)


class Same(np.ndarray):
    """An embedding; two are equal but for rounding, which depends on the other images of a batch."""
    def __eq__(self, other):
        return np.allclose(np.asarray(self), np.asarray(other), rtol=0, atol=1e-5)


def whole(index):
    """{path: embedding} of an index."""
    return {path: row.view(Same) for path, row in zip(index.paths, np.array(index.embeddings), strict=True)}


def is_part(one, other):
    return one == {path: row for path, row in other.items() if path in one}


def test_added_and_removed_images_make_the_index_that_a_new_one_is(network, photos, tmp_path):
    paths = images_of(photos)
    new, unreadable = make(tmp_path / 'new', network, paths[:9])
    assert len(new) == 9 and not unreadable
    make(tmp_path / 'index', network, paths[4:])
    changes.remove(tmp_path / 'index', paths[9:])
    index, _ = changes.add(tmp_path / 'index', *network, paths[:9])
    assert whole(index) == whole(new)
    index, n_removed = changes.remove(tmp_path / 'index', [photos / 'class_00'])
    assert n_removed == 6 and index.paths == [path for path in index.paths if 'class_01' in path] and len(index) == 3
    rows, distances = index.nearest(index.embeddings, 1)
    assert rows[:, 0].tolist() == [0, 1, 2] and not distances.any()
    with pytest.raises(UserError, match='the index has no image in .*class_0; its first is .*class_01'):
        changes.remove(tmp_path / 'index', [photos / 'class_0'])
    assert {file.name.split('_')[0] for file in (tmp_path / 'index').iterdir()} == {
        'embeddings', 'photos', 'index.json', 'unreadable.txt'}
    assert len(list((tmp_path / 'index').iterdir())) == 4    # those of earlier generations are gone


def test_images_of_a_large_index_are_added_to_its_cells_and_removed_from_them(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    monkeypatch.setattr(search, 'LARGE', 1000)
    embeddings = clustered(2200, 16, 11, 0.05)
    index = index_of(tmp_path / 'index', embeddings[:1100])
    assert index.content['search']['n_images'] == 1100
    content = changes.extended(tmp_path / 'index', index.content, [[f'/more/{row}', 1, 1] for row in range(880)],
                               embeddings[1100:1980], index.array('centroids', np.float32, 16))
    changes.refit(Index(tmp_path / 'index'))
    assert store.read(tmp_path / 'index') == content         # not fitted again before it has doubled
    index, _ = changes.remove(tmp_path / 'index', ['/photos'])
    assert len(index) == index.inverted_file.ntotal == 880
    expected, _ = brute_force(embeddings[1100:1980], embeddings[1100:1120], 11)
    assert np.mean(index.nearest(embeddings[1100:1120], 11)[0] == expected) > 0.95
    changes.extended(tmp_path / 'index', index.content, [[f'/again/{row}', 1, 1] for row in range(1980)],
                     embeddings[:1980], index.array('centroids', np.float32, 16))
    changes.refit(Index(tmp_path / 'index'))
    assert store.read(tmp_path / 'index')['search']['n_images'] == 2860


def test_changed_and_unreadable_files(network, photos, tmp_path):
    paths = [*images_of(photos), str(photos / 'class_00' / 'broken.jpg'), str(tmp_path / 'nowhere.png'),
             os.fsdecode(b'/photos/\xff.png')]
    index, unreadable = make(tmp_path / 'index', network, paths)
    assert len(index) == 12 and list(unreadable) == [paths[13], paths[14], paths[12]]
    listed = (tmp_path / 'index' / 'unreadable.txt').read_text().splitlines()
    assert len(listed) == 3 and f'{paths[12]}: not a readable image (its format is not known)' in listed
    assert not any('skip_bad_images' in line for line in listed)
    before = whole(index)
    os.replace(paths[0], paths[12])                          # mended; another one is replaced
    (photos / 'class_00' / '0.png').write_bytes((photos / 'class_01' / '0.png').read_bytes())
    index, unreadable = changes.add(tmp_path / 'index', *network, paths[:13])
    after = whole(index)
    assert not unreadable and len(after) == 13
    assert after.pop(paths[12]) == before[paths[0]] and after[paths[0]] == after[paths[6]] == before[paths[6]]
    assert all(after[path] == before[path] for path in paths[1:12])


def test_an_open_index_stays_as_it_was_when_its_files_are_replaced(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    monkeypatch.setattr(search, 'LARGE', 1000)
    embeddings = clustered(1100, 16, 11, 0.05)
    index = index_of(tmp_path / 'index', embeddings)
    changes.remove(tmp_path / 'index', ['/photos/3.png'])
    assert index.query(embeddings[3:4], 1)[0] == [['/photos/3.png']]
    assert len(index.paths) == index.inverted_file.ntotal == 1100 and len(Index(tmp_path / 'index')) == 1099


class Killed(BaseException):
    """What no clean-up expects."""


def test_a_kill_at_any_write_leaves_a_whole_index_and_the_same_call_goes_on(network, photos, tmp_path, monkeypatch):
    paths = images_of(photos)
    monkeypatch.setattr(changes, 'SECONDS', 0)
    expected = whole(make(tmp_path / 'all', network, paths)[0])
    after_removal = {path: row for path, row in expected.items() if path in paths[3:]}
    n_stopped = 0
    for action, end in (('add', expected), ('remove', after_removal)):
        for number in range(1, 100, 2 if action == 'add' else 1):
            folder = tmp_path / f'{action}_{number}'
            make(folder, network, paths[:2] if action == 'add' else paths)
            before = whole(Index(folder))
            with monkeypatch.context() as patch:
                fail_at(patch, number)
                try:
                    changes.add(folder, *network, paths, bs=4) if action == 'add' else changes.remove(folder, paths[:3])
                    break
                except Killed:
                    n_stopped += 1
            index = Index(folder)
            if action == 'add':
                assert is_part(before, whole(index)) and is_part(whole(index), expected)
            else:
                assert whole(index) in (before, end)
            if whole(index) != end:
                changes.add(folder, *network, paths) if action == 'add' else changes.remove(folder, paths[:3])
            assert whole(Index(folder)) == end
    assert n_stopped > 12


def fail_at(patch, number):
    """The call `number` of those that write, sync, rename and delete files raises Killed; all later ones, too."""
    n_calls = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal n_calls
            n_calls += 1
            if n_calls >= number:
                raise Killed
            return function(*arguments, **options)
        return call

    for name in ('fsync', 'replace', 'unlink'):
        patch.setattr(os, name, counted(getattr(os, name)))
    patch.setattr(store.Path, 'unlink', counted(store.Path.unlink))


COMMAND = '''
import sys
import Retrieve_Images
sys.exit(Retrieve_Images.main(sys.argv[1:]))
'''
SLOW = '''
import time
from retrieval import changes, loading
changes.SECONDS, embedded = 0, loading.embedded
def slowly(*arguments):
    for batch in embedded(*arguments):
        yield batch
        time.sleep(0.5)
loading.embedded = slowly
''' + COMMAND


def test_an_index_that_is_killed_while_it_is_made_is_finished_by_the_same_command(trained, network, photos, tmp_path):
    arguments = ['index', str(trained), str(photos), '--out', str(tmp_path / 'index'), '--bs', '2', '--kernels', '0',
                 '--device', 'cpu']
    process, _, _ = executing(tmp_path, SLOW, *arguments)
    file = tmp_path / 'index' / 'index.json'
    wait_for(lambda: file.exists() and json.loads(file.read_text())['n_images'] >= 4)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 4 <= len(Index(tmp_path / 'index')) < 12
    code, out, errors = executed(tmp_path, COMMAND, *arguments)
    assert code == 0 and out.endswith(f'{tmp_path / "index"}: 12 images, exact search\n'), out + errors
    assert 'cannot be read: 1 of 13 images' in errors and 'broken.jpg' in errors
    assert whole(Index(tmp_path / 'index')) == whole(make(tmp_path / 'new', network, images_of(photos))[0])


@pytest.mark.parametrize('damage, sentence', [
    (lambda folder: (folder / 'index.json').write_text('{'), 'index.json: damaged'),
    (lambda folder: (folder / 'index.json').write_text('{"version": 0}'), 'not an index of this version'),
    (lambda folder: (folder / 'index.json').unlink(), 'not an index: .*No such file'),
    (lambda folder: (folder / 'embeddings_0').write_bytes(b'\0' * 639), 'embeddings_0: missing, or cut off'),
    (lambda folder: (folder / 'photos_0').unlink(), 'photos_0: missing'),
    (lambda folder: edit(folder, name='../photos_0'), 'photos_0: missing'),
    *((lambda folder, entry=entry: store.write(folder, store.read(folder) | entry), sentence) for entry, sentence in (
        ({'dim': 10 ** 9}, 'its embeddings are no rows of 1000000000 numbers'),
        ({'dim': 3}, 'its embeddings are no rows of 3 numbers'), ({'dim': 8}, 'the numbers of embeddings and of'),
        ({'dim': -1}, r'index.json: damaged \(dim\)'), ({'dim': 'x', 'search': []}, r'damaged \(dim, search\)'),
        ({'search': search.EXACT | {'n_cells': 1e9}}, r'damaged \(search\)'), ({'recall': 2}, r'damaged \(recall\)'))),
    (lambda folder: edit(folder, bytes=-1), r'damaged \(files\)'),
    (lambda folder: edit(folder, bytes=9), 'damaged: its list of images'),
])
def test_a_damaged_index_is_refused(damage, sentence, tmp_path):
    index_of(tmp_path / 'index', clustered(10, 16, 2, 0.1))
    (tmp_path / 'photos_0').write_bytes((tmp_path / 'index' / 'photos_0').read_bytes())
    damage(tmp_path / 'index')
    with pytest.raises(UserError, match=sentence):
        Index(tmp_path / 'index').query(np.zeros((1, 16)))


@pytest.mark.parametrize('n_cells, n_visited, cells', [
    (3, 1, None), (10 ** 9, 1, None), (2, 0, [0] * 10), (2, 3, [0] * 10), (2, 1, [0] * 9), (2, 1, [0] * 9 + [2]),
    (2, 1, [-1] * 10)])
def test_a_damaged_inverted_file_is_refused(n_cells, n_visited, cells, tmp_path):
    """faiss would read beyond its memory."""
    pytest.importorskip('faiss')
    folder = tmp_path / 'index'
    content = index_of(folder, clustered(10, 16, 2, 0.1)).content
    how = search.EXACT | {'n_cells': n_cells, 'n_visited': n_visited}
    rows = {} if cells is None else {'cells': np.array(cells, np.int32), 'centroids': np.eye(2, 16, dtype=np.float32)}
    store.append(folder, content | {'search': how}, 0, **{kind: part.tobytes() for kind, part in rows.items()})
    with pytest.raises(UserError, match='damaged: its inverted file'):
        Index(folder).query(np.zeros((1, 16)))


def edit(folder, **entries):
    content = store.read(folder)
    content['files']['photos'] |= entries
    store.write(folder, content)


def test_no_queries_and_queries_that_do_not_fit(with_faiss, tmp_path):
    index = index_of(tmp_path / 'index', clustered(10, 16, 2, 0.1))
    paths, distances = index.query(np.empty((0, 16)), 20)
    assert paths == [] and distances.shape == (0, 10) and distances.dtype == np.float32
    with pytest.raises(UserError, match=r'expected queries \[Q, 16\], not \[2, 8\]'):
        index.query(np.zeros((2, 8)))
    store.create(tmp_path / 'empty', NETWORK, 1)
    with pytest.raises(UserError, match='no images yet'):
        Index(tmp_path / 'empty').query(np.zeros((2, 8)))


def test_an_index_of_another_network_is_refused(network, another, photos, tmp_path):
    index, _ = make(tmp_path / 'index', network, images_of(photos))
    assert index.load_network(device='cpu')[0].id == network[0].id
    other = retrieval.load(another, 'cpu')
    for work in (lambda: index.load_network(another, 'cpu'), lambda: changes.create(tmp_path / 'index', other[0]),
                 lambda: changes.add(tmp_path / 'index', *other, images_of(photos))):
        with pytest.raises(UserError, match='the network of .*quick_s2 did not make this index: the weights'):
            work()


def test_the_page_about_using_a_network(trained, photos, tmp_path, run, monkeypatch):
    """Its Python runs on files of these names, and its table has the keys of the file of embeddings."""
    page = (ROOT / 'docs' / 'using_a_network.md').read_text()
    monkeypatch.chdir(tmp_path)
    for name, image in zip(('tomato.jpg', 'milk.jpg'), images_of(photos), strict=False):
        Image.open(image).save(name)
    found = {}
    first, second, *_ = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    exec(first.replace('Training_Results/folder/Grocery_s1', str(trained)), found)
    assert found['embeddings'].shape == (2, 16)
    make(tmp_path / 'Grocery_Index', (found['network'], found['transform']), images_of(photos))
    exec(second, found)
    assert len(found['paths'][0]) == 5 and found['rows'][0, 0] == found['distances'][0, 0] == 0
    assert after_training(trained, 'embeddings', 'embeddings.npz') == 0
    table = page.partition('| key | array |')[2].partition('\n\n')[0]
    assert re.findall(r'^\| `(\w+)` \|', table, re.MULTILINE) == list(np.load('embeddings.npz').keys())
