"""Faults of files: cut off, of another run, a full disk."""
import functools
import itertools
import pickle
import resource
import shutil

import configuration
from benchmarks.faults.runs import Code, outcome, refusal_or_difference, refusal_or_other_value, start
from records import checkpoint, published
from retrieval import export, loading

FILES = ('checkpoint_last.pt', 'log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json', 'config.yaml')
OUTPUTS = {                                    # output: the command that writes it
    'embeddings': 'Evaluate_Network.py {run} embeddings {out}.npz',
    'export': 'Evaluate_Network.py {run} export {out}.pt2',
    'pictures': 'Evaluate_Network.py {run} pictures {out} --pictures distances',
    'table': 'Result_Evaluations.py --runs {run} --metrics e_recall@1 --latex {out}.tex --csv {out}.csv',
    'rows': 'Result_Evaluations.py --runs {run} --metrics e_recall@1 --rows {out}.csv',
    'figures': 'Result_Evaluations.py --runs {run} --metrics e_recall@1 --figures {out}',
    'index': 'Retrieve_Images.py index {run} {photos} --out {out} --device cpu --kernels 0',
    'suspects': 'Retrieve_Images.py suspects {run} --out {out}.csv --device cpu --kernels 0',
}


def damage(file, how, generator):
    """Damages a file in place, or removes it."""
    if how == 'removed':
        return file.unlink()
    data = bytearray(file.read_bytes())
    if how == 'bit':
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif how == 'cut':
        del data[generator.randrange(len(data)):]
    elif how == 'emptied':
        data.clear()
    else:
        place = generator.randrange(len(data))
        data[place:place] = {'NUL': b'\0', 'no UTF-8': b'\xff\xfe'}[how]
    file.write_bytes(data)


def damaged(lab, n):
    """
    A file of the run folder is cut off, removed or no longer text, or one bit of the checkpoint is changed: the resumed
    run refuses the file with a message, or ends as an undisturbed run.
    """
    cases = [*itertools.product(FILES, ['cut', 'emptied', 'no UTF-8', 'removed']), (checkpoint.LAST, 'bit')]
    for (name, how), _ in itertools.product(cases, range(n)):
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


def swapped_files(lab, n):
    """A file of another run in a run folder: refused in a sentence, or the resumed run ends as undisturbed."""
    group = lab.group()
    other = lab.done([*lab.arguments('plain', group), '--n_epochs', 1, '--lr', .002, '--savename', group],
                     lab.folder / 'runs' / 'folder' / group)
    for name, _ in itertools.product(FILES, range(n)):
        folder = lab.copied(lab.half)
        shutil.copy(other / name, folder / name)
        problem = resumed(lab, folder)
        yield problem and f'{name}: {problem}'


def resumed(lab, folder):
    """Resumes a damaged copy of lab.half, and removes it; returns None if it was survived, else a text."""
    problem = refusal_or_difference(start(['--resume', folder, '--n_epochs', 3]), lab.undisturbed('plain'), folder)
    shutil.rmtree(folder)
    return problem


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


def unwritable_outputs(lab, n):
    """No file can become larger than a random size while an output is written: a sentence, and nothing is left."""
    run, photos, folder = lab.undisturbed('plain'), lab.folder / 'data' / 'images', lab.folder / 'outputs'
    for name, line in OUTPUTS.items():
        script, *arguments = line.format(run=run, photos=photos, out=folder / 'out').split()
        for number in range(n + 1):
            size = 0 if number == 1 else int(4096 + 20_000 * lab.random.random() ** 3)
            folder.mkdir()
            if number == 0:                               # without a fault
                lab.done(arguments, script=script)
            else:
                problem = outcome(start(arguments, limited_to(size), script), {2} if number == 1 else {0, 2})
                left = [path.name for path in folder.rglob('.*') if path.name != '.lock']
                problem = problem or (f'left over: {left}' if left else None)
                yield problem and f'{name}, {size} bytes: {problem}'
            shutil.rmtree(folder)


def damaged_networks(lab, n):
    """A file of an exported network is cut off, foreign or a pickle that runs code: a message, or the same network."""
    whole, ran = lab.folder / 'network', lab.folder / 'code_ran'
    if not whole.exists():
        export.write(configuration.parse(['--evaluate', str(lab.half)]), lab.half, whole, hub=True)
    expected = loading.load(whole, 'cpu')[0].id
    hows = ['cut', 'emptied', 'NUL', 'no UTF-8', 'code']
    for (name, how), _ in itertools.product(itertools.product(
            (published.CONFIG, published.BACKBONE, published.REST), hows), range(n)):
        folder = lab.copied(whole)
        if how == 'code':
            (folder / name).write_bytes(pickle.dumps(Code(ran)))
        else:
            damage(folder / name, how, lab.random)
        problem = refusal_or_other_value(lambda folder=folder: loading.load(folder, 'cpu')[0].id, expected)
        shutil.rmtree(folder)
        yield f'{name}, {how}: code ran' if ran.exists() else problem and f'{name}, {how}: {problem}'
