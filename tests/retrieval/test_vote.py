"""The class of a new photo: by hand, by a loop over the nearest images, on the command line and on the page."""
import csv
import json
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import retrieval
import Retrieve_Images
from retrieval import server
from retrieval.vote import vote
from tests.helpers import after_training
from tests.retrieval.test_index import images_of


def test_votes_by_hand():
    """Weights .98, .5, .5; and where d² is above 2, equal weights."""
    assert vote(['a', 'b', 'b'], np.sqrt([.04, 1, 1])) == {'class': 'b', 'share': pytest.approx(1 / 1.98)}
    assert vote(['a', 'b', 'c'], np.sqrt([.04, 1, 3])) == {'class': 'a', 'share': pytest.approx(.98 / 1.48)}
    assert vote(['a', 'b', 'b'], np.array([3., 4, 5])) == {'class': 'b', 'share': pytest.approx(2 / 3)}
    assert vote(['b', 'a'], np.array([1., 1.01]))['class'] == 'b'                                   # the nearer one
    assert vote(['a', 'b', 'b', 'a'], np.array([.2, .3, .97467, 1]))['class'] == 'a'    # b's share is 1e-6 larger
    assert vote(['a', 'b', 'a', 'b'], np.array([.5, .5, 1, 1])) == {'class': None, 'share': None}  # equally near
    assert vote(['a', 'b', 'a'], np.array([.5, .5, .5])) == {'class': 'a', 'share': pytest.approx(2 / 3)}
    assert vote(['a', 'b'], np.array([np.nan, 1])) == {'class': None, 'share': None}


def test_a_photo_of_the_index_has_its_own_class():
    assert vote(['a', 'b', 'b'], np.array([2e-5, .1, .1])) == {'class': 'a', 'share': 1, 'in_index': True}
    assert vote(['a', 'a', 'b'], np.array([0, 0, .1])) == {'class': 'a', 'share': 1, 'in_index': True}
    assert vote(['a', 'b', 'b'], np.array([0, 0, .1])) == {'class': None, 'share': None, 'in_index': True}


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


def test_a_folder_of_photos_gets_a_row_each(call, index, trained, photos, tmp_path):
    images, new = images_of(photos), tmp_path / 'new'
    new.mkdir()
    for number, image in enumerate(random.Random(0).sample(images, 7)):
        Image.open(image).rotate(90).save(new / f'{number}.png')
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
        for row in rows:
            assert float(row['similarity']) == pytest.approx(1 - float(row['distance']) ** 2 / 2, abs=1e-5)
    assert all(row['nearest'] in images for row in rows)
    code, out, _ = call('query', index, queries[0], '--vote', '3', '--json', '-')
    found, = json.loads(out)
    name, share = expected(embeddings[:1], embeddings[7:], images, 3)[0]
    assert code == 0 and found['class'] == name and found['share'] == pytest.approx(share, abs=1e-3)
    assert len(found['nearest']) == 10
    code, out, _ = call('query', index, queries[0], '--vote', '3')
    assert f'\n  class: {name}, with {found["share"]:.0%} of the votes of the nearest images\n' in out
    assert 'class:' not in call('query', index, queries[0], '--vote', '0')[1]


def test_an_unknown_photo_has_no_class(call, index, photos, tmp_path):
    photo = tmp_path / 'turned.png'
    Image.open(images_of(photos)[0]).rotate(90).save(photo)
    code, out, _ = call('query', index, photo, '--threshold', '1', '--csv', tmp_path / 'out.csv', '--json', '-')
    with open(tmp_path / 'out.csv', newline='') as file:
        row, = csv.DictReader(file)
    assert code == 0 and row['class'] == 'unknown' and row['share'] == ''
    assert json.loads(out)[0]['class'] is None and json.loads(out)[0]['unknown']
    out = call('query', index, photo, '--threshold', '1')[1]
    assert 'unknown: the nearest similarity' in out and 'class:' not in out


def test_the_page_says_the_class(index, photos):
    pytest.importorskip('flask')
    found = retrieval.Index(index)
    network, transform = found.load_network(device='cpu')
    with open(images_of(photos)[0], 'rb') as file:
        data = file.read()
    for n_votes in (0, 3, 12):
        page = server.application(found, network, transform, k=2, n_votes=n_votes).test_client()
        answer = page.post('/neighbours', data=data, base_url='http://localhost').json
        assert len(answer['neighbours']) == 2 and ('class' in answer) == (n_votes > 0)
    assert answer['in_index'] and (answer['class'], answer['share']) == ('class_00', 1)
    assert 'class' not in page.get('/neighbours/1', base_url='http://localhost').json


def test_a_photo_that_is_in_the_index_is_said_to_be_there(call, index, photos, tmp_path):
    """Its neighbours, of another class, do not outvote it."""
    photo = images_of(photos)[0]
    code, out, _ = call('query', index, photo, '--csv', tmp_path / 'out.csv', '--vote', '12', '--json', '-')
    found, = json.loads(out)
    assert code == 0 and (found['class'], found['share'], found['in_index']) == ('class_00', 1, True)
    assert '\n  class: class_00: this photo is in the index\n' in call('query', index, photo)[1]


def test_a_collapsed_network_is_named_by_every_command_and_gives_no_class(call, trained, photos, tmp_path, capsys):
    run = tmp_path / 'collapsed'
    shutil.copytree(trained, run)
    states = torch.load(run / 'checkpoint_last.pt', weights_only=False)
    for name, tensor in states['model'].items():
        if name.startswith('f_embed') and tensor.is_floating_point():
            tensor.fill_(1 if name.endswith('bias') else 0)
    torch.save(states, run / 'checkpoint_last.pt')
    sentence = 'are the same: the network has collapsed, and what is near means nothing'
    (photos / 'class_00' / 'broken.jpg').unlink()
    for arguments in (['index', run, photos, '--out', tmp_path / 'index'],
                      ['query', tmp_path / 'index', images_of(photos)[0], '--json', '-']):
        code, out, err = call(*arguments)
        assert code == 0 and f'embeddings of the index {sentence}' in err
    assert json.loads(out)[0]['class'] is None
    assert Retrieve_Images.main(['suspects', str(run), '--out', str(tmp_path / 'a.csv')]) == 0
    assert f'test split {sentence}' in capsys.readouterr().err
    for action in (['metrics'], ['rerank'], ['open_set', '.5'], ['codes', 'SQ8']):
        assert after_training(run, *action) == 0
        assert f'test split {sentence}' in capsys.readouterr().err, action
