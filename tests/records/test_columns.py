"""The names of columns: every split, level and metric there and back, in log.csv and at the backends."""
import doctest
import itertools

import pytest

import evaluation
from records import columns
from records.columns import LEVELS, LOSS, SPLITS, Column
from tests.helpers import metric_names


def test_the_examples_in_the_docstrings():
    examples = doctest.testmod(columns)
    assert examples.attempted and not examples.failed


@pytest.mark.parametrize('metric', ['c_recall@1', 'c_nmi', *metric_names()])
def test_every_column_there_and_back(metric):
    evaluation.parse(metric)                                       # else the list above is wrong
    for split, level in itertools.product(SPLITS, LEVELS):
        column = Column(split, metric, level)
        assert columns.parse(column.name) == column
        assert columns.has_split(column.name)
        assert columns.at_backend(column.name) == column.name.replace('_', '/', 1)
        for name in (column.name, columns.EMA + column.name):
            assert columns.from_backend(columns.at_backend(name)) == name == columns.asked_for(name)
        assert [column.on(other).name for other in SPLITS] == [Column(other, metric, level).name for other in SPLITS]
        if split == 'test':
            assert columns.asked_for(column.name.removeprefix('test_')) == column.name
        assert columns.parse(columns.SEM + column.name) is columns.parse(columns.EMA + column.name) is None


@pytest.mark.parametrize('name', [LOSS, 'epoch', 'lr', 'seconds', 'trained_status', 'test', 'testing_nmi',
                                  'sem_test_nmi'])
def test_what_is_no_metric_of_a_split(name):
    assert columns.parse(name) is None
