"""What several test files call."""
import csv

import torch

from utilities import checkpoint


def rows_of(folder, without=('seconds',)):
    with open(folder / 'log.csv', newline='') as file:
        return [{name: value for name, value in row.items() if name not in without} for row in csv.DictReader(file)]


def folder_of(tmp_path, name='quick_s1'):
    return tmp_path / 'runs' / 'folder' / name


def assert_same_end(one, other):
    """Equal weights and optimizer, bit by bit, equal rows but for times."""
    states = [checkpoint.load(folder / 'checkpoint_last.pt') for folder in (one, other)]

    def compare(a, b, where):
        assert type(a) is type(b), where
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b), where
        elif isinstance(a, dict):
            assert a.keys() == b.keys(), where
            for name in a.keys() - {'settings', 'seconds'}:
                compare(a[name], b[name], f'{where}/{name}')
        elif isinstance(a, list | tuple):
            assert len(a) == len(b), where
            for i, pair in enumerate(zip(a, b, strict=True)):
                compare(*pair, f'{where}/{i}')
        else:
            assert a == b, where

    compare(*states, '')
    assert rows_of(one) == rows_of(other)
