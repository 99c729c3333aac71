"""Each loss file copied alone, with nothing but torch, runs its example and trains by the snippet of its page."""
import doctest
import sys
from pathlib import Path

import pytest

import criteria
from docs import method_pages
from tests.criteria.cases import PUBLISHED
from tests.helpers import examples_alone

# Before and after the snippet of a page, in a process where only torch can be imported.
BEFORE = """
import torch
torch.manual_seed(0)

class Points(torch.nn.Module):
    # A network whose embeddings are its parameters.
    def __init__(self):
        super().__init__()
        self.batch = torch.nn.Parameter(torch.randn(6, 4))
    def forward(self, images):
        embeddings = torch.nn.functional.normalize(self.batch, dim=1)
        return (embeddings, self.batch) if images else embeddings

def steps(gives_features):
    for _ in range(11):
        yield gives_features, torch.tensor([0, 0, 1, 1, 2, 2])
        losses.append(loss.item())

losses, network = [], Points()
"""
AFTER = """
assert losses[-1] < losses[0], losses
parameters = list(criterion.parameters())
assert all(parameter.grad.abs().sum() > 0 for parameter in parameters)
"""


def test_copied_alone_each_imports_runs_its_example_and_trains(tmp_path):
    known = {'n_classes': 3, 'n_features': 4, 'embed_dim': 4, 'lr': .02,
             'loss_s2sd_w': 1.,                      # with more of it, new targets are distilled faster than learned
             'loss_hier_n_proxies': 64, 'loss_hier_k': 5}                # a step with 512 takes half a second
    rates = {flag: 1. if flag.endswith('lrmulti') else .02 for flag in method_pages.actions()
             if flag.startswith('loss_') and flag.endswith(('lrmulti', '_lr'))}
    programs = {}
    for name, module in PUBLISHED.items():
        snippet = method_pages.snippet('losses', name, **known, **rates)
        programs[Path(module.__file__)] = '\n'.join([
            BEFORE, f'batches = steps({"features" in snippet})', snippet, AFTER,
            f'assert bool(parameters) == {module.REQUIRES_OPTIM}'])
    results = examples_alone(list(programs), tmp_path, programs)
    assert all(attempted and not failed for attempted, failed in results.values()), results


@pytest.mark.parametrize('name', ['weighted_sum', 'cross_batch_memory', 'direction_regularisation', 'distillation',
                                  'cascade', 'deep_adversarial', 'matryoshka'])
def test_the_examples_of_what_goes_around_a_loss(name):
    examples = doctest.testmod(getattr(criteria, name))
    assert examples.attempted and not examples.failed


@pytest.mark.parametrize('name', criteria.CRITERIA)
def test_its_name_is_its_files_and_not_one_of_the_standard_library(name):
    assert Path(criteria.CRITERIA[name].__file__).stem == name not in sys.stdlib_module_names
