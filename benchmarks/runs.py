"""Images of a few classes, and runs as forks of a process that has imported the packages of a run. POSIX only."""
import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
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


def draw_classes(folder, n_classes, n_images, side=24, seed=0):
    """Draws a folder per class, with noisy copies of a pattern of its own. Returns the folder."""
    random = np.random.default_rng(seed)
    for c in range(n_classes):
        pattern = random.uniform(0, 255, (side, side, 3))
        place = folder / f'class_{c:02d}'
        place.mkdir(parents=True)
        for i in range(n_images):
            pixels = (pattern + random.normal(0, 60, pattern.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f'{i}.png')
    return folder


def preload():
    """Imports what a run imports, so that its forks need not; a process of more than one thread cannot be forked."""
    torch.set_num_threads(1)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def forked(work, limit):
    """
    Calls work() in a process forked from this one, after preload(). Returns its exit code, None if it had not ended
    after `limit` seconds, and what it has printed.
    """
    with tempfile.TemporaryFile() as output:
        process = multiprocessing.get_context('fork').Process(target=begin, args=[work, output.fileno()])
        process.start()
        try:
            process.join(limit)
            code = process.exitcode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)                # the group includes its data workers
        output.seek(0)
        return code, output.read().decode(errors='replace')


def begin(work, output):
    """Calls work() in the forked process, with its output in the open file `output`, and in a process group."""
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tqdm.set_lock(threading.RLock())                  # the parent's stays locked if a fork is killed
    stopping.install()
    work()


def main_py(arguments):
    """Executes main.py with these arguments in this process, as a script."""
    sys.argv = [str(ROOT / 'main.py'), *map(str, arguments)]
    runpy.run_path(sys.argv[0], run_name='__main__')
