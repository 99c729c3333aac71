"""Faults of files: damaged ones, flipped pixels of an image cache, a full disk."""
import functools
import itertools
import resource
import shutil

from benchmarks.faults.runs import outcome, refusal_or_difference, start
from records import checkpoint

FILES = ('checkpoint_last.pt', 'log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json', 'config.yaml')


def damage(file, how, generator):
    """Damages a file in place, or removes it."""
    if how == 'removed':
        return file.unlink()
    data = bytearray(file.read_bytes())
    if how == 'bit':
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif how == 'digit':
        digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
        place = generator.choice(digits)
        data[place] = ord('0') + (data[place] - ord('0') + generator.randrange(1, 10)) % 10
    elif how == 'cut':
        del data[generator.randrange(len(data)):]
    elif how == 'emptied':
        data.clear()
    else:
        place = generator.randrange(len(data))
        data[place:place] = {'NUL': b'\0', 'no UTF-8': b'\xff\xfe'}[how]
    file.write_bytes(data)


def damaged(lab, n):
    """A file of the run folder is damaged: the resumed run refuses it in a sentence, or ends as undisturbed."""
    hows = ['bit', 'bit', 'digit', 'cut', 'emptied', 'NUL', 'no UTF-8', 'removed']
    for (name, how), _ in itertools.product(itertools.product(FILES, hows), range(n)):
        folder = lab.copied(lab.half)
        damage(folder / name, how, lab.random)
        problem = resumed(lab, folder)
        yield problem and f'{name}, {how}: {problem}'


def damaged_starts(lab, n):
    """The checkpoint of --start_from is damaged: refused in a sentence, or the run starts as from the whole file."""
    for how, _ in itertools.product(['bit', 'cut', 'emptied', 'removed'], range(n)):
        folder, group = lab.copied(lab.half), lab.group()
        damage(folder / checkpoint.LAST, how, lab.random)
        child = start([*lab.arguments('plain', group), '--n_epochs', 0, '--start_from', folder])
        problem = outcome(child, {0, 2})
        if not problem and child.ended == 2 and lab.place(group).exists():
            problem = 'a run folder is left'
        yield problem and f'{how}: {problem}'


def resumed(lab, folder):
    """Resumes a damaged copy of lab.half, and removes it; returns None if it was survived, else a text."""
    problem = refusal_or_difference(start(['--resume', folder, '--n_epochs', 3]), lab.undisturbed('plain'), folder)
    shutil.rmtree(folder)
    return problem


def flipped_pixels(lab, n):
    """A bit of the pixels of an image cache is flipped: the run names the image, or ends as undisturbed."""
    whole, cache = lab.undisturbed('plain'), ['--image_cache', lab.folder / 'cache']
    lab.done([*lab.arguments('plain', lab.group()), *cache, '--n_epochs', 0])
    pixels, = (lab.folder / 'cache').rglob('pixels')
    content = pixels.read_bytes()
    for _ in range(n):
        damage(pixels, 'bit', lab.random)
        group = lab.group()
        child = start([*lab.arguments('plain', group), *cache])
        yield refusal_or_difference(child, whole, lab.place(group), 'Remove that folder')
        pixels.write_bytes(content)


def limited_to(size):
    """Returns the fault that no file can become larger than `size` bytes."""
    return functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))


def full_disk(lab, n):
    """No file can become larger than a random size: exit code 1 and a sentence, and the run can be continued."""
    largest = max(file.stat().st_size for file in lab.undisturbed('plain').rglob('*'))
    for _ in range(n):
        group, size = lab.group(), int(100 * (1.1 * largest / 100) ** lab.random.random())
        problem = outcome(start(lab.arguments('plain', group), limited_to(size)), {0, 1, 2})
        yield f'{size} bytes: {problem}' if problem else lab.end('plain', group)
