"""Runs for benchmarks.faults: started in processes that can be disturbed, and compared with undisturbed ones."""
import contextlib
import functools
import importlib
import itertools
import os
import random
import runpy
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from launching.fork_server import PACKAGES
from records import checkpoint, lock, reading
from utilities import stopping
from utilities.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120                                    # seconds after which a process counts as hanging
FLAGS = ('--dataset folder --arch conv4_normalize --not_pretrained --input_size 16 --bs 12 --samples_per_class 2 '
         '--lr 0.001 --n_epochs 3 --iterations_per_epoch 3 --embed_dim 16 --kernels 0 --device cpu --pictures none '
         '--no_train_metrics --evaluation_metrics e_recall@1 rho_spectrum@0')
CONFIGURATIONS = {                             # all with a state beside the network's
    'plain': '',
    'workers': '--kernels 2 --optim sgd --scheduler cosine --warmup 1',
    'sum': '--loss margin+proxyanchor --loss_weights 1 0.5 --batch_mining distance+none --eval_every 2',
    'memory bank': '--loss contrastive --batch_mining all --xbm_size 50 --xbm_start 2',
    'parametric': '--batch_mining parametric --miner_parametric_adapt --use_tv_split --tv_split_by_samples',
    'coreset': '--data_sampler greedy_coreset --data_batchmatch_bigbs 30 --optim rmsprop',
    'momentum': '--data_sampler disthist_batchmatch --data_batchmatch_bigbs 30 --data_mb_mom 0.9 --tau 2',
    'direction': '--loss triplet --batch_mining random --dr_weight 0.1 --optim adamw',
}


def preload():
    """Imports what a run imports, so that its forks need not; a process of more than one thread cannot be forked."""
    torch.set_num_threads(1)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Child:
    """A process that runs main.py; its output comes through a pipe."""
    pid: int
    pipe: int
    text: str = ''
    ended: int | None = None

    def code(self, limit=LIMIT):
        """Returns the exit code (negative: the signal) once it has ended; None if it has not after `limit` seconds."""
        deadline = time.monotonic() + limit
        while self.ended is None and time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.read()
            if pid:
                self.ended = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(.005)
        return self.ended

    def read(self):
        try:
            while part := os.read(self.pipe, 1 << 16):
                self.text += part.decode(errors='replace')
        except BlockingIOError:
            return

    def send(self, number):
        """Sends a signal to the main process alone, unless it has ended."""
        if self.ended is None:
            os.kill(self.pid, number)

    def __del__(self):
        os.close(self.pipe)


def start(arguments, fault=None):
    """
    Runs main.py with these arguments in a process forked from this one, which has imported the packages of runs.

    fault: a function that the process calls first.
    """
    def work():
        if fault:
            fault()
        sys.argv = [str(ROOT / 'main.py'), *map(str, arguments)]
        runpy.run_path(sys.argv[0], run_name='__main__')

    return fork(work)


def fork(work):
    """Calls work() in a process forked from this one; returns the Child."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})           # until the child takes them
    pid = os.fork()
    if not pid:
        code = 1
        try:
            tqdm.set_lock(threading.RLock())      # the parent's stays locked if a fork is killed
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            stopping.install()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
            work()
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    os.close(writing)
    return Child(pid, reading)


def outcome(child, codes, limit=LIMIT):
    """Returns None if the child ends with one of `codes` and without a traceback, else a text on what happened."""
    code = child.code(limit)
    if code is None:
        child.send(signal.SIGKILL)
        child.code()
        return f'hangs: {child.text[-300:]}'
    if 'Traceback' in child.text or 'Exception ignored' in child.text:
        return f'a traceback: {" / ".join(line[:150] for line in child.text.strip().splitlines()[-4:])}'
    if code == 2 and len(errors := child.text[child.text.rfind('.py: error'):].strip().split('\n')) > 2:
        return f'{len(errors)} lines of error: {child.text[-300:]}'
    return None if code in codes else f'exit code {code}: {child.text[-300:]}'


def refusal_or_difference(child, whole, folder, refusal='main.py: error'):
    """Returns None if the child refuses in a sentence, or ends like the undisturbed run `whole`, else a text."""
    if problem := outcome(child, {0, 2}):
        return problem
    return None if refusal in child.text else difference(whole, folder)


def refusal_or_other_value(load, expected):
    """Returns None if load() raises UserError or returns what is expected, else a text."""
    try:
        return None if load() == expected else 'another value'
    except UserError:
        return None
    except Exception as error:  # this is the fault that is looked for
        return repr(error)


def difference(one, other):
    """Returns the first difference between the results of two runs, except settings and times; or None."""
    states = [checkpoint.load(folder / checkpoint.LAST) for folder in (one, other)]
    if where := unequal(*states):
        return f'{other}: another checkpoint: {where}'
    rows = [[row | {'seconds': None} for row in reading.read_texts(folder / name)]
            for folder in (one, other) for name in ('log.csv', 'spectrum.csv')]
    if rows[:2] != rows[2:]:
        return f'{other}: other records'
    left = [file for file in other.rglob('.*') if file.name != lock.NAME]
    return f'{other}: left over: {left}' if left else None


def unequal(a, b, where=''):
    """Returns the place of the first difference of two nested values, or None."""
    if isinstance(a, torch.Tensor):
        return None if torch.equal(a, b) else where
    if isinstance(a, dict):
        names = (a | b).keys() - {'settings', 'run_id', 'seconds'}
        parts = [(a.get(name), b.get(name), f'{where}/{name}') for name in names]
    elif isinstance(a, list | tuple) and len(a) == len(b):
        parts = [(*pair, f'{where}/{i}') for i, pair in enumerate(zip(a, b, strict=True))]
    else:
        return None if a == b or a != a and b != b else where
    return next(filter(None, itertools.starmap(unequal, parts)), None)


@dataclass
class Lab:
    """folder: for all files. random: the faults' generator. whole: {configuration: folder of an undisturbed run}."""
    folder: Path
    random: random.Random
    whole: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)
    count: int = 0

    def arguments(self, name, group):
        return [*shlex.split(FLAGS), *shlex.split(CONFIGURATIONS[name]), '--source_path', self.folder / 'data',
                '--save_path', self.folder / 'runs', '--group', group]

    def group(self):
        self.count += 1
        return f'g{self.count}'

    def place(self, group):
        return self.folder / 'runs' / 'folder' / f'{group}_s1'

    def undisturbed(self, name):
        """Returns the folder of a whole run of a configuration."""
        if name not in self.whole:
            began = time.monotonic()
            self.whole[name] = self.done(self.arguments(name, group := self.group()), self.place(group))
            self.seconds[name] = time.monotonic() - began
        return self.whole[name]

    @functools.cached_property
    def half(self):
        """The folder of a run of 'plain' that has trained one of its three epochs."""
        group = self.group()
        return self.done([*self.arguments('plain', group), '--n_epochs', 1], self.place(group))

    def done(self, arguments, folder=None):
        """Runs main.py without a fault; returns `folder`."""
        if problem := outcome(start(arguments), {0}):
            raise SystemExit(f'without a fault: {shlex.join(map(str, arguments))}: {problem}')
        return folder

    def wait(self, name, longest=1.0):
        """Waits for a random part of the time of an undisturbed run."""
        time.sleep(self.random.uniform(0, longest * self.seconds[name]))

    def copied(self, folder):
        copy = self.place(self.group())
        shutil.copytree(folder, copy)
        return copy

    def start(self, name, group):
        """Continues a disturbed run, or starts it if there is none yet."""
        folder = self.place(group)
        return start(['--resume', folder] if folder.exists() else self.arguments(name, group))

    def end(self, name, group):
        """Continues a disturbed run; returns None if it ends like the undisturbed one, else a text."""
        folder = self.place(group)
        problem = outcome(self.start(name, group), {0}) or difference(self.undisturbed(name), folder)
        if not problem:
            shutil.rmtree(folder)
        return problem


def draw(folder, n_classes=12, n_images=6, size=24, noise=60, n_superclasses=0):
    """Draws classes of noisy copies of a pattern, in folders of super-classes if there are any."""
    generator = np.random.default_rng(0)
    for c in range(n_classes):
        pattern = generator.uniform(0, 255, (size, size, 3))
        place = folder / 'images' / (f'super_{c % n_superclasses}' if n_superclasses else '') / f'class_{c:02d}'
        place.mkdir(parents=True)
        for i in range(n_images):
            pixels = (pattern + generator.normal(0, noise, pattern.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f'{i}.png')
