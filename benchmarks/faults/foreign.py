"""Faults of what comes from elsewhere: archives of a download, an index that is replaced while it is served, W&B."""
import functools
import hashlib
import http.client
import importlib.util
import io
import json
import os
import shutil
import signal
import socket
import stat
import struct
import tarfile
import time
import warnings
import zipfile
import zlib
from pathlib import Path

from PIL import Image

from benchmarks.faults.files import damage, limited_to
from benchmarks.faults.inputs import mutated
from benchmarks.faults.runs import LIMIT, fork, outcome, refusal_or_other_value, start
from datasets import download
from records import wandb_files
from reports import wandb_runs
from utilities import errors

LARGEST = 1 << 24                              # bytes of a file that an archive may unpack here
ZEROS = bytes(1 << 20)
OUTSIDE = 'outside'                            # the file that no archive may change, beside the folder of the download
KEYS = {'seed', 'dataset', 'group', 'n_epochs', 'epoch', 'test/e_recall@1', 'test_hash', 'merged'}
VALUES = ['null', 'true', '-1', '1.5', '1e999', 'NaN', '"text"', '""', '[1, 2]', '{"a": {"b": 1}}', '[' * 5000, '{',
          '9' * 5000, '"NaN"', '"Infinity"', '"../a"', '"\\ud800"', '9' * 30, '']
LINKS = {tarfile.SYMTYPE, tarfile.LNKTYPE}


def hostile_archives(lab, n):
    """
    A download unpacks members that leave their folder, links and devices, bombs, damaged and cut archives, or an
    archive of another checksum: it refuses them with a message, or unpacks them, and changes nothing outside the
    folder.
    """
    for number in range(n):
        place = lab.folder / f'download_{lab.group()}'
        folder, outside = place / 'data', place / OUTSIDE
        folder.mkdir(parents=True)
        outside.write_text('mine')
        kind, content = hostile_archive(lab.random, number, outside)
        archive = place / f'archive.{kind}'
        archive.write_bytes(content)
        checksum = hashlib.md5(content if number % 9 else b'other').hexdigest()
        before = snapshot(place, folder)

        def work(archive=archive, checksum=checksum, folder=folder):
            limited_to(LARGEST)()
            with errors.reported('main.py') as end:
                download.fetch(archive.as_uri(), f'md5:{checksum}', folder)
            os._exit(end.code)

        problem = outcome(fork(work), {0, 2} if number % 9 else {2})
        if not problem and snapshot(place, folder) != before:
            problem = 'something outside the folder was changed'
        if not problem and (bad := [path for path in folder.rglob('*') if leaves(path, folder)]):
            problem = f'unpacked: {bad}'
        yield problem and f'{number}: {problem} ({archive})'
        if not problem:
            shutil.rmtree(place)


def hostile_archive(generator, number, outside):
    """('tar', 'tgz' or 'zip', the bytes of an archive)."""
    name = generator.choice(['../escaped', str(outside), '..\\escaped', 'a/../../escaped', 'plain', './plain',
                             'a/' * 300, 'n' * 300, '\udcff', 'CON', '~/escaped', '', '.'])
    kind = generator.choice(['tar', 'tgz', 'zip'])
    content = generator.choice([b'content', ZEROS * 32])                  # zeros: more than LARGEST
    file = io.BytesIO()
    if kind == 'zip':
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
            entry = zipfile.ZipInfo(name.encode('utf-8', 'replace').decode())
            entry.external_attr = generator.choice([0, 0o120777 << 16, 0o104755 << 16, 0o20666 << 16])
            archive.writestr(entry, generator.choice([content, str(outside).encode()]), zipfile.ZIP_DEFLATED)
            with warnings.catch_warnings(action='ignore', category=UserWarning):   # warning of two entries of one name
                archive.writestr('plain', b'content')
    else:
        with tarfile.open(fileobj=file, mode='w' if kind == 'tar' else 'w:gz', errors='surrogateescape') as archive:
            entry = tarfile.TarInfo(name)
            entry.type = generator.choice([tarfile.REGTYPE, *LINKS, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
            entry.linkname = generator.choice([str(outside), f'../{OUTSIDE}', 'plain']) if entry.type in LINKS else ''
            entry.size = len(content) if entry.type == tarfile.REGTYPE else 0
            entry.mode = generator.choice([0o644, 0o4777, 0])
            archive.addfile(entry, io.BytesIO(content))
            through = tarfile.TarInfo(generator.choice([name, f'{name}/below', 'plain']))       # through the link
            through.size = 7
            archive.addfile(through, io.BytesIO(b'content'))
    data = bytearray(file.getvalue())
    if number % 3 == 1:
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif number % 3 == 2:
        del data[generator.randrange(len(data)):]
    return kind, bytes(data)


def snapshot(place, folder):
    """The files at `place`, except those in `folder`: {path: content}."""
    return {path: path.read_bytes() for path in place.rglob('*') if path.is_file() and not path.is_relative_to(folder)}


def leaves(path, folder):
    """Whether something unpacked is a device, leads out of `folder`, or runs with the rights of its owner."""
    mode = path.lstat().st_mode
    is_plain = any(kind(mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK))
    end = Path(os.path.realpath(path))                       # also of a link that leads nowhere, or to itself
    return not end.is_relative_to(os.path.realpath(folder)) or not is_plain or mode & 0o6000 != 0


def swapped_indexes(lab, n):
    """
    While an index is served, images are added to it or removed from it, or its folder is moved away, replaced by
    another index or removed: each request is answered as before, and the page says that the index has changed.
    """
    run, photos = lab.undisturbed('plain'), lab.folder / 'data' / 'images'
    flags = ['--device', 'cpu', '--kernels', 0]
    made = [lab.folder / f'made_{number}' for number in range(2)]
    for out, label in zip(made, ('class_00', 'class_01'), strict=True):
        if not out.exists():
            lab.done(['index', run, photos / label, '--out', out, *flags], script='Retrieve_Images.py')
    for number in range(n):
        folder = lab.folder / f'served_{lab.group()}'
        shutil.copytree(made[0], folder)
        change = ['add', 'remove', 'replaced', 'moved', 'deleted'][number % 5]
        with socket.create_server(('127.0.0.1', 0)) as free:
            port = free.getsockname()[1]
        child = start(['serve', folder, '--port', port, '--device', 'cpu'], script='Retrieve_Images.py')
        wait_for_page(child)
        before = answers(port)
        if change in ('add', 'remove'):
            more = [*flags] if change == 'add' else []
            images = photos / ('class_01' if change == 'add' else 'class_00/0.png')
            changing = start([change, folder, images, *more], script='Retrieve_Images.py')
            while changing.code(lab.random.uniform(0, .05)) is None:              # requests go on meanwhile
                answers(port)
            problem = outcome(changing, {0})
        else:
            folder.rename(folder.with_name(f'{folder.name}_old'))
            if change == 'replaced':
                shutil.copytree(made[1], folder)
            elif change == 'deleted':
                shutil.rmtree(folder.with_name(f'{folder.name}_old'))
            problem = None
        if not problem and answers(port) != before | {'is_current': False}:
            problem = f'{answers(port)} instead of {before}'
        child.send(signal.SIGINT)
        problem = problem or outcome(child, {0, 130})
        yield problem and f'{change}: {problem}'


def wait_for_page(child):
    end = time.monotonic() + LIMIT
    while 'http://' not in child.text and child.code(0) is None and time.monotonic() < end:
        child.read()
        time.sleep(.05)


def answers(port):
    """What the page answers: whether the index is current, and the neighbours of its images and of a photo."""
    photo = io.BytesIO()
    Image.new('RGB', (30, 20), 'red').save(photo, 'png')
    start = answer(port, 'GET', '/start')
    found = [answer(port, 'GET', f'/neighbours/{row}') for row in (0, 3)]
    found.append(answer(port, 'POST', '/neighbours', photo.getvalue()))
    return {'is_current': start.pop('is_current'), 'start': start,
            'found': [[part.get('neighbours'), part.get('error')] for part in found]}


def answer(port, method, path, body=None):
    """The JSON that the page answers. Raises ValueError for an answer of another kind, such as that to an error."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT)
    try:
        connection.request(method, path, body)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def damaged_exports(lab, n):
    """
    The file of an offline run of W&B is damaged, cut off, or has a record or value with other content and a valid
    checksum: it is refused with a message; or the run has the same rows, or only the first of them and counts as
    unfinished.
    """
    if importlib.util.find_spec('wandb') is None:
        return
    group, exported = lab.group(), lab.folder / 'exported'
    for seed in (1, 2):
        child = start([*lab.arguments('plain', group), '--log_online', '--seed', seed],
                      functools.partial(os.environ.update, {'WANDB_MODE': 'offline'}))
        if problem := outcome(child, {0}):
            raise SystemExit(f'without a fault: --log_online: {problem}')
        shutil.copytree(lab.folder / 'runs' / 'folder' / f'{group}_s{seed}' / 'wandb', exported / str(seed))
    file = wandb_files.offline_files(exported / '1')[0]
    whole = file.read_bytes()
    expected = wandb_runs.read_offline([file])[0].rows
    hows = ['bit', 'bit', 'cut', 'emptied', 'NUL', 'no UTF-8', 'record', 'value', 'value', 'value']
    for number in range(n):
        how = hows[number % len(hows)]
        if how in ('record', 'value'):
            file.write_bytes(with_other_record(whole, lab.random, how))
        else:
            file.write_bytes(whole)
            damage(file, how, lab.random)
        child = start(['--runs', exported, '--metrics', 'e_recall@1'], script='Result_Evaluations.py')
        problem = outcome(child, {0, 2})
        if not problem and how not in ('record', 'value'):
            problem = refusal_or_other_value(lambda: is_beginning(file, expected), True)
        if problem:
            shutil.copy(file, kept := lab.folder / f'failed_{lab.group()}.wandb')
            problem += f' ({kept})'
        yield problem and f'{how}: {problem}'


def is_beginning(file, expected):
    """Whether a file has the expected rows, or, as an unfinished run, the first of them."""
    run, = wandb_runs.read_offline([file])
    is_whole = run.rows == expected
    return is_whole or 'unfinished' in run.state and run.rows == expected[:len(run.rows)]


def with_other_record(data, generator, how):
    """The bytes of a .wandb file with a few characters of one record or value changed, and the checksum made anew."""
    start, record = generator.choice([(place, record) for place, record in records_in(data) if record.WhichOneof(
        'record_type') in ('run', 'config', 'history', 'exit')])
    values = [*record.run.config.update, *record.config.update, *record.history.item]
    if how == 'value' and values:
        chosen = [value for value in values if value.key in KEYS] or values
        generator.choice(chosen if generator.random() < .5 else values).value_json = generator.choice(VALUES)
        return with_content(data, start, record.SerializeToString())
    text = record.SerializeToString().decode('latin-1')
    return with_content(data, start, mutated(text, generator).encode('latin-1', 'replace'))


def records_in(data):
    """[(place of its content, record)] of the records in the first block of the bytes of a .wandb file."""
    from wandb.proto import wandb_internal_pb2
    found, place = [], 2 * wandb_files.HEADER
    while place <= min(len(data), wandb_files.BLOCK):
        _, length, kind = struct.unpack_from('<IHB', data, place - wandb_files.HEADER)
        if kind == wandb_files.FULL:
            found.append((place, wandb_internal_pb2.Record.FromString(data[place:place + length])))
        place += length + wandb_files.HEADER
    return found


def with_content(data, place, content):
    """The bytes of a .wandb file with other content of the record at `place`, with its length and checksum."""
    _, length, kind = struct.unpack_from('<IHB', data, place - wandb_files.HEADER)
    checksum = zlib.crc32(content, zlib.crc32(bytes([kind])))
    header = struct.pack('<IHB', checksum, len(content), kind)
    return data[:place - wandb_files.HEADER] + header + content + data[place + length:]
