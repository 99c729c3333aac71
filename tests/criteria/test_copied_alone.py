"""Each loss file copied alone into an empty folder imports, runs its example, and trains, with nothing but torch."""
import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import criteria
from tests.criteria.cases import PUBLISHED

# Runs in one process for all files, each with its own folder as the only one of ours on the path.
SCRIPT = """
import doctest, importlib, json, sys, traceback
from pathlib import Path
import torch

class Fence:
    '''Refuses to import anything but torch, the standard library and the file itself.'''
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in {*sys.stdlib_module_names, 'torch', self.module}:
            raise ImportError(f'{self.module} imports {name}')

fence = Fence()
flags, results = json.loads(Path('flags.json').read_text()), {}

def triplets(batch, labels):
    return [(0, 1, 2), (1, 0, 4), (2, 3, 0), (3, 2, 5), (4, 5, 1), (5, 4, 3)]

def masks(batch, labels):
    same = labels[:, None] == labels
    return same ^ torch.eye(len(labels), dtype=torch.bool), ~same

class Spread(torch.nn.Module):
    '''The mean distance of samples of a class, for a loss around others.'''
    def forward(self, batch, labels, **kwargs):
        return ((labels[:, None] == labels) * (1 - batch @ batch.T)).mean()

def check(module):
    examples = doctest.testmod(module)
    assert examples.attempted and not examples.failed, examples
    opt = type('Flags', (), flags)
    torch.manual_seed(0)
    miner = [masks if module.ALLOWED_MINING_OPS else triplets] if module.REQUIRES_BATCHMINER else []
    others = [lambda name, dim: Spread()] if getattr(module, 'REQUIRES_CRITERIA', False) else []
    criterion = module.Criterion(opt, *miner, *others)
    batch = torch.nn.Parameter(torch.randn(6, 4))
    assert bool(list(criterion.parameters())) == module.REQUIRES_OPTIM
    optimizer, losses = torch.optim.Adam([batch, *criterion.parameters()], lr=0.02), []
    for _ in range(11):
        loss = criterion(batch=torch.nn.functional.normalize(batch, dim=1), labels=torch.tensor([0, 0, 1, 1, 2, 2]),
                         batch_features=batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    assert all(parameter.grad.abs().sum() > 0 for parameter in criterion.parameters())

torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).step()                  # loads what torch loads late
for folder in sorted(Path('copies').iterdir()):
    fence.module, = (path.stem for path in folder.iterdir())
    sys.path.insert(0, str(folder.resolve()))
    try:
        sys.meta_path.insert(0, fence)
        try:
            module = importlib.import_module(fence.module)
        finally:
            sys.meta_path.remove(fence)
        check(module)
        results[folder.name] = ''
    except BaseException:
        results[folder.name] = traceback.format_exc()
    sys.path.pop(0)
    sys.modules.pop(fence.module, None)
Path('results.json').write_text(json.dumps(results))
"""


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    import parameters
    folder = tmp_path_factory.mktemp('alone')
    for name, module in PUBLISHED.items():
        source = Path(module.__file__)
        (folder / 'copies' / name).mkdir(parents=True)
        (folder / 'copies' / name / source.name).write_text(source.read_text())
    defaults = vars(parameters.build().parse_args([]))
    flags = {flag: value for flag, value in defaults.items() if flag.startswith('loss_')}
    known = {'class_sample_rate': 1., 'n_classes': 3, 'superclasses': [[0], [0], [1]], 'n_features': 4, 'embed_dim': 4,
             'lr': .01, 'loss_s2sd_w': 1.,           # with more of it, new targets are distilled faster than learned
             'loss_hier_n_proxies': 64, 'loss_hier_k': 5}                # a step with 512 takes half a second
    (folder / 'flags.json').write_text(json.dumps(flags | known))
    done = subprocess.run([sys.executable, '-I', '-c', SCRIPT], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {'output': done.stdout} | json.loads((folder / 'results.json').read_text())


@pytest.mark.parametrize('name', PUBLISHED)
def test_copied_alone_it_imports_runs_its_example_and_trains(name, results):
    assert not results[name], results[name] + results['output']


@pytest.mark.parametrize('name', ['weighted_sum', 'cross_batch_memory', 'direction_regularisation', 'distillation'])
def test_the_examples_of_what_goes_around_a_loss(name):
    examples = doctest.testmod(getattr(criteria, name))
    assert examples.attempted and not examples.failed


@pytest.mark.parametrize('name', criteria.CRITERIA)
def test_its_name_is_its_files_and_not_one_of_the_standard_library(name):
    assert Path(criteria.CRITERIA[name].__file__).stem == name not in sys.stdlib_module_names
