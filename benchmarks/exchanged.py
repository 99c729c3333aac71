"""For benchmarks.faults: files of other runs, flipped pixels of an image cache, outputs that cannot be written."""
import functools
import itertools
import resource
import shutil

import torch

import Result_Evaluations
import Retrieve_Images
from benchmarks.disturbed import difference, outcome, start
from records import checkpoint

OUTPUTS = {                                    # output: the script that writes it (None: main.py), its arguments
    'embeddings': (None, '--embed {run} {out}.npz'), 'export': (None, '--export {run} {out}.pt2'),
    'pictures': (None, '--draw {run} {out} --pictures distances'), 'overlap': (None, '--check_overlap {run}'),
    'table': (Result_Evaluations, '--runs {run} --metrics e_recall@1 --latex {out}.tex --csv {out}.csv'),
    'rows': (Result_Evaluations, '--runs {run} --metrics e_recall@1 --rows {out}.csv'),
    'figures': (Result_Evaluations, '--runs {run} --metrics e_recall@1 --figures {out}'),
    'index': (Retrieve_Images, 'index {run} {photos} --out {out}'),
    'suspects': (Retrieve_Images, 'suspects {run} --out {out}.csv'),
}


def swapped_files(lab, n):
    """A file of another run in a run folder: refused in a sentence, or the resumed run ends as undisturbed."""
    whole, group = lab.undisturbed('plain'), lab.group()
    if problem := outcome(start([*lab.arguments('plain', group), '--n_epochs', 1, '--lr', .002, '--savename', group]),
                          {0}):
        raise SystemExit(f'the other run: {problem}')
    other = lab.folder / 'runs' / 'folder' / group
    files = ['checkpoint_last.pt', 'config.yaml', 'log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json']
    for name, is_old in itertools.product(files, (False, True)):
        for _ in range(n):
            folder = lab.copied(lab.half)
            shutil.copy(other / name, folder / name)
            if is_old:                                        # a checkpoint of a version that wrote no ids
                forget_id(folder)
            child = start(['--resume', folder, '--n_epochs', 3])
            problem = outcome(child, {0, 2})
            if not problem and 'main.py: error' not in child.text:
                problem = difference(whole, folder)
            shutil.rmtree(folder)
            yield problem and f'{name}{", old" * is_old}: {problem}'


def forget_id(folder):
    states = torch.load(folder / checkpoint.LAST, weights_only=True)
    del states['run_id']
    torch.save(states, folder / checkpoint.LAST)


def flipped_pixels(lab, n):
    """A bit of the pixels of an image cache is flipped: the run names the image, or ends as undisturbed."""
    whole, cache = lab.undisturbed('plain'), lab.folder / 'cache'
    if problem := outcome(start([*lab.arguments('plain', lab.group()), '--image_cache', cache, '--n_epochs', 0]), {0}):
        raise SystemExit(f'the run that fills the cache: {problem}')
    pixels, = cache.rglob('pixels')
    content = pixels.read_bytes()
    for _ in range(n):
        changed = bytearray(content)
        changed[lab.random.randrange(len(changed))] ^= 1 << lab.random.randrange(8)
        pixels.write_bytes(changed)
        group = lab.group()
        child = start([*lab.arguments('plain', group), '--image_cache', cache])
        problem = outcome(child, {0, 2})
        if not problem and 'Remove that folder' not in child.text:
            problem = difference(whole, lab.place(group))
        yield problem
    pixels.write_bytes(content)


def unwritable_outputs(lab, n):
    """No file can become larger than a random size while an output is written: a sentence, and nothing is left."""
    run, photos = lab.undisturbed('plain'), lab.folder / 'data' / 'images'
    for name, (script, line) in OUTPUTS.items():
        for number in range(n):
            folder, size = lab.folder / 'outputs', 0 if number == 0 else int(4096 + 20_000 * lab.random.random() ** 3)
            folder.mkdir()
            arguments = line.format(run=run, photos=photos, out=folder / 'out').split()
            if script is Retrieve_Images:
                arguments += ['--device', 'cpu', '--kernels', '0']
            limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
            child = start(arguments, limit, *([script] if script else []))
            problem = outcome(child, {0, 2} if number else {2})
            left = [path.name for path in folder.rglob('.*') if path.name != '.lock']
            problem = problem or (f'left over: {left}' if left else None)
            shutil.rmtree(folder)
            yield problem and f'{name}, {size} bytes: {problem}'
