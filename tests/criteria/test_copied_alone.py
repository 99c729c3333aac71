"""Each loss file copied alone, with nothing but torch, runs its example and trains by the snippet of its page."""
import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import criteria
from docs import method_pages
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
snippets, results = json.loads(Path('snippets.json').read_text()), {}

class Points(torch.nn.Module):
    '''A network whose embeddings are its parameters.'''
    def __init__(self):
        super().__init__()
        self.batch = torch.nn.Parameter(torch.randn(6, 4))
    def forward(self, images):
        embeddings = torch.nn.functional.normalize(self.batch, dim=1)
        return (embeddings, self.batch) if images else embeddings

def check(module, snippet):
    examples = doctest.testmod(module)
    assert examples.attempted and not examples.failed, examples
    torch.manual_seed(0)
    losses, names = [], {'network': Points()}
    def batches():
        for _ in range(11):
            yield 'features' in snippet, torch.tensor([0, 0, 1, 1, 2, 2])
            losses.append(names['loss'].item())
    names['batches'] = batches()
    exec(snippet, names)
    parameters = list(names['criterion'].parameters())
    assert bool(parameters) == module.REQUIRES_OPTIM
    assert losses[-1] < losses[0], losses
    assert all(parameter.grad.abs().sum() > 0 for parameter in parameters)

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
        check(module, snippets[folder.name])
        results[folder.name] = ''
    except BaseException:
        results[folder.name] = traceback.format_exc()
    sys.path.pop(0)
    sys.modules.pop(fence.module, None)
Path('results.json').write_text(json.dumps(results))
"""


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp('alone')
    for name, module in PUBLISHED.items():
        source = Path(module.__file__)
        (folder / 'copies' / name).mkdir(parents=True)
        (folder / 'copies' / name / source.name).write_text(source.read_text())
    known = {'n_classes': 3, 'n_features': 4, 'embed_dim': 4, 'lr': .02,
             'loss_s2sd_w': 1.,                      # with more of it, new targets are distilled faster than learned
             'loss_hier_n_proxies': 64, 'loss_hier_k': 5}                # a step with 512 takes half a second
    rates = {flag: 1. if flag.endswith('lrmulti') else .02 for flag in method_pages.actions()
             if flag.startswith('loss_') and flag.endswith(('lrmulti', '_lr'))}
    (folder / 'snippets.json').write_text(json.dumps({
        name: method_pages.snippet('losses', name, **known, **rates) for name in PUBLISHED}))
    done = subprocess.run([sys.executable, '-I', '-c', SCRIPT], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {'output': done.stdout} | json.loads((folder / 'results.json').read_text())


@pytest.mark.parametrize('name', PUBLISHED)
def test_copied_alone_it_imports_runs_its_example_and_trains(name, results):
    assert not results[name], results[name] + results['output']


@pytest.mark.parametrize('name', ['weighted_sum', 'cross_batch_memory', 'direction_regularisation', 'distillation',
                                  'language_guidance'])
def test_the_examples_of_what_goes_around_a_loss(name):
    examples = doctest.testmod(getattr(criteria, name))
    assert examples.attempted and not examples.failed


@pytest.mark.parametrize('name', criteria.CRITERIA)
def test_its_name_is_its_files_and_not_one_of_the_standard_library(name):
    assert Path(criteria.CRITERIA[name].__file__).stem == name not in sys.stdlib_module_names
