"""Images of a few classes, and runs as forks of a process that has imported the packages of a run. POSIX only."""
import contextlib
import importlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from utilities import stopping

ROOT = Path(__file__).resolve().parents[1]
# packages that most runs import, and those that a run imports only when it uses them
PACKAGES = ('main', 'torchvision.models', 'torchvision.transforms.v2', 'torch._dynamo', 'faiss', 'threadpoolctl',
            'matplotlib.figure', 'matplotlib.backends.backend_agg', 'torch.utils.tensorboard')


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


def preload():
    """Imports what a run imports, so that its forks need not; a process of more than one thread cannot be forked."""
    torch.set_num_threads(1)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Child:
    """A process that runs a script; its output comes through a pipe."""
    pid: int
    pipe: int
    text: str = ''
    ended: int | None = None

    def code(self, limit):
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

    def __del__(self):
        os.close(self.pipe)


def start(arguments, script='main.py'):
    """Runs a script with these arguments in a process forked from this one, after preload(); returns the Child."""
    def work():
        sys.argv = [str(ROOT / script), *map(str, arguments)]
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
