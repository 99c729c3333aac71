"""Downloads that continue where they stopped, are checked, and unpack only below their own folder."""
import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from tqdm import tqdm

from utilities import stopping
from utilities.errors import UserError


def no_address(name, where):
    raise UserError(f'--download: {name} has no stable public address. Fetch it by hand: --source_path must lead to\n'
                    f'a folder with {where}')


def fetch(url, checksum, folder):
    """
    Downloads the archive at `url` into `folder` and unpacks it there, unless that was done before.

    checksum: '<algorithm>:<hexadecimal digest>', as in 'md5:97ec...'.
    Raises UserError where the address does not answer, the file is not the expected one, or a member leaves the folder.
    """
    folder = Path(folder)
    archive = folder / url.rsplit('/', 1)[-1]
    done = archive.with_name(archive.name + '.unpacked')
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        partial = archive.with_name(archive.name + '.part')
        download(url, partial)
        verify(partial, checksum, url)
        partial.rename(archive)
    unpack(archive, folder)
    done.touch()
    archive.unlink()


def download(url, partial):
    """Fetches `url` to the file `partial`, from where an earlier attempt left it."""
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={'Range': f'bytes={start}-'} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            continued = answer.status == 206
            start = start if continued else 0
            total = start + int(answer.headers.get('Content-Length', 0)) or None
            with open(partial, 'ab' if continued else 'wb') as file, tqdm(
                    desc=partial.stem, initial=start, total=total, unit='B', unit_scale=True, disable=None) as bar:
                while block := answer.read(1 << 20):
                    stopping.check()
                    file.write(block)
                    bar.update(len(block))
        if total and partial.stat().st_size < total:
            raise ConnectionError(f'the connection ended after {partial.stat().st_size} of {total} bytes')
    except urllib.error.HTTPError as error:
        if error.code != 416:                     # 416: an earlier attempt had fetched all of it
            raise UserError(f'--download: {url}: {error}') from None
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f'--download: {url}: {error}. Start again to continue from {partial}.') from None


def verify(path, checksum, url):
    algorithm, expected = checksum.split(':')
    with open(path, 'rb') as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        path.unlink()
        raise UserError(f'--download: what {url} sent is not the expected file ({algorithm} {found}, expected '
                        f'{expected}); it was deleted. Start again, or fetch the data by hand.')


def unpack(archive, folder):
    """Unpacks a .zip, .tar or .tgz; a member whose path leaves `folder` is refused (the data filter, for tar)."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if not (folder / name).resolve().is_relative_to(folder.resolve()):
                        raise UserError(f'{archive}: the member {name} leaves the folder; not unpacked')
                bar = tqdm(opened.namelist(), desc=f'unpacking {archive.name}', disable=None)
                for name in stopping.checked(bar):
                    opened.extract(name, folder)
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(folder, members=stopping.checked(opened), filter='data')
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        raise UserError(f'{archive}: {error}; not unpacked') from None
