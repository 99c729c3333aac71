"""Downloads that continue after an interruption, are checked by hash, and unpack only into their own folder."""
import http.client
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


def no_address(name, where):
    raise UserError(f'--download: {name} has no stable public address. Download it by hand into a folder '
                    f'below --source_path:\n{where}')


def fetch(url, checksum, folder):
    """
    Downloads the archive at `url` into `folder` and unpacks it, each unless it has been done before. Of several
    processes, the first does so, and the others wait for it.

    checksum: '<algorithm>:<hexadecimal digest>', as in 'md5:97ec...'.
    Raises UserError if the server does not answer, the checksum of the archive differs, it cannot be unpacked, or the
    folder cannot be written to.
    """
    folder = Path(folder)
    archive = folder / url.rsplit('/', 1)[-1]
    done = archive.with_name(archive.name + '.unpacked')
    if done.exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock.held(folder, f'--download: another process downloads into {folder}; waiting for it'):
            if not done.exists():
                obtain(url, checksum, archive)
                done.touch()
                archive.unlink()
    except OSError as error:
        raise UserError(f'--download: {error.filename or folder}: {error.strerror or error}') from None


def obtain(url, checksum, archive):
    """Downloads the file `archive`, unless it is there, and unpacks it into its folder."""
    if not archive.exists():
        partial = archive.with_name(archive.name + '.part')
        download(url, partial)
        if difference := other_than(checksum, partial):
            partial.unlink()
            raise UserError(f'--download: what {url} sent is not the expected file ({difference}); it was deleted. '
                            'Start again, or fetch the data by hand.')
        partial.rename(archive)
    elif difference := other_than(checksum, archive):
        raise UserError(f'--download: {archive} is not the expected file ({difference}); remove it and start again')
    unpack(archive, archive.parent)


def download(url, partial):
    """Downloads `url` into the file `partial`, continuing where an earlier attempt stopped."""
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
        if error.code != 416:                     # 416: an earlier attempt downloaded everything
            raise UserError(f'--download: {url}: {error}') from None
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f'--download: {url}: {error}. Start again to continue from {partial}.') from None


def other_than(checksum, path):
    """'' if the file has this checksum; otherwise the difference, as text."""
    algorithm, expected = checksum.split(':')
    found = file_hash(path, algorithm)
    return '' if found == expected else f'{algorithm} {found}, expected {expected}'


def unpack(archive, folder):
    """
    Unpacks a .zip, .tar or .tgz file. Raises UserError if it is damaged, encrypted or of another kind, or if a member
    would be written outside `folder`.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if not (folder / name).resolve().is_relative_to(folder.resolve()):
                        raise UserError(f'{archive}: the member {name} lies outside the folder; not unpacked')
                bar = tqdm(opened.namelist(), desc=f'unpacking {archive.name}', disable=None)
                for name in stopping.checked(bar):
                    opened.extract(name, folder)
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(folder, members=stopping.checked(opened), filter='data')
    except UserError:
        raise
    except Exception as error:  # zipfile, tarfile and the decompressors raise anything on a broken file
        raise UserError(f'{archive}: not unpacked: {" ".join(str(error).split()) or type(error).__name__}') from None
