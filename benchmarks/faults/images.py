"""Faults of images: formats that start programs, and images of many pixels."""
import argparse
import os
import resource
import shutil
import zlib

from PIL import EpsImagePlugin

from benchmarks.faults.runs import outcome, start
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
    """A small file of up to a gigapixel: refused in a sentence, within MEMORY, by --max_megapixels and by the page."""
    for i in range(n):
        side = lab.random.randrange(8000, 32000)
        content, group = black_png(side), lab.group()
        if i % 2:
            code, text = answered(content)
            refused = code == 400 and 'million pixels' in text
            yield None if refused else f'{side} pixels: the page answers {code}: {text}'
            continue
        place = with_image(lab, group, 'photo.png', content)
        child = start([*lab.arguments('plain', group), '--n_epochs', 0, '--source_path', place, '--max_megapixels', 50],
                      limited)
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
    """The page's answer to an upload, in a process of limited memory: (status code, text)."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            limited()
            answer = page().post('/neighbours', data=content)
            os.write(writing, f'{answer.status_code} {answer.text}'.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        code, _, text = pipe.read().partition(' ')
    os.waitpid(pid, 0)
    return int(code or 0), text


def page():
    """A client of the page of an index without images; a photo that could be read would end in an error."""
    index = argparse.Namespace(paths=[], is_current=lambda: True)
    return server.application(index, None, lambda image: image.load()).test_client()
