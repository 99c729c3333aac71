"""Downloads that continue after an interruption, are checked by their MD5 hash, and are unpacked."""
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from tqdm import tqdm

from records import lock
from utilities import stopping
from utilities.errors import UserError
from utilities.files import file_hash


def fetch(url, md5, folder, places):
    """
    Downloads the archive at `url`, a .zip or .tgz file of this MD5 hash, into `folder`, unpacks it and removes it. Does
    nothing if one of `places`, where its content may be, exists, unless the archive is there, too: then an earlier
    attempt was interrupted. Of several processes, the first does so, and the others wait for it.

    Raises UserError if the server does not answer, the archive is another file, or the folder cannot be written to.
    """
    folder = Path(folder)
    archive = folder / url.rsplit('/', 1)[-1]

    def is_done():
        return any(map(os.path.exists, places)) and not archive.exists()

    if is_done():
        return
    if archive.suffix != '.zip' and not hasattr(tarfile, 'data_filter'):
        raise UserError(f'--download: Python before 3.11.4 cannot unpack {url} safely; unpack it by hand and leave '
                        '--download out')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock.held(folder, f'--download: another process downloads into {folder}; waiting for it'):
            if is_done():
                return
            if not archive.exists():
                download(url, archive)
            found = file_hash(archive, 'md5')
            if found != md5:
                raise UserError(f'--download: {archive} is not the expected file (md5 {found}, expected {md5}); remove '
                                'it and start again, or fetch the data by hand')
            unpack(archive, folder)
            archive.unlink()
    except OSError as error:
        raise UserError(f'--download: {error.filename or folder}: {error.strerror or error}') from None


def download(url, file):
    """Downloads `url` into `file`, continuing where an earlier attempt stopped."""
    partial = file.with_name(file.name + '.part')
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={'Range': f'bytes={start}-'} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            continued = answer.status == 206
            start = start if continued else 0
            total = start + int(answer.headers.get('Content-Length', 0)) or None
            with open(partial, 'ab' if continued else 'wb') as output, tqdm(
                    desc=partial.stem, initial=start, total=total, unit='B', unit_scale=True, disable=None) as bar:
                while block := answer.read(1 << 20):
                    stopping.check()
                    output.write(block)
                    bar.update(len(block))
        if total and partial.stat().st_size < total:
            raise ConnectionError(f'the connection ended after {partial.stat().st_size} of {total} bytes')
    except urllib.error.HTTPError as error:
        if error.code != 416:                     # 416: an earlier attempt downloaded everything
            raise UserError(f'--download: {url}: {error}') from None
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f'--download: {url}: {error}. Start again to continue from {partial}.') from None
    partial.rename(file)


def unpack(archive, folder):
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            for name in stopping.checked(tqdm(content.namelist(), desc=f'unpacking {archive.name}', disable=None)):
                content.extract(name, folder)
    else:
        with tarfile.open(archive) as content:
            content.extractall(folder, members=stopping.checked(content), filter='data')
