"""The class of a new photo: by hand, by a loop over the nearest images, on the command line and on the page."""
import csv
import json
import random
import shutil

import numpy as np
import pytest

import retrieval
from retrieval import server
from retrieval.vote import vote
from tests.retrieval.test_commands import call, index  # noqa: F401
from tests.retrieval.test_index import images_of


def test_votes_by_hand():
    """Weights .98, .5, .5; and where d² is above 2, equal weights."""
    assert vote(['a', 'b', 'b'], np.sqrt([.04, 1, 1])) == {'class': 'b', 'share': pytest.approx(1 / 1.98)}
    assert vote(['a', 'b', 'c'], np.sqrt([.04, 1, 3])) == {'class': 'a', 'share': pytest.approx(.98 / 1.48)}
    assert vote(['a', 'b', 'b'], np.array([3., 4, 5])) == {'class': 'b', 'share': pytest.approx(2 / 3)}
    assert vote(['b', 'a'], np.array([1., 1])) == {'class': 'b', 'share': .5}                       # the nearer one


def expected(queries, points, images, k):
    """(class, share) of each query by a loop."""
    found = []
    for query in queries:
        distances = sorted((float(np.linalg.norm(query - point)), i) for i, point in enumerate(points))[:k]
        shares = {}
        for distance, i in distances:
            name = images[i].split('/')[-2]
            shares[name] = shares.get(name, 0) + max(0, 1 - distance ** 2 / 2)
        name = max(shares, key=shares.get)
        found.append((name, shares[name] / sum(shares.values())))
    return found


def test_a_folder_of_photos_gets_a_row_each(call, index, trained, photos, tmp_path):  # noqa: F811
    images, new = images_of(photos), tmp_path / 'new'
    new.mkdir()
    for number, image in enumerate(random.Random(0).sample(images, 7)):
        shutil.copy(image, new / f'{number}.png')
    (new / 'broken.jpg').write_bytes(b'no image')
    queries = images_of(new)
    embeddings = retrieval.embed(*retrieval.load(trained, 'cpu'), [*queries, *images]).double().numpy()
    for k in (3, 5):
        code, out, err = call('query', index, new, '--csv', tmp_path / 'out.csv', '--vote', k, '--bs', '2', '--k', '2')
        assert (code, out) == (0, f'{tmp_path / "out.csv"}: 7 photos\n')
        assert 'Left out, since they cannot be read: 1 of 8' in err
        with open(tmp_path / 'out.csv', newline='') as file:
            rows = list(csv.DictReader(file))
        wanted = expected(embeddings[:7], embeddings[7:], images, k)
        assert [row['path'] for row in rows] == queries
        assert [row['class'] for row in rows] == [name for name, _ in wanted]
        assert [float(row['share']) for row in rows] == pytest.approx([share for _, share in wanted], abs=1e-3)
        assert all(float(row['distance']) < 1e-3 < .999 < float(row['similarity']) for row in rows)
    assert all(row['nearest'] in images for row in rows)
    code, out, _ = call('query', index, queries[0], '--vote', '3', '--json', '-')
    found, = json.loads(out)
    name, share = expected(embeddings[:1], embeddings[7:], images, 3)[0]
    assert code == 0 and found['class'] == name and found['share'] == pytest.approx(share, abs=1e-3)
    assert len(found['nearest']) == 10
    code, out, _ = call('query', index, queries[0], '--vote', '3')
    assert f'\n  class: {name}, with {found["share"]:.0%} of the votes of the nearest images\n' in out
    assert 'class:' not in call('query', index, queries[0], '--vote', '0')[1]


def test_an_unknown_photo_has_no_class(call, index, photos, tmp_path):  # noqa: F811
    photo = images_of(photos)[0]
    code, out, _ = call('query', index, photo, '--threshold', '1.5', '--csv', tmp_path / 'out.csv', '--json', '-')
    with open(tmp_path / 'out.csv', newline='') as file:
        row, = csv.DictReader(file)
    assert code == 0 and row['class'] == 'unknown' and row['share'] == ''
    assert json.loads(out)[0]['class'] is None and json.loads(out)[0]['unknown']
    out = call('query', index, photo, '--threshold', '1.5')[1]
    assert 'unknown: the nearest similarity' in out and 'class:' not in out


def test_images_of_one_folder_have_no_class(call, trained, photos, tmp_path):  # noqa: F811
    assert call('index', trained, photos / 'class_00', '--out', tmp_path / 'one')[0] == 0
    photo = images_of(photos)[0]
    code, out, _ = call('query', tmp_path / 'one', photo, '--csv', tmp_path / 'out.csv')
    with open(tmp_path / 'out.csv', newline='') as file:
        row, = csv.DictReader(file)
    assert code == 0 and row['class'] == row['share'] == ''
    assert 'class:' not in call('query', tmp_path / 'one', photo)[1]


def test_the_page_says_the_class(index, photos):  # noqa: F811
    pytest.importorskip('flask')
    found = retrieval.Index(index)
    network, transform = found.load_network(device='cpu')
    with open(images_of(photos)[0], 'rb') as file:
        data = file.read()
    for n_votes in (0, 3, 12):
        page = server.application(found, network, transform, k=2, n_votes=n_votes).test_client()
        answer = page.post('/neighbours', data=data, base_url='http://localhost').json
        assert len(answer['neighbours']) == 2 and ('class' in answer) == (n_votes > 0)
    assert answer['class'].startswith('class_0') and 0 < answer['share'] <= 1
    assert 'class' not in page.get('/neighbours/1', base_url='http://localhost').json


def test_bad_numbers_are_refused_in_a_sentence(call, index, photos, tmp_path):  # noqa: F811
    photo = images_of(photos)[0]
    for flags, sentence in ((['--vote', '-1'], '--vote: expected'), (['--csv', tmp_path / 'no' / 'a.csv'], '--csv')):
        code, _, err = call('query', index, photo, *flags)
        assert code == 2 and sentence in err
