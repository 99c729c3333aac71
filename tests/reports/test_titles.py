"""The names that tables and figures print."""
import doctest

import pytest

import datasets
import evaluation
from evaluation import titles
from records.columns import LEVELS, SPLITS, Column
from reports import differences, naming, tables
from tests.helpers import metric_names
from utilities import text_tables


def test_the_examples_in_the_docstrings():
    for module in (titles, naming, tables, differences, text_tables):
        examples = doctest.testmod(module)
        assert examples.attempted and not examples.failed


@pytest.mark.parametrize('metric', metric_names())
def test_columns_have_the_facts_of_their_metric(metric):
    name = metric.partition('@')[0]
    columns = [Column(split, metric, level).name for split in SPLITS for level in LEVELS]
    assert {titles.is_fraction(column) for column in columns} == {evaluation.METRICS[name].is_fraction}
    assert {titles.can_select(column) for column in columns} == {evaluation.METRICS[name].selects}
    lowest_is_best = evaluation.METRICS[name].selects and not evaluation.METRICS[name].higher_is_better
    assert {titles.sign(column) for column in columns} == {-1 if lowest_is_best else 1}
    assert len({titles.metric(column) for column in columns}) == len(columns)


def test_the_tables_name_data_sets_and_metrics_that_exist():
    assert set(naming.DATASETS) <= set(datasets.DATASETS)
    stems = {name.partition('@')[0] for name in titles.METRICS}
    assert {stem for stem in stems if not stem.startswith('os_')} <= set(evaluation.METRICS) | {'recall'}
