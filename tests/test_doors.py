"""What the loop offers to parts of one's own: start_epoch(), a sampler's criterion, tables, scalars for the log."""
import csv
import re

import numpy as np
import pytest
import torch

import batch_mining
import criteria
import datasampler
from architectures import depth
from records import writing
from tests.helpers import folder_of

FEW = ['--iterations_per_epoch', '2', '--evaluation_metrics', 'e_recall@1', '--loss', 'triplet', '--batch_mining',
       'semihard']
TRIPLET, SEMIHARD, SAMPLER = (criteria.CRITERIA['triplet'].Criterion, batch_mining.BATCHMINERS['semihard'].BatchMiner,
                              datasampler.SAMPLERS['class_random'].Sampler)


def test_parts_hear_of_each_epoch_also_inside_sums_and_wrappers(quick, run, monkeypatch):
    heard = []
    for part in (TRIPLET, SEMIHARD, SAMPLER):
        monkeypatch.setattr(part, 'start_epoch', lambda self, epoch, name=part.__name__: heard.append((name, epoch)),
                            raising=False)
    flags = ['--loss', 'triplet+softmax', '--batch_mining', 'semihard+none', '--dr_weight', '0.1']
    assert run(*quick, *FEW, *flags) == 0
    assert heard == [(name, epoch) for epoch in (1, 2) for name in ('Criterion', 'BatchMiner', 'Sampler')]


def test_a_sampler_may_ask_for_the_criterion(quick, run, monkeypatch):
    module, given = datasampler.SAMPLERS['class_random'], []

    class Asking(SAMPLER):
        def __init__(self, opt, image_dict, image_list, criterion):
            super().__init__(opt, image_dict, image_list)
            given.append(criterion)

    monkeypatch.setattr(module, 'REQUIRES_CRITERION', True, raising=False)
    monkeypatch.setattr(module, 'Sampler', Asking)
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    assert [type(criterion) for criterion in given] == [TRIPLET]


def test_tables_hold_the_rows_of_each_epoch_once(quick, run, tmp_path, monkeypatch):
    log = writing.Records.log

    def with_table(records, epoch, *more):
        records.table('own/recall', [{'class': name, 'recall': epoch / 4} for name in 'ab'], epoch)
        return log(records, epoch, *more)

    monkeypatch.setattr(writing.Records, 'log', with_table)
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    with open(folder / 'tables' / 'own_recall.csv', 'a') as file:
        file.write('2,c,0\n')                                          # as if the run had been killed in epoch 2
    assert run('--resume', folder, '--n_epochs', '2') == 0
    with open(folder / 'tables' / 'own_recall.csv', newline='') as file:
        rows = [(row['epoch'], row['class'], float(row['recall'])) for row in csv.DictReader(file)]
    assert rows == [(str(epoch), name, epoch / 4) for epoch in (0, 1, 2) for name in 'ab']


@pytest.mark.parametrize('value, what', [(torch.ones(3), r'a value of the shape \[3\]'), ('high', 'str'),
                                         (np.ones((2, 1)), r'a value of the shape \[2, 1\]')])
def test_what_is_no_scalar_in_the_log_is_named(value, what, quick, run, tmp_path, monkeypatch, capsys):
    forward = TRIPLET.forward

    def logging(self, batch, labels, **kwargs):
        loss = forward(self, batch, labels, **kwargs)
        self.log['spread'] = value
        return loss

    monkeypatch.setattr(TRIPLET, 'forward', logging)
    assert run(*quick, *FEW) == 2
    error = capsys.readouterr().err
    assert 'self.log of a loss or miner: spread is' in error and 'Traceback' not in error
    assert re.search(what, error)


class Inside(torch.nn.Module):
    """A network that is one module of another."""

    def __init__(self, network, *more):
        super().__init__()
        self.network = network
        self.more = torch.nn.ModuleList(more)


def test_a_backbone_inside_another_module_has_the_blocks_of_the_inner_one():
    inner = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.Conv2d(3, 3, 3))
                                  for _ in range(4)))
    alone = [[f'network.{name}' for name in names] for names in depth.blocks(inner)]
    for network in (Inside(inner), Inside(inner, torch.nn.Linear(3, 2)), Inside(Inside(inner))):
        found = depth.blocks(network)
        expected = [[f'{"network." * isinstance(network.network, Inside)}{name}' for name in names] for names in alone]
        assert found[:len(expected)] == expected
