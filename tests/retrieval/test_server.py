"""Retrieve_Images.py serve: what the page asks for by HTTP, and the page itself in a headless browser."""
import http.client
import io
import re
import shutil
import socket
import sys
import threading
from base64 import b64encode
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from datasets.pipeline import Pipeline
from retrieval import loading, server, unknown
from tests.helpers import wait_for
from utilities.errors import UserError

flask = pytest.importorskip('flask')
COLOURS = ['red', 'darkred', 'orange', 'gold', 'green', 'darkgreen', 'blue', 'navy']


class MeanColour(torch.nn.Module):
    """uint8 [B, 3, S, S] -> [B, 3]: a network whose neighbours can be told."""
    device = torch.device('cpu')
    width = 3

    def forward(self, images):
        return images.float().mean(dim=(2, 3)) / 255


transform = loading.Transform(Pipeline([lambda image: image.resize((8, 8))]))


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
    """A folder with a photo of each colour."""
    folder = tmp_path_factory.mktemp('photos')
    for colour in COLOURS:
        Image.new('RGB', (900, 600), colour).save(folder / f'{colour}.png', compress_level=1)
    return folder


@pytest.fixture
def index(drawn, tmp_path):
    """What the server needs of an Index, for the photos of `drawn`."""
    shutil.copytree(drawn, tmp_path / 'photos')
    paths = [str(tmp_path / 'photos' / f'{colour}.png') for colour in COLOURS]
    embeddings = np.array([ImageColor.getrgb(colour) for colour in COLOURS], np.float32) / 255

    def nearest(queries, k):
        distances = np.linalg.norm(np.asarray(queries)[:, None] - embeddings, axis=2)
        rows = np.argsort(distances, axis=1, kind='stable')[:, :k]
        return rows, np.take_along_axis(distances, rows, axis=1)

    return SimpleNamespace(paths=paths, embeddings=embeddings, nearest=nearest, require_images=lambda: None,
                           answers=lambda distances, rows, n_votes: [{}])


@pytest.fixture
def client(index):
    return server.application(index, MeanColour(), transform, k=3).test_client()


def photo(colour, kind='PNG'):
    file = io.BytesIO()
    Image.new('RGB', (40, 30), colour).save(file, kind)
    return file.getvalue()


def names(answer):
    return [found['name'].removeprefix('photos/').removesuffix('.png') for found in answer.json['neighbours']]


def test_the_neighbours_of_a_photo_and_of_an_image_of_the_index(client, index):
    answer = client.post('/neighbours', data=photo('#f00'))
    assert names(answer) == ['red', 'darkred', 'orange']
    wanted = np.linalg.norm(index.embeddings[:3] - index.embeddings[0], axis=1)
    np.testing.assert_allclose(sorted(found['distance'] for found in answer.json['neighbours']), sorted(wanted),
                               atol=1e-6)
    assert names(client.get('/neighbours/6')) == ['navy', 'darkgreen', 'green']        # without itself
    start = client.get('/start').json
    assert start['n_images'] == 8 and [image['row'] for image in start['images']] == [*range(8)]


def test_an_answer_below_the_threshold_is_unknown(client, index):
    index.answers = lambda distances, rows, n_votes: [unknown.answer(unknown.by_hand(0.9), distances[0][0])]
    for colour, is_unknown in (('#f00', False), ('#0ff', True)):
        answer = client.post('/neighbours', data=photo(colour)).json
        assert answer['unknown'] == is_unknown and answer['threshold'] == 0.9
        assert answer['similarity'] == pytest.approx(1 - answer['neighbours'][0]['distance'] ** 2 / 2)
    assert 'unknown' not in client.get('/neighbours/1').json               # an image of the index


def test_images_are_sent_by_row_and_reduced(client, index):
    answer = client.get('/image/4')
    image = Image.open(io.BytesIO(answer.data))
    assert (image.format, image.size, answer.mimetype) == ('JPEG', (server.SIDE, 320), 'image/jpeg')
    assert image.getpixel((5, 5))[1] > 100 > image.getpixel((5, 5))[0]
    assert answer.headers['Cache-Control'] == 'no-store'             # another index has another image in this row


def test_nothing_but_images_of_the_index_is_served(client):
    for address in ('/image/8', '/image/-1', '/image/0.png', '/image/../server.py', '/image/%2e%2e%2fserver.py',
                    '/image//etc/passwd', '/neighbours/8', '/neighbours/../../etc/passwd', '/photos/red.png',
                    '/retrieval/page.html', '/static/x'):
        answer = client.get(address)
        assert answer.status_code in (404, 405) and set(answer.json) == {'error'}, address


def test_what_is_no_photo_is_refused_in_a_sentence(client, index):
    for data in b'', b'no image', photo('red')[:60]:
        answer = client.post('/neighbours', data=data)
        assert (answer.status_code, answer.json['error']) == (400, 'This file is not an image that can be read.')
    open(index.paths[1], 'w').close()
    answer = client.get('/image/1')
    assert answer.status_code == 404
    assert answer.json['error'] == 'photos/darkred.png cannot be read any more, or is too large.'


def test_another_name_of_the_machine_is_refused_and_nothing_is_loaded_from_elsewhere(client):
    for host, code in (('localhost:8000', 200), ('127.0.0.1', 200), ('rebound.example:8000', 403)):
        assert client.get('/start', headers={'Host': host}).status_code == code
    page = client.get('/')
    assert "default-src 'self'" in page.headers['Content-Security-Policy']
    for address in ('/', '/image/1', '/neighbours/1'):       # no page of another server shows or reads them
        assert client.get(address).headers['Cross-Origin-Resource-Policy'] == 'same-origin'
    assert not re.findall(r'''(?:https?:)?//[\w.]+\.\w+|@import''', page.text)


@pytest.mark.parametrize('kind, sentence', [
    ('other_program', 'This file is not an image that can be read.'),
    ('many_scans', 'This file is not an image that can be read.'),
    ('bomb', 'The photo has more than 52 million pixels.')])
def test_harmful_files_are_refused_before_they_are_decoded(kind, sentence, client, index, monkeypatch, request):
    if kind == 'bomb':
        monkeypatch.setattr(server.decoding, 'upright', lambda image: pytest.fail('it was decoded'))
    given = request.getfixturevalue(kind)
    data = given.eps if kind == 'other_program' else given
    answer = client.post('/neighbours', data=data)
    assert (answer.status_code, answer.json['error']) == (400, sentence)
    with open(index.paths[0], 'wb') as file:
        file.write(data)
    assert client.get('/image/0').status_code == 404
    assert kind != 'other_program' or not given.started()


def test_a_too_large_photo_is_refused_before_it_is_sent(index):
    pytest.importorskip('waitress')
    running = server.listening(server.application(index, MeanColour(), transform), '127.0.0.1', 0)
    threading.Thread(target=running.run, daemon=True).start()
    with socket.create_connection(('127.0.0.1', running.effective_port), timeout=60) as connection:
        size = server.MAX_MB * 2 ** 20 + 1
        connection.sendall(f'POST /neighbours HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n'.encode())
        assert connection.makefile('rb').readline().startswith(b'HTTP/1.1 413 ')
    assert f'const MAX_MB = {server.MAX_MB} ' in server.PAGE.read_text()        # where the page says so itself


def test_sentences_for_a_port_that_is_taken_and_for_a_missing_package(index, monkeypatch):
    waitress = pytest.importorskip('waitress')
    taken = waitress.create_server(lambda *_: [], host='127.0.0.1', port=0)
    with pytest.raises(UserError, match=f'--port {taken.effective_port}: nothing can listen there'):
        server.serve(index, MeanColour(), transform, port=taken.effective_port)
    taken.close()
    with pytest.raises(UserError, match='--host nowhere.invalid'):
        server.serve(index, MeanColour(), transform, host='nowhere.invalid')
    monkeypatch.setitem(sys.modules, 'waitress', None)
    with pytest.raises(UserError, match='pip install flask waitress'):
        server.serve(index, MeanColour(), transform)


def test_the_printed_address_answers_this_machine_only(index, capsys, monkeypatch):
    pytest.importorskip('waitress')
    resolve, codes = socket.getaddrinfo, []

    def addresses(name, *arguments):                                 # equal ones, each at a free port of its own
        return resolve(name, *arguments)[:1] * 2

    def visit(seconds):
        url = urlsplit(re.search(r'http://\S+', capsys.readouterr().out)[0])
        assert url.netloc == f'localhost:{url.port}'
        for name in (url.netloc, 'localhost', 'rebound.example'):
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
            connection.request('GET', '/start', headers={'Host': name})
            codes.append(connection.getresponse().status)
            connection.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, 'getaddrinfo', addresses)
    monkeypatch.setattr(server.stopping, 'sleep', visit)
    with pytest.raises(KeyboardInterrupt):
        server.serve(index, MeanColour(), transform, host='localhost', port=0)
    assert codes == [200, 200, 403]


@pytest.fixture
def page(index):
    """The page in a headless browser, of the application served at a free port."""
    sync_api, _ = pytest.importorskip('playwright.sync_api'), pytest.importorskip('waitress')
    browser = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
    if browser is None:
        pytest.skip('no Chromium is installed')
    running = server.listening(server.application(index, MeanColour(), transform, k=3), '127.0.0.1', 0)
    threading.Thread(target=running.run, daemon=True).start()
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=['--no-sandbox'])
        page = opened.new_page()
        page.wrong = []
        page.on('pageerror', lambda error: page.wrong.append(error))
        page.on('console', lambda message: page.wrong.append(message.text) if message.type == 'error' else None)
        page.goto(f'http://127.0.0.1:{running.effective_port}')
        page.wait_for_selector('#results li')
        yield page
        opened.close()


def expect(locator):
    sync_api = pytest.importorskip('playwright.sync_api')
    sync_api.expect.set_options(timeout=60_000)              # ms, on a busy machine
    return sync_api.expect(locator)


def caption(page, text):
    """Waits until the query has this name."""
    expect(page.locator('#query figcaption')).to_have_text(text)


MISSING = '[...document.images].filter(i => i.src && !i.naturalWidth).map(i => [i.src, i.complete])'


def shown(page):
    """The results' file names, once there are three and all pictures are loaded."""
    expect(page.locator('#results b')).to_have_count(3)
    try:
        wait_for(lambda: page.evaluate(f'{MISSING}.length') == 0)
    except AssertionError as error:
        raise AssertionError(f'not loaded: {page.evaluate(MISSING)}; said: {page.wrong}') from error
    return [name.removesuffix('.png') for name in page.locator('#results li a span span:last-child').all_inner_texts()]


def test_the_page_in_a_browser(page, index, tmp_path):
    assert page.inner_text('#size') == '8 images in the index' and page.locator('#results li').count() == 8
    (tmp_path / 'new.jpg').write_bytes(photo('#fa0', 'JPEG'))
    page.set_input_files('#file', tmp_path / 'new.jpg')
    assert shown(page)[0] == 'orange'
    assert page.inner_text('#query figcaption') == 'new.jpg'
    page.focus('#results li:nth-child(1) a')                         # by keyboard: go on from the nearest image
    page.keyboard.press('Enter')
    caption(page, re.compile(r'orange\.png$'))
    assert shown(page)[0] == 'gold'
    page.click('#results li:nth-child(1) a')
    caption(page, re.compile(r'gold\.png$'))
    page.go_back()
    page.go_back()
    caption(page, 'new.jpg')
    assert shown(page)[0] == 'orange' and page.inner_text('#status').startswith('3 images')
    index.answers = lambda distances, rows, n_votes: [unknown.answer(unknown.by_hand(0.9), distances[0][0])]
    for colour, said in (('#0ff', 'Unknown: the nearest similarity 0.'), ('#fa0', 'Known: the nearest similarity 0.9')):
        (tmp_path / f'{colour[1:]}.png').write_bytes(photo(colour))
        page.set_input_files('#file', tmp_path / f'{colour[1:]}.png')
        expect(page.locator('#status')).to_contain_text(said)
        assert page.locator('#status.unknown').count() == (colour == '#0ff')
    assert page.evaluate("[...document.images].every(image => image.hasAttribute('alt'))") and page.wrong == []


def test_a_photo_is_dropped_and_a_file_that_is_none_is_explained(page):
    drop = '''([text, name, type]) => {
        const data = new DataTransfer(), bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0))
        data.items.add(new File([bytes], name, {type}))
        document.querySelector('#drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}))
    }'''
    page.evaluate(drop, [b64encode(photo('navy')).decode(), 'night.png', 'image/png'])
    assert shown(page)[0] == 'navy'
    page.evaluate(drop, [b64encode(b'no image').decode(), 'notes.txt', 'text/plain'])
    page.wait_for_selector('#status.bad')
    assert page.inner_text('#status') == 'This file is not an image that can be read.'
    assert page.locator('#results li').count() == 0
