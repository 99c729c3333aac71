"""Retrieve_Images.py serve: what the page asks for by HTTP, and the page itself in a headless browser."""
import http.client
import io
import re
import shutil
import socket
import sys
import threading
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from retrieval import server, unknown
from tests.helpers import executed, wait_for
from utilities import machine
from utilities.errors import UserError

flask = pytest.importorskip('flask')
COLOURS = ['red', 'darkred', 'orange', 'gold', 'green', 'darkgreen', 'blue', 'navy']


class MeanColour(torch.nn.Module):
    """[B, 3, S, S] -> [B, 3]: a network whose neighbours can be told."""
    device = torch.device('cpu')

    def forward(self, images):
        return images.mean(dim=(2, 3))


def transform(image):
    return torch.from_numpy(np.array(image.convert('RGB').resize((8, 8)))).permute(2, 0, 1) / 255


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

    return SimpleNamespace(paths=paths, embeddings=embeddings, nearest=nearest, is_current=lambda: True,
                           answers=lambda distances, rows: [{}])


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
    index.answers = lambda distances, rows: [unknown.answer(unknown.by_hand(0.9), distances[0][0], 8)]
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
    answer = client.post('/neighbours', data=bytes(server.MAX_MB * 2 ** 20 + 1))
    assert (answer.status_code, answer.json['error']) == (413, f'The photo is larger than {server.MAX_MB} MB.')
    open(index.paths[1], 'w').close()
    answer = client.get('/image/1')
    assert (answer.status_code, answer.json['error']) == (404, 'photos/darkred.png cannot be read any more.')


def test_another_name_of_the_machine_is_refused_and_nothing_is_loaded_from_elsewhere(client):
    for host, code in (('localhost:8000', 200), ('127.0.0.1', 200), ('[::1]:8000', 200), ('[::1]', 200),
                       ('rebound.example:8000', 403)):
        assert client.get('/start', headers={'Host': host}).status_code == code
    page = client.get('/')
    assert "default-src 'self'" in page.headers['Content-Security-Policy']
    assert not re.findall(r'''(?:https?:)?//[\w.]+\.\w+|@import''', page.text)


def test_requests_that_another_page_makes_are_refused(client):
    for headers, code in (
            ({'Sec-Fetch-Site': 'same-origin', 'Origin': 'http://localhost'}, 200), ({'Sec-Fetch-Site': 'none'}, 200),
            ({'Sec-Fetch-Site': 'cross-site'}, 403), ({'Sec-Fetch-Site': 'same-site'}, 403), ({'Origin': 'null'}, 403),
            ({'Origin': 'http://other.example'}, 403), ({'Origin': 'http://localhost:9000'}, 403),
            ({'Origin': 'http://['}, 403), ({'Origin': ''}, 403), ({'Host': '['}, 403)):
        for answer in (client.post('/neighbours', data=photo('red'), headers=headers),
                       client.get('/image/1', headers=headers)):
            assert answer.status_code == code, headers
            assert code == 200 or answer.json['error'].startswith('This page ')


def test_a_link_of_another_page_leads_to_the_page_and_to_nothing_else(client):
    link = {'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Mode': 'navigate'}
    assert client.get('/', headers=link).status_code == 200
    for address, headers in (('/start', link), ('/image/1', link), ('/', link | {'Sec-Fetch-Mode': 'cors'}),
                             ('/', link | {'Origin': 'http://other.example'})):
        assert client.get(address, headers=headers).status_code == 403


def test_no_other_program_reads_an_image(client, index, other_program):
    answer = client.post('/neighbours', data=other_program.eps)
    assert (answer.status_code, answer.json['error']) == (400, 'This file is not an image that can be read.')
    with open(index.paths[0], 'wb') as file:
        file.write(other_program.eps)
    assert client.get('/image/0').status_code == 404
    assert not other_program.started()


def test_pixels_are_counted_before_they_are_decoded(client, index, monkeypatch, bomb):
    monkeypatch.setattr(server.decoding, 'upright', lambda image: pytest.fail('it was decoded'))
    answer = client.post('/neighbours', data=bomb)
    assert (answer.status_code, answer.json['error']) == (400, 'The photo has more than 52 million pixels.')
    with open(index.paths[0], 'wb') as file:
        file.write(bomb)
    assert client.get('/image/0').json['error'] == 'photos/red.png is too large to be shown.'


def test_few_photos_are_decoded_at_a_time_and_other_requests_need_not_wait(index, monkeypatch):
    monkeypatch.setattr(server, 'WAITING', 4)
    running, most, go_on = [], [], threading.Event()

    def slow(image):
        running.append(image)
        most.append(len(running))
        go_on.wait(60)
        running.pop()
        return transform(image)

    app = server.application(index, MeanColour(), slow, k=3)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(app.test_client().post, '/neighbours', data=photo('red')) for _ in range(8)]
        wait_for(lambda: sum(answer.done() for answer in answers) == 2)
        for address in '/start', '/neighbours/1', '/image/1':
            assert app.test_client().get(address).status_code == 200
        go_on.set()
    refused = [answer.result().json['error'] for answer in answers if answer.result().status_code == 503]
    assert refused == ['Many photos are waiting to be decoded; try again in a moment.'] * 2
    assert [answer.result().status_code for answer in answers].count(200) == 6 and max(most) == server.DECODERS
    assert server.THREADS > 2 * (server.DECODERS + server.WAITING) + 2


# argv: the paths of an index, joined by colons, and a file with a large photo. Nothing else uses this process's memory.
DECODING = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
import numpy as np
from tests.retrieval.test_server import MeanColour, server, transform

index = SimpleNamespace(paths=sys.argv[1].split(':'), is_current=lambda: True, answers=lambda distances, rows: [{}],
                        nearest=lambda queries, k: (np.zeros((1, k), int), np.zeros((1, k))))
app = server.application(index, MeanColour(), lambda image: transform(image.copy()), k=3)
data = Path(sys.argv[2]).read_bytes()
for n in 1, 4:
    with ThreadPoolExecutor(n) as pool:                 # glibc has a heap of its own for each thread
        assert {answer.status_code for answer in pool.map(
            lambda _: app.test_client().post('/neighbours', data=data), range(n))} == {200}
    print(int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2 ** 20)
"""


@pytest.mark.skipif(not machine.has_glibc(), reason='other C libraries return memory by themselves')
def test_memory_of_decoded_photos_goes_back(index, tmp_path):
    Image.new('RGB', (5000, 4000), 'red').save(tmp_path / 'large.png', compress_level=1)
    code, out, errors = executed(tmp_path, DECODING, ':'.join(index.paths), tmp_path / 'large.png')
    assert code == 0, errors
    before, after = map(float, out.split())
    assert after < before + 60                               # a decoded photo has 60


def test_a_format_that_browsers_do_not_show_is_sent_back_as_jpeg(client):
    assert 'image' not in client.post('/neighbours', data=photo('red')).json
    sent = client.post('/neighbours', data=photo('navy', 'TIFF')).json['image']
    shown = Image.open(io.BytesIO(b64decode(sent.removeprefix('data:image/jpeg;base64,'))))
    assert shown.format == 'JPEG' and shown.size == (40, 30) and shown.getpixel((5, 5))[2] > 100


def test_a_changed_index_is_named(client, index):
    index.is_current = lambda: False
    assert client.get('/start').json['is_current'] is False and client.get('/neighbours/1').json['is_current'] is False
    assert f'const MAX_MB = {server.MAX_MB} ' in server.PAGE.read_text()


def test_idle_uploads_end_and_too_large_ones_are_refused_before_they_are_sent(index, monkeypatch):
    pytest.importorskip('waitress')
    monkeypatch.setattr(server, 'IDLE', 1)
    running = server.listening(server.application(index, MeanColour(), transform), '127.0.0.1', 0)
    threading.Thread(target=running.run, daemon=True).start()
    place = '127.0.0.1', running.effective_port
    head = 'POST /neighbours HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n'
    idle = [socket.create_connection(place, timeout=60) for _ in range(120)]
    for connection in idle:
        connection.sendall(head.format(1000).encode() + b'some')
    try:
        for size in (server.MAX_MB * 2 ** 20 + 1, 10 ** 15):
            with socket.create_connection(place, timeout=60) as connection:
                connection.sendall(head.format(size).encode())
                answer = connection.makefile('rb').read().decode()
            assert answer.startswith('HTTP/1.1 413 ') and f'larger than {server.MAX_MB} MB' in answer
        visit = http.client.HTTPConnection(*place, timeout=60)
        visit.request('POST', '/neighbours', photo('red'))
        assert visit.getresponse().status == 200
        assert all(connection.recv(1) == b'' for connection in idle)         # closed by the server
    finally:
        for connection in idle:
            connection.close()
        running.close()


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


def has_ipv6():
    try:
        socket.create_server(('::1', 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize('host, shown, n_addresses', [('localhost', 'localhost', 1), ('localhost', 'localhost', 2),
                                                      ('::1', '[::1]', 2), ('[::1]', '[::1]', 1)])
def test_the_printed_address_answers_this_machine_only(host, shown, n_addresses, index, capsys, monkeypatch):
    waitress = pytest.importorskip('waitress')
    if ':' in host and not has_ipv6():
        pytest.skip('this machine has no IPv6')
    resolve, create, started, codes = socket.getaddrinfo, waitress.create_server, [], []

    def addresses(name, *arguments):                                 # equal ones, each at a free port of its own
        return resolve(name, *arguments)[:1] * n_addresses

    def created(*arguments, **options):
        started.append(create(*arguments, **options))
        return started[0]

    def visit(seconds):
        url = urlsplit(re.search(r'http://\S+', capsys.readouterr().out)[0])
        assert url.netloc == f'{shown}:{url.port}'
        for name in (url.netloc, shown, 'rebound.example'):
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
            connection.request('GET', '/start', headers={'Host': name})
            codes.append(connection.getresponse().status)
            connection.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, 'getaddrinfo', addresses)
    monkeypatch.setattr(waitress, 'create_server', created)
    monkeypatch.setattr(server.stopping, 'sleep', visit)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.serve(index, MeanColour(), transform, host=host, port=0)
    finally:
        for running in started:
            running.close()
    assert codes == [200, 200, 403]


@pytest.fixture
def page(index):
    """The page in a headless browser, of the application served at a free port."""
    sync_api, _ = pytest.importorskip('playwright.sync_api'), pytest.importorskip('waitress')
    browser = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
    if browser is None:
        pytest.skip('no Chromium is installed')
    running = server.listening(server.application(index, MeanColour(), transform, k=3), '127.0.0.1', 0)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
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
    running.close()


def expect(locator):
    return pytest.importorskip('playwright.sync_api').expect(locator)


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
    index.answers = lambda distances, rows: [unknown.answer(unknown.by_hand(0.9), distances[0][0], 8)]
    for colour, said in (('#0ff', 'Unknown: the nearest similarity 0.'), ('#fa0', 'Known: the nearest similarity 0.9')):
        (tmp_path / f'{colour[1:]}.png').write_bytes(photo(colour))
        page.set_input_files('#file', tmp_path / f'{colour[1:]}.png')
        expect(page.locator('#status')).to_contain_text(said)
        assert page.locator('#status.unknown').count() == (colour == '#0ff')
    assert page.wrong == []


def test_an_image_that_the_server_refuses_once_is_asked_for_again(page):
    asked = []

    def refuse_once(route):
        asked.append(route.request.url)
        route.continue_() if asked.count(route.request.url) > 1 else route.fulfill(status=503)

    page.route('**/image/*', refuse_once)
    page.reload()
    wait_for(lambda: page.evaluate(f'document.images.length > 8 && {MISSING}.length == 0'))
    assert sorted(asked) == sorted(2 * list(set(asked))) and len(asked) == 16


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


def test_the_page_can_be_used_without_a_mouse_and_read_aloud(page):
    assert page.evaluate("[...document.images].every(image => image.hasAttribute('alt'))")
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.id') == 'file' and page.get_by_label('Choose a photo').count() == 1
    assert page.evaluate("document.querySelector('#status').getAttribute('role')") == 'status'
    for scheme in 'light', 'dark':                                    # WCAG 2.2: at least 4.5 to 1
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) > 4.5


CONTRAST = '''() => Math.min(...['#hint', 'h1', '#size', 'label.button', '#results span span'].map(selector => {
    const element = document.querySelector(selector)
    let ground = element
    const colour = name => getComputedStyle(name).backgroundColor
    while (colour(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement
    const luminance = text => text.match(/\\d+/g).slice(0, 3).map(Number).map(value => value / 255)
        .map(value => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
        .reduce((sum, value, channel) => sum + value * [.2126, .7152, .0722][channel], 0)
    const values = [luminance(getComputedStyle(element).color), luminance(colour(ground))].sort((a, b) => a - b)
    return (values[1] + .05) / (values[0] + .05)
}))'''
