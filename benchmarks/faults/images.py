"""Faults of images: formats that start programs, and images of many pixels."""
import argparse
import functools
import http.client
import io
import os
import resource
import shutil
import signal
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

from PIL import EpsImagePlugin, Image

from benchmarks.faults.inputs import mutated
from benchmarks.faults.runs import LIMIT, fork, outcome, start
from retrieval import server

EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n'
WMF = b'\xd7\xcd\xc6\x9a\0\0\0\0\0\0\x14\0\x14\0\x60\0\0\0\0\0\0\0\x01\0\x09\0' + bytes(40)
NAMES = ['photo.jpg', 'photo.PNG', 'photo.tif', 'photo.eps']
MEMORY = 1 << 30                               # bytes that a process may take while it refuses a bomb


def foreign_formats(lab, n):
    """
    An image of a format that other programs read, under any name: main.py ends with a sentence, or by --skip_bad_images
    leaves it out; the page refuses it. A stand-in for Ghostscript is never started.
    """
    log, gs = lab.folder / 'gs_was_started', lab.folder / 'bin' / 'gs'
    gs.parent.mkdir(exist_ok=True)
    gs.write_text(f'#!/bin/sh\ntouch {log}\nexit 1\n')
    gs.chmod(0o755)
    EpsImagePlugin.gs_binary = str(gs)
    for i in range(n):
        content, name = lab.random.choice([EPS, WMF]), lab.random.choice(NAMES)
        group = lab.group()
        place = with_image(lab, group, name, content)
        skip = ['--skip_bad_images'] if i % 2 else []
        child = start([*lab.arguments('plain', group), '--n_epochs', 0, '--source_path', place, *skip])
        unknown = name == 'photo.eps'                      # a folder is searched for the images of known extensions
        problem = outcome(child, {0 if skip or unknown else 2})
        if not problem and name not in child.text:
            problem = f'{name} is not named: {child.text[-300:]}'
        if not problem and (code := page().post('/neighbours', data=content).status_code) != 400:
            problem = f'the page answers {code}'
        if not problem and log.exists():
            problem = f'{name}: another program was started'
        shutil.rmtree(place)
        yield problem
    EpsImagePlugin.gs_binary = None


def bombs(lab, n):
    """A small file of up to a gigapixel: main.py and the page refuse it with a message, within MEMORY."""
    for i in range(n):
        side = lab.random.randrange(14000, 32000)         # main.py has Pillow's limit, 179 megapixels
        content, group = black_png(side), lab.group()
        if i % 2:
            code, text = answered(content)
            refused = code == 400 and 'million pixels' in text
            yield None if refused else f'{side} pixels: the page answers {code}: {text}'
            continue
        place = with_image(lab, group, 'photo.png', content)
        child = start([*lab.arguments('plain', group), '--n_epochs', 0, '--source_path', place], limited)
        problem = outcome(child, {2})
        shutil.rmtree(place)
        yield problem or (None if 'photo.png: not a readable image' in child.text else child.text[-300:])


def with_image(lab, group, name, content):
    """A copy of the data with one more test image: its folder."""
    place = lab.folder / f'data_{group}'
    shutil.copytree(lab.folder / 'data', place)
    (place / 'images' / 'class_11' / name).write_bytes(content)
    return place


def black_png(side):
    """A PNG file of side x side black pixels."""
    rows = zlib.compressobj(1)
    data = b''.join([*(rows.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)), rows.flush()])

    def chunk(kind, body):
        return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)

    header = side.to_bytes(4) + side.to_bytes(4) + bytes([1, 0, 0, 0, 0])
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', data) + chunk(b'IEND', b'')


def limited():
    """The process may take MEMORY more than it has now."""
    with open('/proc/self/statm') as file:
        now = int(file.read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY,) * 2)


def answered(content):
    """The page's answer to an upload, in a process of limited memory: (status code or 0, text)."""
    def work():
        limited()
        answer = page().post('/neighbours', data=content)
        print(answer.status_code, answer.text)

    child = fork(work)
    child.code()
    code, _, text = child.text.partition(' ')
    return (int(code), text) if code.isdigit() else (0, child.text[-300:])


def bad_requests(lab, n):
    """
    Requests to the page with a malformed Origin or Host, and four uploads at once of photos with too many pixels or
    bytes, or nearly so: each is answered, none by 500, and the page still works; Ctrl-C ends it.
    """
    out, photos = lab.folder / 'served', lab.folder / 'data' / 'images' / 'class_00'
    if not out.exists():
        lab.done(['index', lab.undisturbed('plain'), photos, '--out', out, '--device', 'cpu', '--kernels', 0],
                 script='Retrieve_Images.py')
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    child = start(['serve', out, '--port', port, '--device', 'cpu'], script='Retrieve_Images.py')
    end = time.monotonic() + LIMIT
    while 'http://' not in child.text and child.code(0) is None and time.monotonic() < end:
        child.read()
        time.sleep(.05)
    for number in range(n):
        if number % 3 == 2:
            with ThreadPoolExecutor(4) as pool:
                codes = [*pool.map(functools.partial(status, port, 'POST', '/neighbours'), uploads(lab.random))]
        else:
            header = mutated(lab.random.choice(['http://[', f'http://127.0.0.1:{port}', '127.0.0.1:']), lab.random)
            name, text = ['Origin', 'Host'][number % 3], header.encode('latin-1', 'replace').splitlines() or [b'']
            codes = [status(port, 'GET', '/start', headers={name: text[0]})]
        works = status(port, 'GET', '/start')
        yield None if works == 200 and 500 not in codes and None not in codes else f'{codes}, then {works}'
    child.send(signal.SIGINT)
    if problem := outcome(child, {0, 130}):
        yield problem


def uploads(generator):
    """Four uploads: photos of one colour with about as many pixels as are allowed, and bytes that are too many."""
    for _ in range(3):
        photo, side = io.BytesIO(), generator.choice([500, 7000, 7300])
        Image.new('RGB', (side, side)).save(photo, 'png', compress_level=1)
        yield photo.getvalue()
    yield bytes((server.MAX_MB + 1) << 20)


def status(port, method, path, body=None, headers=None):
    """The status of the answer to a request; None where there is none."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT)
    try:
        connection.putrequest(method, path, skip_host='Host' in (headers or {}))
        for name, value in ({'Content-Length': str(len(body or b''))} | (headers or {})).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    except ConnectionError:
        return 413 if len(body or b'') > server.MAX_MB << 20 else None        # refused while the body is sent
    except OSError:
        return None
    finally:
        connection.close()


def page():
    """A client of the page of an index without images; a photo that could be read would end in an error."""
    index = argparse.Namespace(paths=[], is_current=lambda: True)
    return server.application(index, None, lambda image: image.load()).test_client()
