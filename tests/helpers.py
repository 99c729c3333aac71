"""What several test files call."""
import argparse
import contextlib
import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from torchvision.models import resnet

import architectures
import datasampler
import Evaluate_Network
import evaluation
import main
from records import checkpoint, run_folder
from records.state import State
from utilities.files import write_csv
from utilities.processes import accelerator

if sys.platform == 'linux':
    from tests import fork_server
else:
    fork_server = None

ROOT = Path(__file__).parents[1]
# of the known values
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
UNIT = torch.tensor([(1, 0, 0), (.8, .6, 0), (.48, .6, .64), (0, .6, .8), (-.6, 0, .8), (.36, .48, -.8)],
                    dtype=torch.float64)
GPU = accelerator()                                              # 'cuda', 'sim' on the simulated accelerator, or None
# without a GPU, torch.manual_seed notes the stack in order to seed one later, which takes longer than a small loss
manual_seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


def started(log, script, *arguments, **environment):
    """
    Starts `python script arguments` with its output and errors in the file `log`, and returns the process. Where the
    system allows it, it is a fork of a process that has imported the packages of main.py.
    """
    command = [sys.executable, *map(str, (script, *arguments))]
    with open(log, 'a') as file:
        forked = fork_server.start(command, file, environment) if fork_server else None
        return forked or subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                          start_new_session=True, env=os.environ | environment)


def executing(folder, code, *arguments, **environment):
    """Starts `python -c code arguments` by started(); (process, file of its output, of its errors), in `folder`."""
    number = len(list(folder.glob('*.out')))
    out, errors = folder / f'{number}.out', folder / f'{number}.errors'
    process = started(out, ROOT / 'tests' / 'execute.py', errors, code, *arguments, **environment)
    return process, out, errors


def executed(folder, code, *arguments, seconds=1200):
    """Executes `python -c code arguments`; returns (exit code, output, errors)."""
    process, out, errors = executing(folder, code, *arguments)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)                    # with all that it has forked
        raise
    return process.returncode, out.read_text(), errors.read_text()


# argv[1]: a copy of the checkout, whose modules replace those of this checkout, which the forked process has imported.
FROM_COPY = """
import os, sys
from pathlib import Path
copy = sys.argv[1]
names = {path.stem for path in Path(copy).iterdir()}
for name in [name for name in sys.modules if name.split('.')[0] in names]:
    del sys.modules[name]
sys.path.insert(0, copy)
os.chdir(copy)
import main
assert main.__file__.startswith(copy)
from tests.blank import plots
plots.install()
"""


def copied(folder):
    """Copies the project's files in the working tree, compiled ones too, but no data, to the new folder; returns it."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.suffix in ('.py', '.sh', '.md', '.txt', '.toml'):
            shutil.copy2(path, folder)
        elif not path.is_symlink() and (any(path.glob('*.py')) or path.name in ('configs', 'docs', 'run_scripts')):
            images = shutil.ignore_patterns('*.jpg', '*.JPG', '*.png')         # Datasets and datasets may be one folder
            shutil.copytree(path, folder / path.name, ignore=images)
    return folder


def applied(diff, folder):
    """Applies a diff to the files in the folder; returns the folder."""
    subprocess.run(['git', 'apply', '-'], input=diff, text=True, cwd=folder, check=True)
    return folder


def after_training(*arguments):
    """Runs Evaluate_Network.py's main with arguments; returns the exit code."""
    return Evaluate_Network.main([str(argument) for argument in arguments])


def export_here(patch):
    """From now on, torch.hub's network exports a run folder in this process instead of starting another one."""
    def run(command, **_):
        assert command[:2] == [sys.executable, str(ROOT / 'Evaluate_Network.py')]
        return SimpleNamespace(returncode=after_training(*command[2:]),
                               stderr='Note: a\nEvaluate_Network.py: error: what it says\n')
    patch.setattr(subprocess, 'run', run)


@contextlib.contextmanager
def full_after(n_bytes):
    """In the block, no file can become larger, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fill(storage, embed):
    """What a memory bank does before an epoch. embed: () -> embeddings of all training images."""
    storage.embed = embed
    storage.start_epoch(1)


def csv_rows(file):
    with open(file, newline='', encoding='utf-8') as opened:
        return list(csv.DictReader(opened))


def metric_names():
    """Every metric of the registry, as --evaluation_metrics takes it, with each of several arguments if it has one."""
    arguments = {None: [''], int: ['@1', '@10'], float: ['@0.1', '@0.01']}
    return [f'{name}{argument}' for name, metric in evaluation.METRICS.items()
            for argument in arguments.get(metric.argument) or [f'@{word}' for word in metric.argument]]


def rows_of(folder, without=('seconds',)):
    return [{name: value for name, value in row.items() if name not in without} for row in csv_rows(folder / 'log.csv')]


def folder_of(tmp_path, name='quick_s1'):
    return tmp_path / 'runs' / 'folder' / name


def content_of(folder):
    """{path: content} of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def recorded_run(planned, n_epochs=1, eval_every=1, finished=False):
    """Writes the run folder of a Planned run, with an R@1 of a tenth of the epoch where it is evaluated."""
    folder = planned.parent / planned.savename
    folder.mkdir(parents=True)
    config = {'flags': {'dataset': 'folder', 'group': 'r', 'seed': 0} | planned.settings, 'split_hash': 'x',
              'run_id': 'y', 'resumed': []}
    run_folder.write_yaml(folder / 'config.yaml', config)
    (folder / 'splits.yaml').write_text('hash: x')
    write_csv(folder / 'log.csv', [{'epoch': epoch, 'test_e_recall@1': '' if epoch % eval_every else epoch / 10}
                                   for epoch in range(n_epochs + 1)])
    (folder / 'summary.json').write_text(json.dumps({'finished': finished, 'last_epoch': {'epoch': n_epochs}}))


def wait_for(condition, seconds=120):
    """Waits until condition() holds; fails after that many seconds."""
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError('it did not happen')


def assert_same_end(one, other):
    """Equal weights and optimizer, bit by bit, equal rows but for times."""
    states = [checkpoint.load(folder / 'checkpoint_last.pt') for folder in (one, other)]

    def compare(a, b, where):
        assert type(a) is type(b), where
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b), where
        elif isinstance(a, dict):
            assert a.keys() == b.keys(), where
            for name in a.keys() - {'settings', 'run_id', 'seconds'}:
                compare(a[name], b[name], f'{where}/{name}')
        elif isinstance(a, list | tuple):
            assert len(a) == len(b), where
            for i, pair in enumerate(zip(a, b, strict=True)):
                compare(*pair, f'{where}/{i}')
        else:
            assert a == b, where

    compare(*states, '')
    assert rows_of(one) == rows_of(other)


def assert_resumes_exactly(run, tmp_path, arguments, *changed):
    """The run `quick`, and a copy of its folder after the first epoch that is continued, end with the same bits."""
    record, half = main.record, tmp_path / 'half'

    def copying(records, built, state, epoch, *more):
        record(records, built, state, epoch, *more)
        if epoch == 1:
            shutil.copytree(state.folder, half)

    with mock.patch.object(main, 'record', copying):
        assert run(*arguments) == 0
    assert len(rows_of(half)) == 2 and run('--resume', half, *changed) == 0
    assert_same_end(folder_of(tmp_path), half)


class Holder:
    """Parts of a run, for their State: state_of(holder) when they are built, then saved(...) and restored(...)."""

    def __init__(self, **parts):
        vars(self).update(parts)


def state_of(*stored, **parts):
    """The State of these parts as they are now; `stored` are those whose state dicts are stored elsewhere."""
    return State(Holder(**parts), stored, torch.device('cpu'))


def hand_over(state, other, folder):
    """Saves a State into a file as a checkpoint does, and restores it into another."""
    torch.save(state.save(), folder / 'state.pt')
    return other.restore(torch.load(folder / 'state.pt', map_location='cpu', weights_only=True))


def kept_by(folder, place):
    """What the last checkpoint of a run keeps of the attributes of a part: {name: plain value or tensor}."""
    found = checkpoint.load(folder / 'checkpoint_last.pt')['state'].get('attributes', {}).get(place, [None, {}])[1]
    return {name: value[3][0] if type(value) is tuple and value[0] == 'tensor' else value
            for name, (value, _, _) in found.items()}


# Forgets and refuses all modules that are neither torch's nor the standard library's. Each file stands alone in a
# folder of its own, and runs its examples there. argv: a JSON list of folders.
ALONE = """
import doctest, importlib, json, os, sys
import torch
OWN = {'torch', 'filelock', 'typing_extensions', 'sympy', 'mpmath', 'networkx', 'jinja2', 'markupsafe', 'fsspec'}
OWN |= {'__main__', *sys.stdlib_module_names}
torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).step()                  # loads what torch loads late
for name in list(sys.modules):
    if name.partition('.')[0] not in OWN:
        del sys.modules[name]

class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition('.')[0]
        if top not in OWN and f'{top}.py' not in os.listdir('.'):
            raise ModuleNotFoundError(f'only torch is here, not {top}')

sys.path[:0] = ['']
sys.meta_path.insert(0, Refuse)
for folder in json.loads(sys.argv[1]):
    os.chdir(folder)
    name, = (file.removesuffix('.py') for file in os.listdir('.') if file.endswith('.py'))
    found = doctest.testmod(importlib.import_module(name))
    exec(open('snippet.txt').read(), {'embeddings': torch.randn(8, 4), 'labels': torch.arange(8) // 2})
    print(name, found.attempted, found.failed, flush=True)
    del sys.modules[name]
"""


def examples_alone(files, tmp_path, snippets=None):
    """
    Copies each file into an empty folder, with torch alone to import; {name: (examples run, examples failed)}.
    snippets: {file: lines that run there too, with embeddings [8, 4] and labels [8]}.
    """
    folders = []
    for file in files:
        folders.append(str(tmp_path / file.stem))
        (tmp_path / file.stem).mkdir()
        (tmp_path / file.stem / file.name).write_text(file.read_text())
        (tmp_path / file.stem / 'snippet.txt').write_text(snippets[file] if snippets else '')
    code, out, errors = executed(tmp_path, ALONE, json.dumps(folders))
    assert code == 0, errors
    lines = [line.split() for line in out.splitlines() if len(line.split()) == 3]
    assert len(lines) == len(files), out + errors
    return {name: (int(attempted), int(failed)) for name, attempted, failed in lines}


def flags_alone(opt):
    """The flags {name: value} of a namespace whose values have a text that a program without our files can read."""
    plain = (bool, int, float, str, list, type(None))
    return {name: value for name, value in vars(opt).items() if isinstance(value, plain)}


def published(registry):
    """The parts of this project, whose files begin with its licence: {name: module}; not those that somebody adds."""
    return {name: module for name, module in registry.items()
            if module and Path(module.__file__).read_text().startswith('# SPDX-License-Identifier: MIT\n')}


def images_of(sizes, superclasses=None):
    """What datasampler.select takes, for classes with so many images each; by default of 3 super-classes in turn."""
    image_list = [(f'{label}_{i}.png', label) for label, size in enumerate(sizes) for i in range(size)]
    image_dict = {label: [] for label in range(len(sizes))}
    for index, (path, label) in enumerate(image_list):
        image_dict[label].append((path, index))
    superclasses = superclasses or [f'super_{label % 3}' for label in range(len(sizes))]
    return argparse.Namespace(image_dict=image_dict, image_list=image_list, superclasses=superclasses)


def sampler_of(opt, images, embeddings=None):
    """The sampler opt.data_sampler over images_of; if it stores embeddings, by default random ones around classes."""
    sampler = datasampler.select(opt, images)
    if embeddings is None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.tensor([label for _, label in images.image_list])
        centres = torch.randn(len(images.image_dict), opt.embed_dim, generator=generator)
        noise = torch.randn(len(labels), opt.embed_dim, generator=generator)
        embeddings = torch.nn.functional.normalize(centres[labels] + .5 * noise, dim=1)
    if hasattr(sampler, 'storage'):
        fill(sampler.storage, lambda: embeddings)
    return sampler


def table_rows(text):
    """The rows of a Markdown table in a text below its head, as lists of cells."""
    lines = [line for line in text.splitlines() if line.startswith('|')]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


def printed_metrics(out, split='test'):
    """{'<split>_<metric>': text} of the table that main.py --evaluate prints, one metric per line."""
    lines = out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith('metric '))
    start = [match.start() for match in re.finditer(r'\S+', lines[head])]
    end = [*start[1:], None]
    column = lines[head].split().index(split)
    cells = {line.split()[0]: line[start[column]:end[column]].strip() for line in lines[head + 1:] if line}
    return {f'{split}_{name}': text for name, text in cells.items() if text}


def assert_texts_are_inside(figure, draw=None):
    """
    Every text that a figure of matplotlib draws lies inside it, up to a pixel.

    draw: a function that draws the figure in its own pixels; by default, the figure is drawn for this check alone.
    """
    drawn, draw_text = [], Text.draw

    def measure(text, renderer):
        if text.get_visible() and text.get_text().strip():
            drawn.append((text.get_text(), text.get_window_extent(renderer)))
        if draw:
            draw_text(text, renderer)

    with mock.patch.object(Text, 'draw', measure):                # a tick outside the axes has a text that is not drawn
        (draw or FigureCanvasAgg(figure).draw)()
    width, height = figure.bbox.size
    outside = {text: box.extents.round().tolist() for text, box in drawn
               if min(box.x0, box.y0) < -1 or box.x1 > width + 1 or box.y1 > height + 1}
    assert drawn and not outside, f'outside a figure of {width:g} x {height:g} pixels: {outside}'


def random_network(opt, arch, **flags):
    return architectures.select(opt(arch=arch, not_pretrained=True, **flags))


def with_blocks(patch, numbers):
    """Makes torchvision build ResNets with numbers[i] blocks in stage i."""
    patch.setattr(resnet, '_resnet', lambda block, layers, *more, make=resnet._resnet, **flags: make(
        block, numbers, *more, **flags))
