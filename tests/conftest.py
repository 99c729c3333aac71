"""What several tests need: small image folders, flags of quick runs, and the development data where they are."""
import argparse
import copy
import functools
import gc
import io
import os
import pickle
import signal
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from PIL import EpsImagePlugin, Image

import main
import parameters
from architectures import ARCHITECTURES
from batch_mining import BATCHMINERS
from benchmarks.runs import draw_classes
from criteria import CRITERIA
from datasampler import SAMPLERS
from datasets import DATASETS, features
from evaluation import PICTURES, curves
from launching import process
from tests import forks, helpers
from tests.blank import plots
from tests.helpers import GPU
from utilities import plotting
from utilities.device import TF32, set_tf32
from utilities.processes import n_cores

os.environ['WANDB_MODE'] = 'offline'
os.environ |= {'KMP_DUPLICATE_LIB_OK': 'TRUE', 'KMP_INIT_AT_FORK': 'FALSE'}      # what the import of sklearn would set
if helpers.fork_server:
    process.new_process = forks.new_process
signal.signal(signal.SIGINT, signal.default_int_handler)      # in a script's background, processes start without it
SHARED = Path(__file__).parents[2] / 'shared'
plots.install()
hypothesis.settings.register_profile('same', derandomize=True, deadline=None)     # the same examples in every run
hypothesis.settings.load_profile('same')
# seconds, 5 by default: until a loader looks for killed data workers, and ends those that do not answer
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5
torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.5,)


gc.disable()                                                    # until all tests are imported, there is no garbage


def pytest_collection_finish():
    """
    The garbage collector would look at the packages again and again, which takes a twentieth of the time of the tests.
    Now it skips what is there, and comes later.
    """
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """How many processes -n auto means: one more than there are cores, since some tests wait for other processes."""
    return n_cores() + 1


REASONS = {'cuda': 'needs an NVIDIA GPU: make test-gpu', 'sim': 'needs a simulated accelerator: make test-device'}

# The files that take longest. They begin first, so that at the end no process is left alone with one of them.
LONGEST = ('test_training_step.py', 'test_reliability.py', 'test_processes.py', 'test_search.py', 'test_hubconf.py',
           'test_export.py', 'test_resume.py', 'test_main.py', 'test_edits.py', 'test_folds.py', 'test_rectangular.py',
           'test_features.py', 'test_optimize.py', 'test_ensembles.py', 'test_backends.py', 'test_docs.py',
           'test_embedding.py', 'test_auto_resume.py', 'test_extending.py', 'test_extending_page.py')


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers('gpu'):
            if GPU not in (mark.args or REASONS):
                item.add_marker(pytest.mark.skip(reason=REASONS[(*mark.args, 'cuda')[0]]))
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch):
    """What --wandb_key of a run in this process sets in os.environ is undone, and the user's own key is not used."""
    monkeypatch.setenv('WANDB_API_KEY', 'none')
    monkeypatch.delenv('WANDB_API_KEY')


@pytest.fixture(autouse=GPU == 'sim')
def loaded_in_place(monkeypatch):
    """On the simulated device, Module.to swaps tensors so that it keeps Parameters; loading copies, as for CUDA."""
    load = torch.nn.Module.load_state_dict

    def in_place(*arguments, **named):
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            return load(*arguments, **named)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)
    monkeypatch.setattr(torch.nn.Module, 'load_state_dict', in_place)


@pytest.fixture(autouse=True)
def arithmetic():
    """What a run in this process sets of torch's arithmetic is undone; on a GPU, operations would be refused."""
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    set_tf32(*TF32)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Runs in this process keep the features of frozen backbones in a folder of their test's own."""
    monkeypatch.setattr(features, 'cache_folder', functools.cache(lambda: tmp_path_factory.mktemp('features')))


@pytest.fixture
def all_plots(monkeypatch):
    """Runs in this process plot what main.py plots."""
    monkeypatch.setattr(curves, 'plot', plots.PLOT)
    monkeypatch.setitem(PICTURES, 'retrieval', plots.RETRIEVAL)


@pytest.fixture(autouse=True)
def inspected(monkeypatch):
    """The figures that this process writes in any test; every text of each must lie inside it."""
    figures, write = [], plotting.write

    def inspect(figure, file):
        if file.suffix == '.png':                                # which is drawn in the figure's own pixels, and once
            helpers.assert_texts_are_inside(figure, lambda: write(figure, file))
        else:
            if not figures or figures[-1] is not figure:         # the same figure in a further format is not new
                helpers.assert_texts_are_inside(figure)
            write(figure, file)
        figures.append(figure)

    monkeypatch.setattr(plotting, 'write', inspect)
    return figures


@pytest.fixture
def shared():
    """The folder of development data beside the checkout; tests that need it are skipped where it is not."""
    if not SHARED.exists():
        pytest.skip(f'the development data {SHARED} are not here')
    return SHARED


@pytest.fixture(scope='session')
def patterns(tmp_path_factory):
    """A --source_path for --dataset folder: 12 classes of 6 images."""
    return draw_classes(tmp_path_factory.mktemp('patterns') / 'images', 12, 6).parent


def quick_flags(patterns, folder):
    """The arguments of a run of a second on `patterns`, which writes to folder / 'runs'."""
    return ['--dataset', 'folder', '--source_path', str(patterns), '--arch', 'conv4_normalize', '--not_pretrained',
            '--input_size', '16', '--bs', '12', '--samples_per_class', '2', '--lr', '0.001', '--n_epochs', '2',
            '--iterations_per_epoch', '3', '--embed_dim', '16', '--kernels', '0', '--device', 'cpu',
            '--save_path', str(folder / 'runs'), '--group', 'quick', '--pictures', 'none', '--no_train_metrics']


@pytest.fixture
def quick(patterns, tmp_path):
    return quick_flags(patterns, tmp_path)


BUILD, BUILT = parameters.build.__wrapped__, {}


def parser():
    """What parameters.build() gives in a program with the present registries, to which tests add parts."""
    parts = [*ARCHITECTURES.items(), *BATCHMINERS.items(), *CRITERIA.items(), *SAMPLERS.items(), *DATASETS.items()]
    key = tuple((name, id(part)) for name, part in parts)
    if key not in BUILT:
        BUILT[key] = BUILD(), parts                              # which keeps the parts, and so their ids
    return BUILT[key][0]


parameters.build = parser


@pytest.fixture
def run(monkeypatch):
    """Runs main.py's main with arguments; returns the exit code."""
    monkeypatch.setattr('sys.argv', ['main.py'])
    return lambda *arguments: main.main([str(argument) for argument in arguments])


@functools.cache
def default_flags():
    """The pickled default flags: both to build the parser and to copy them deeply takes longer than a small loss."""
    return pickle.dumps(vars(parameters.build().parse_args([])))


@pytest.fixture
def opt():
    """opt(loss='triplet', ...): the default flags with some changed, and what main.py adds at run time."""
    def make(n_classes=10, **flags):
        known = {'superclasses': [[label // 2] for label in range(n_classes)], 'n_features': 8, 'n_maps': 8,
                 'class_names': [f'class_{label}' for label in range(n_classes)], 'class_counts': [4] * n_classes}
        known |= copy.deepcopy(flags) | {'n_classes': n_classes, 'device': torch.device('cpu')}
        return argparse.Namespace(**pickle.loads(default_flags()) | known)
    return make


@pytest.fixture
def other_program(tmp_path, monkeypatch):
    """An EPS file, eps, which Pillow would read by Ghostscript, and whether that, a stand-in, was started()."""
    (tmp_path / 'bin').mkdir()
    gs, log = tmp_path / 'bin' / 'gs', tmp_path / 'gs_was_started'
    gs.write_text(f'#!/bin/sh\ntouch {log}\nexit 1\n')
    gs.chmod(0o755)
    monkeypatch.setenv('PATH', str(gs.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, 'gs_binary', None)             # which Pillow looks for once
    eps = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n'
    return SimpleNamespace(eps=eps, started=log.exists)


@pytest.fixture
def many_scans():
    """A progressive JPEG file that repeats its last scan 500 times."""
    file = io.BytesIO()
    Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 20).save(file, 'JPEG', progressive=True)
    data = file.getvalue()
    return data[:-2] + 500 * data[data.rindex(b'\xff\xda'):-2] + data[-2:]


@pytest.fixture
def bomb():
    """A small PNG file of 64 million pixels."""
    file = io.BytesIO()
    Image.new('1', (8000, 8000)).save(file, 'PNG', compress_level=1)
    return file.getvalue()
