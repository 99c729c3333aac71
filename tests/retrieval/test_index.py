"""The index against brute force, and against kills at every moment."""
import argparse
import json
import os
import re
import sys

import numpy as np
import pytest
from PIL import Image

import retrieval
from retrieval import changes, nearest_rows, search, store
from retrieval.index import Index
from tests.helpers import after_training
from tests.test_structure import ROOT
from utilities.errors import UserError

NETWORK = argparse.Namespace(source='run', id='x', settings={}, open_set=None)


def index_of(folder, embeddings, codes=''):
    """An index of given embeddings."""
    changes.create(folder, NETWORK, codes=codes)
    return extended(folder, embeddings, [f'/photos/{row}.png' for row in range(len(embeddings))])


def extended(folder, embeddings, names):
    """The index, after images with these embeddings were added."""
    changes.append(folder, store.read(folder), [[name, 1, 1] for name in names], embeddings)
    changes.refresh(folder)
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


def test_embeddings_that_are_nearly_the_same_have_their_nearest_rows(with_faiss, tmp_path):
    embeddings = (1 + 1e-3 * np.random.default_rng(0).normal(size=(2000, 64))).astype(np.float32)
    rows, _ = index_of(tmp_path / 'index', embeddings).nearest(embeddings[:20], 10)
    assert np.array_equal(rows, brute_force(embeddings, embeddings[:20], 10)[0])


@pytest.mark.parametrize('codes', ['SQ8', 'PQ8', 'IVF16,SQ8', 'PCA12,SQ8', 'HNSW16'])
def test_an_index_is_searched_by_codes_and_ranks_what_they_find_by_the_embeddings(codes, tmp_path):
    pytest.importorskip('faiss')
    embeddings = clustered(2000, 16, 5, 0.1)
    index = index_of(tmp_path / 'index', embeddings[:1000], codes=codes)
    assert f', searched by {codes}: finds ' in str(index) and index.content['search']['recall'] > 0.9
    queries = clustered(40, 16, 5, 0.1, seed=2)
    more = extended(tmp_path / 'index', embeddings[1000:1500], [f'/more/{row}' for row in range(500)])
    fewer, _ = changes.remove(tmp_path / 'index', ['/photos'])
    for one in (index, more, fewer):
        rows, distances = one.nearest(queries, 10)
        expected, far = brute_force(one.embeddings, queries, 10)
        assert one.approximate.ntotal == len(one) in (1000, 1500, 500)
        hits = [np.isin(some, other) for some, other in zip(rows, expected, strict=True)]
        assert np.mean(hits) > 0.7                           # less than for images of the index
        own = np.linalg.norm(np.array(one.embeddings, float)[rows] - queries[:, None], axis=2)
        np.testing.assert_allclose(distances, own, rtol=1e-6)
        assert (np.diff(distances, axis=1) >= 0).all() and (distances >= far - 1e-6).all()
    changes.create(tmp_path / 'index', NETWORK)              # without codes again
    changes.refresh(tmp_path / 'index')
    index = Index(tmp_path / 'index')
    assert index.approximate is None and index.content['files'].keys() == {'embeddings', 'photos'}
    assert len(list((tmp_path / 'index').iterdir())) == 3 and str(index).endswith('500 images, exact search')


def test_codes_that_do_not_fit_leave_an_index_that_is_searched_exactly(tmp_path):
    pytest.importorskip('faiss')
    embeddings = clustered(100, 16, 5, 0.1)
    with pytest.raises(UserError, match='codes PQ8: Number of training points .100. should be at least as large as nu'):
        index_of(tmp_path / 'index', embeddings, codes='PQ8')
    index = Index(tmp_path / 'index')
    assert len(index) == 100 and index.approximate is None
    assert np.array_equal(index.nearest(embeddings[:9], 5)[0], brute_force(embeddings, embeddings[:9], 5)[0])


def test_a_stop_before_the_search_is_brought_up_to_date_leaves_exact_search(tmp_path):
    """Also where as many images were removed and added as there were, whose codes would be those of others."""
    pytest.importorskip('faiss')
    embeddings = clustered(2000, 16, 5, 0.1)
    index = index_of(tmp_path / 'index', embeddings[:1000], codes='SQ8')
    changes.keep(index, [row % 2 > 0 for row in range(1000)])
    changes.append(tmp_path / 'index', store.read(tmp_path / 'index'), [[f'/more/{row}', 1, 1] for row in range(500)],
                   embeddings[1000:1500])
    index = Index(tmp_path / 'index')
    assert len(index) == 1000 and index.approximate is None and str(index).endswith('1,000 images, exact search')
    rows = np.concatenate([embeddings[1:1000:2], embeddings[1000:1500]])
    assert np.array_equal(index.nearest(rows[400:600], 5)[0], brute_force(rows, rows[400:600], 5)[0])
    changes.refresh(tmp_path / 'index')
    index = Index(tmp_path / 'index')
    assert index.approximate.ntotal == 1000 and (index.nearest(rows[400:600], 1)[0][:, 0] == np.arange(400, 600)).all()


def test_an_index_in_cells_finds_planted_neighbours_by_visiting_few_of_them(tmp_path, monkeypatch):
    pytest.importorskip('faiss')
    embeddings = clustered(4004, 24, 11, 0.05)
    index = index_of(tmp_path / 'index', embeddings, 'IVF63,Flat')
    assert index.approximate.nprobe < 16 and index.approximate.ntotal == 4004
    rows, _ = index.nearest(embeddings[::7], 11)             # the query itself, and its ten planted neighbours
    assert np.mean(rows // 11 == np.arange(0, 4004, 7)[:, None] // 11) >= search.RECALL
    assert f'searched by IVF63,Flat: finds {index.content["search"]["recall"]:.1%} of the exact 10' in str(index)
    assert index.nearest(embeddings[:3], 4004)[0].shape == (3, 4004)                   # more than the cells have
    changes.remove(tmp_path / 'index', ['/photos/3.png'])    # the open index stays as it was
    assert index.query(embeddings[3:4], 1)[0] == [['/photos/3.png']]
    assert len(index.paths) == index.approximate.ntotal == 4004
    index = Index(tmp_path / 'index')
    assert len(index) == index.approximate.ntotal == 4003
    monkeypatch.setitem(sys.modules, 'faiss', None)          # the same index on a machine without faiss
    rest = np.delete(embeddings, 3, axis=0)
    assert np.array_equal(Index(tmp_path / 'index').nearest(rest[:3], 11)[0], brute_force(rest, rest[:3], 11)[0])


def test_indexes_of_earlier_programs(tmp_path):
    """Embeddings are read, and become an index of today with the next change; int8 codes are refused."""
    folder = tmp_path / 'index'
    embeddings = clustered(10, 16, 2, 0.1)
    index = index_of(folder, embeddings)
    files = {kind: {'name': file['name'], 'bytes': file['bytes']} for kind, file in index.content['files'].items()}
    (folder / 'cells_0').write_bytes(b'12345678')
    old = {'run': '/runs/a', 'network_id': 'x', 'settings': {}, 'generation': 3, 'n_images': 10, 'dim': 16,
           'recall': 0.95, 'search': {'n_cells': 1, 'n_visited': 1, 'recall': 1.0, 'n_images': 10}, 'version': 1,
           'files': files | {'cells': {'name': 'cells_0', 'bytes': 8}}}
    (folder / 'index.json').write_text(json.dumps(old))
    index = Index(folder)
    assert np.array_equal(index.embeddings, embeddings)
    index, _ = changes.remove(folder, ['/photos/3.png'])
    assert np.array_equal(index.embeddings, np.delete(embeddings, 3, axis=0)) and len(list(folder.iterdir())) == 3
    (folder / 'index.json').write_text(json.dumps(old | {'version': 2, 'codes': 'int8'}))
    with pytest.raises(UserError, match='index of int8 codes, .* index /runs/a PHOTOS --out NEW_FOLDER --codes SQ8'):
        Index(folder)


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
    (tmp_path / 'index' / 'query_1.png').touch()             # a user's own
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
        'embeddings', 'photos', 'index.json', 'unreadable.txt', 'query'}
    assert len(list((tmp_path / 'index').iterdir())) == 5    # those of earlier generations are gone


def test_changed_and_unreadable_files(network, photos, tmp_path):
    paths = [*images_of(photos), str(photos / 'class_00' / 'broken.jpg'), str(tmp_path / 'nowhere.png'),
             os.fsdecode(b'/photos/\xff.png')]
    index, unreadable = make(tmp_path / 'index', network, paths)
    assert len(index) == 12 and list(unreadable) == paths[12:]
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


@pytest.mark.parametrize('damage, sentence', [
    (lambda folder: (folder / 'index.json').write_text('{'), 'index.json: damaged'),
    (lambda folder: (folder / 'index.json').write_text('{"version": 0}'), 'not an index of this version'),
    (lambda folder: (folder / 'index.json').unlink(), 'not an index: .*No such file'),
    (lambda folder: (folder / 'embeddings_1').write_bytes(b'\0' * 639), 'embeddings_1: missing, or cut off'),
    (lambda folder: (folder / 'embeddings_1').write_bytes(b'\0' * 640), 'embeddings_1: it was changed'),
    (lambda folder: permute(folder / 'embeddings_1', 64), 'embeddings_1: it was changed'),
    (lambda folder: permute(folder / 'photos_1', 20), 'photos_1: it was changed'),
    (lambda folder: (folder / 'photos_1').unlink(), 'photos_1: missing'),
    (lambda folder: edit(folder, '"dim": 16', '"dim": 8'), 'index.json: it was changed'),
    (lambda folder: edit(folder, '"name": "photos_1"', '"name": "../photos_1"'), 'index.json: it was changed')])
def test_a_damaged_index_is_refused(damage, sentence, tmp_path):
    index_of(tmp_path / 'index', clustered(10, 16, 2, 0.1))
    damage(tmp_path / 'index')
    with pytest.raises(UserError, match=sentence):
        Index(tmp_path / 'index').query(np.zeros((1, 16)))


def permute(file, n_bytes):
    """Exchanges the first and the second part of so many bytes."""
    content = file.read_bytes()
    file.write_bytes(content[n_bytes:2 * n_bytes] + content[:n_bytes] + content[2 * n_bytes:])


def edit(folder, old, new):
    text = (folder / 'index.json').read_text()
    assert text.count(old) == 1
    (folder / 'index.json').write_text(text.replace(old, new))


def test_no_queries_and_queries_that_do_not_fit(with_faiss, tmp_path):
    index = index_of(tmp_path / 'index', clustered(10, 16, 2, 0.1))
    paths, distances = index.query(np.empty((0, 16)), 20)
    assert paths == [] and distances.shape == (0, 10) and distances.dtype == np.float32
    for queries, sentence in ((np.zeros((2, 8)), r'expected embeddings \[n, 16\], not \[2, 8\]'),
                              (np.zeros(16), r'expected embeddings \[n, 16\], not \[16\]'),
                              (np.full((2, 16), np.nan), 'the embedding 0 is not finite')):
        with pytest.raises(UserError, match=sentence):
            index.query(queries)
    changes.create(tmp_path / 'empty', NETWORK)
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
