"""Each loss file copied alone, with nothing but torch, runs its example and trains."""
import doctest
import re
import sys
from pathlib import Path

import pytest

import criteria
from tests.criteria.cases import PUBLISHED
from tests.helpers import examples_alone, flags_alone

# What trains a loss in a process where only torch can be imported
PROGRAM = """
import inspect
import types

import torch

import {stem}

torch.manual_seed(0)


class Points(torch.nn.Module):
    # A network whose embeddings are its parameters.
    def __init__(self):
        super().__init__()
        self.batch = torch.nn.Parameter(torch.randn(6, 4))
    def forward(self):
        embeddings = torch.nn.functional.normalize(self.batch, dim=1)
        return embeddings, self.batch

class Inner(torch.nn.Module):
    # A loss inside a loss.
    def forward(self, batch, labels, **kwargs):
        return ((labels[:, None] == labels) * (1 - batch @ batch.T)).mean()

def miner(batch, labels):
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool)
    return (positives, ~same) if {takes_masks} else (positives[:, :, None] & ~same[:, None]).nonzero()

criterion = {stem}.Criterion(types.SimpleNamespace(**{flags}), *{further})
groups = getattr(criterion, 'optim_dict_list', None)
if groups is None and hasattr(criterion, 'lr'):
    groups = [{{'params': criterion.parameters(), 'lr': criterion.lr}}]
network, losses = Points(), []
optimizer = torch.optim.Adam([{{'params': network.parameters()}}, *(groups or [])], lr={lr})
for _ in range(11):
    embeddings, features = network()
    takes_features = 'batch_features' in inspect.signature(criterion.forward).parameters
    loss = criterion(batch=embeddings, labels=torch.tensor([0, 0, 1, 1, 2, 2]),
                     **({{'batch_features': features}} if takes_features else {{}}))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
parameters = list(criterion.parameters())
assert all(parameter.grad.abs().sum() > 0 for parameter in parameters)
assert bool(parameters) == {has_parameters}
"""


def test_copied_alone_each_imports_runs_its_example_and_trains(opt, tmp_path):
    known = {'n_classes': 3, 'n_features': 4, 'embed_dim': 4, 'lr': .02,
             'loss_s2sd_w': 1.,                      # with more of it, new targets are distilled faster than learned
             'loss_hier_n_proxies': 64, 'loss_hier_k': 5}                # a step with 512 takes half a second
    rates = {flag: 1. if flag.endswith('lrmulti') else .02 for flag in vars(opt())
             if re.fullmatch(r'loss_\w+(lrmulti|_lr)', flag)}
    programs = {}
    for module in PUBLISHED.values():
        further = ['miner'] if module.REQUIRES_BATCHMINER else []
        if getattr(module, 'REQUIRES_CRITERIA', False):
            further.append('lambda name, dim: Inner()')
        file = Path(module.__file__)
        programs[file] = PROGRAM.format(
            stem=file.stem, flags=flags_alone(opt(**known, **rates)), further=f'[{", ".join(further)}]', lr=known['lr'],
            takes_masks=module.REQUIRES_BATCHMINER and bool(module.ALLOWED_MINING_OPS),
            has_parameters=module.REQUIRES_OPTIM)
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
