"""Retrieve_Images.py serve: a page that shows the images of an index nearest to a photo, or to one of these images."""
import io
import re
import threading
from pathlib import Path

import numpy as np

from datasets import decoding
from retrieval import loading
from utilities import stopping
from utilities.errors import UserError

PAGE = Path(__file__).with_name('page.html')
MAX_MB = 30                  # largest upload; page.html has the same number
MAX_MEGAPIXELS = 52          # phones take photos of 50
THREADS = 2                  # requests that are answered at a time; each may decode a photo, in up to a gigabyte
SIDE = 480                   # pixels of the longer side of an image on the page
N_STARTS = 24                # images of the index that the page shows before the first query
HEADERS = {                  # no page of another server can show or read what this one sends
    'Content-Security-Policy': "default-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; frame-ancestors 'none'",
    'Cross-Origin-Resource-Policy': 'same-origin',
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'same-origin',
}
LOCAL = ('127.0.0.1', 'localhost')


def application(index, network, transform, k=24, hosts=LOCAL, n_votes=0):
    """
    The WSGI application of an open Index. Images of the index are requested by their row, so that no other file can be
    read, and are sent as JPEG. An uploaded photo is never stored. hosts: as for guard().
    n_votes: number of nearest images that vote for the class of a photo; 0: no class.
    """
    import flask
    app = flask.Flask(__name__, static_folder=None)
    lock = threading.Lock()
    guard(app, hosts)

    def existing(row):
        return row if row < len(index.paths) else flask.abort(404, f'The index has no image {row}.')

    @app.get('/')
    def page():
        return flask.send_file(PAGE)

    @app.get('/start')
    def start():
        rows = np.unique(np.linspace(0, len(index.paths) - 1, N_STARTS).round().astype(int))
        return {'n_images': len(index.paths),
                'images': [{'row': int(row), 'name': short_name(index, row)} for row in rows]}

    @app.get('/image/<int:row>')
    def image(row):
        try:
            content = small(decoding.read_upright(index.paths[existing(row)], MAX_MEGAPIXELS, SIDE))
        except UserError:                                  # it was moved or damaged since it was indexed
            flask.abort(404, f'{short_name(index, row)} cannot be read any more, or is too large.')
        # a browser that keeps it would show it for the same row of another index, or after images were removed
        return flask.Response(content, mimetype='image/jpeg', headers={'Cache-Control': 'no-store'})

    @app.get('/neighbours/<int:row>')
    def row_neighbours(row):
        embedding = np.asarray(index.embeddings[existing(row)])
        return {'name': short_name(index, row)} | neighbours(index, embedding, k, without=row)

    @app.post('/neighbours')
    def photo_neighbours():
        try:
            with decoding.open_image(io.BytesIO(flask.request.get_data()), MAX_MEGAPIXELS) as image:
                photo = decoding.upright(image)
        except decoding.TooLarge:
            flask.abort(400, f'The photo has more than {MAX_MEGAPIXELS} million pixels.')
        except Exception:  # decoders raise all kinds of exceptions on a file that is no image
            flask.abort(400, 'This file is not an image that can be read.')
        try:
            with lock:
                embedding = loading.embed(network, transform, photo)[0].numpy()
        except UserError as error:                         # a transform has failed
            flask.abort(400, str(error))
        return neighbours(index, embedding, k, n_votes=n_votes)

    return app


def guard(app, hosts):
    """
    Makes an application explain its errors, send HEADERS, and refuse requests to other hosts.

    hosts: the host names that a request may be addressed to; None allows any. Without this check, a page of another
           server could read this one through a domain name that it resolves to this machine (DNS rebinding).
    """
    import flask

    @app.before_request
    def check_host():
        if hosts is not None and re.sub(r':\d+$', '', flask.request.host) not in hosts:
            flask.abort(403, 'This page is for the machine it runs on; --host names another address.')

    @app.after_request
    def add_headers(response):
        response.headers.update(HEADERS)
        return response

    def explain(error):
        return {'error': error.description}, error.code

    for code in (400, 403, 404, 405):
        app.register_error_handler(code, explain)


def short_name(index, row):
    return '/'.join(Path(index.paths[row]).parts[-2:])


def neighbours(index, embedding, k, without=None, n_votes=0):
    """
    The answer to the page: the k images nearest to an embedding [D], but not the image of the row `without`; and the
    class for which `n_votes` of them vote.
    """
    rows, distances = index.nearest(embedding[None], max(k + (without is not None), n_votes))
    found = [{'row': int(row), 'name': short_name(index, row), 'distance': float(distance)}
             for row, distance in zip(rows[0], distances[0], strict=True) if row != without]
    answer = {}                                            # an image of the index is known
    if without is None:
        answer = index.answers(distances, rows, n_votes)[0]
    return answer | {'n_images': len(index.paths), 'neighbours': found[:k]}


def small(image):
    """A PIL image in RGB or L as a JPEG file of at most SIDE pixels: bytes."""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, 'JPEG', quality=85)
    return file.getvalue()


def listening(app, host, port):
    """A waitress server of the application. Raises OSError or ValueError where it cannot listen."""
    import waitress
    return waitress.create_server(app, host=host, port=port, threads=THREADS,
                                  max_request_body_size=MAX_MB * 2 ** 20 + 1)


def serve(index, network, transform, k=24, host='127.0.0.1', port=8000, n_votes=0):
    """
    Serves the page until Ctrl-C. host: the address to listen on; 127.0.0.1 can be reached from this machine only. port:
    0 means any free one. Raises UserError for a missing package, an empty index, or an address that cannot be used.
    """
    index.require_images()
    try:
        import flask  # noqa: F401
        import waitress  # noqa: F401
    except ImportError as error:
        raise UserError(f'serve needs flask and waitress ({error}): pip install flask waitress') from None
    app = application(index, network, transform, k, LOCAL if host in LOCAL else None, n_votes)
    try:
        server = listening(app, host, port)
    except (OSError, ValueError) as error:                 # ValueError: there is no such host
        raise UserError(f'--host {host} --port {port}: nothing can listen there ({error}); give another one') from None
    # a host with several addresses has a socket for each
    port = server.effective_listen[0][1] if hasattr(server, 'effective_listen') else server.effective_port
    print(f'{len(index.paths):,} images: http://{host}:{port} (Ctrl-C ends)', flush=True)
    threading.Thread(target=server.run, daemon=True).start()
    while True:
        stopping.sleep(60)
