"""Downloads continue, are checked, and are unpacked."""
import contextlib
import functools
import hashlib
import io
import multiprocessing
import shutil
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from PIL import Image

import datasets
from datasets import download
from tests.datasets.test_datasets import select
from utilities import stopping
from utilities.errors import UserError


@pytest.fixture
def server():
    """A server of `content` that understands ranges; with `cut`, it breaks off after so many bytes."""
    class Handler(BaseHTTPRequestHandler):
        content, cut, requests = b'', None, []

        def do_GET(self):
            start = int(self.headers.get('Range', 'bytes=0-')[6:-1])
            self.requests.append(start)
            if self.path.startswith('/missing'):
                return self.send_error(404)
            if start >= len(self.content):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header('Content-Length', str(len(self.content) - start))
            self.end_headers()
            self.wfile.write(self.content[start:self.cut])

        def log_message(self, *arguments):
            pass

    Handler.requests = []
    server = HTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()      # seconds until it ends
    Handler.url = f'http://127.0.0.1:{server.server_port}'
    yield Handler
    server.shutdown()
    server.server_close()


def tar_of(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w:gz') as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def md5(content):
    return hashlib.md5(content).hexdigest()


def test_a_download_continues_is_checked_and_unpacked_once(server, tmp_path):
    server.content = tar_of({'a/b.txt': bytes(np.random.default_rng(0).bytes(5000))})
    server.cut = 3000
    fetch = functools.partial(download.fetch, server.url + '/data.tgz', md5(server.content), tmp_path,
                              [tmp_path / 'other', tmp_path / 'a'])
    with pytest.raises(UserError, match=r'3000 of \d+ bytes. Start again to continue from'):
        fetch()
    server.cut = None
    fetch()
    assert server.requests == [0, 3000] and (tmp_path / 'a' / 'b.txt').stat().st_size == 5000
    assert [file.name for file in tmp_path.iterdir()] == ['a']
    fetch()
    assert server.requests == [0, 3000]
    shutil.rmtree(tmp_path / 'a')                                  # all fetched, then killed before the check
    (tmp_path / 'data.tgz.part').write_bytes(server.content)
    fetch()
    (tmp_path / 'a' / 'b.txt').unlink()                            # killed while it was unpacked
    (tmp_path / 'data.tgz').write_bytes(server.content)
    fetch()
    assert (tmp_path / 'a' / 'b.txt').exists() and server.requests == [0, 3000, len(server.content)]
    (tmp_path / 'a').rename(tmp_path / 'moved')
    fetch()
    assert (tmp_path / 'a').exists()


def test_of_two_processes_one_downloads(server, monkeypatch, tmp_path, capfd):
    server.content, start, sleep = tar_of({'a.txt': b'x'}), download.download, stopping.sleep
    fork = multiprocessing.get_context('fork')
    waits = fork.Event()

    def slowly(url, file):
        waits.wait(60)                                                 # until the other process has begun
        start(url, file)

    monkeypatch.setattr(download, 'download', slowly)
    monkeypatch.setattr(stopping, 'sleep', lambda seconds: (waits.set(), sleep(seconds)))
    arguments = server.url + '/data.tgz', md5(server.content), tmp_path, [tmp_path / 'a.txt']
    processes = [fork.Process(target=download.fetch, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0] and server.requests == [0]
    assert [file.name for file in tmp_path.iterdir()] == ['a.txt']
    assert capfd.readouterr().out.count('another process downloads into') == 1


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='--download: .*file: File exists'):
        download.fetch('http://127.0.0.1:9/x.tgz', '0', tmp_path / 'file', [])


def test_a_wrong_address_is_refused(server, tmp_path):
    with pytest.raises(UserError, match='404'):
        download.fetch(server.url + '/missing.tgz', '0', tmp_path, [])
    with pytest.raises(UserError, match='--download: .*refused'):
        download.fetch('http://127.0.0.1:9/x.tgz', '0', tmp_path, [])
    assert not [file for file in tmp_path.iterdir() if file.stat().st_size]


def test_a_wrong_archive_is_refused_and_never_deleted(server, tmp_path):
    """Whether it was downloaded or is there already, from where it is unpacked if it is the right one."""
    server.content = tar_of({'a.txt': b'x'})
    with pytest.raises(UserError, match='data.tgz is not the expected file .md5 .* expected 0.; remove it'):
        download.fetch(server.url + '/data.tgz', '0', tmp_path, [])
    assert (tmp_path / 'data.tgz').exists() and not (tmp_path / 'a.txt').exists()
    download.fetch(server.url + '/data.tgz', md5(server.content), tmp_path, [])
    assert (tmp_path / 'a.txt').exists() and server.requests == [0]


@pytest.mark.parametrize('name, kind', [
    ('../outside', tarfile.REGTYPE), ('{outside}', tarfile.REGTYPE), ('a', tarfile.SYMTYPE), ('a', tarfile.LNKTYPE),
    ('a', tarfile.CHRTYPE), ('a', tarfile.FIFOTYPE)])
def test_no_member_of_an_archive_changes_what_lies_outside(name, kind, tmp_path):
    """The member of the second name would be written through the link that is the first one."""
    folder, outside = tmp_path / 'inside', tmp_path / 'outside'
    folder.mkdir()
    outside.write_text('mine')
    name = name.format(outside=outside)
    entry, through = tarfile.TarInfo(name), tarfile.TarInfo(name)
    entry.type, entry.linkname, through.size = kind, '../outside', 6
    with tarfile.open(folder / 'a.tgz', 'w:gz') as archive:
        archive.addfile(entry)
        archive.addfile(through, io.BytesIO(b'theirs'))
    with zipfile.ZipFile(folder / 'a.zip', 'w') as archive:
        archive.writestr(name, 'theirs')
    for archive in ('a.tgz', 'a.zip'):
        with contextlib.suppress(tarfile.FilterError):
            download.unpack(folder / archive, folder)
        assert outside.read_text() == 'mine'
    assert all(path.is_file() and not path.is_symlink() or path.is_dir() for path in folder.rglob('*'))


def test_cub200_and_omniglot_are_fetched_into_place(server, opt, tmp_path, monkeypatch):
    picture = io.BytesIO()
    Image.new('RGB', (8, 8)).save(picture, 'PNG')
    server.content = tar_of({f'CUB_200_2011/images/{c:03d}.Bird/1.png': picture.getvalue() for c in range(1, 5)})
    for c in range(6):
        (tmp_path / 'other' / 'cub2011' / 'CUB_200_2011' / 'images' / f'{c}').mkdir(parents=True)
        (tmp_path / 'other' / 'cub2011' / 'CUB_200_2011' / 'images' / f'{c}' / '1.png').write_bytes(picture.getvalue())
    monkeypatch.setattr(datasets.cub200, 'ARCHIVE', server.url + '/CUB_200_2011.tgz')
    monkeypatch.setattr(datasets.cub200, 'MD5', md5(server.content))
    assert len(select(opt, tmp_path, 'cub200', download=True).train) == 2
    assert len(select(opt, tmp_path / 'other', 'cub200', download=True).train) == 3 and server.requests == [0]
    monkeypatch.setattr(datasets.omniglot, 'ROOT', server.url + '/')
    monkeypatch.setattr(datasets.omniglot, 'ARCHIVES', {})
    for part, n_train in (('images_background', 2), ('images_evaluation', 4)):
        file = io.BytesIO()
        with zipfile.ZipFile(file, 'w') as archive:
            for c in range(4):
                archive.writestr(f'{part}/Greek/{part}{c:02d}/1.png', picture.getvalue())
        server.content = file.getvalue()
        datasets.omniglot.ARCHIVES[f'{part}.zip'] = md5(server.content)
        data = select(opt, tmp_path, 'omniglot', download=True)
        assert len(data.train) == n_train
        assert data.description['other_data'].startswith(f'{2 * n_train} images of {2 * n_train} classes, not 32,460')
    (tmp_path / 'omniglot').rename(tmp_path / 'omniglot-py')
    assert len(select(opt, tmp_path, 'omniglot', download=True).train) == 4 and server.requests == [0, 0, 0]


def test_a_python_without_safe_unpacking(tmp_path, monkeypatch):
    """It is told before the download."""
    monkeypatch.delattr(tarfile, 'data_filter')
    with pytest.raises(UserError, match='--download: Python before 3.11.4 cannot unpack .*a.tgz safely; unpack it by'):
        download.fetch('https://localhost/a.tgz', '', tmp_path, [tmp_path / 'a'])
