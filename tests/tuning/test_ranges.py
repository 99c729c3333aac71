"""tuning/ranges.py: the grid, and what --tune refuses."""
import itertools

import optuna
import pytest

from tuning import ranges
from utilities.errors import UserError


def test_the_grid_has_all_combinations():
    tuned = dict(ranges.parse(words.split()) for words in
                 ('lr 1e-4 1e-2 log', 'bs 2 3 int', 'optim adam,sgd'))
    points = ranges.grid(tuned, 3)
    expected = itertools.product([1e-4, 1e-3, 1e-2], [2, 3], ['adam', 'sgd'])
    assert len(points) == 12
    for point, (lr, bs, optim) in zip(points, expected, strict=True):
        assert point == {'lr': pytest.approx(lr), 'bs': bs, 'optim': optim}
        assert 1e-4 <= point['lr'] <= 1e-2


def test_whole_numbers_have_a_step():
    tuned = dict([ranges.parse('bs 8 112 int 8'.split())])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = {ranges.suggest(study.ask(), tuned)['bs'] for _ in range(200)}
    assert drawn == {*range(8, 113, 8)}
    assert [point['bs'] for point in ranges.grid(tuned, 5)] == [8, 32, 56, 88, 112]
    assert ranges.range_text(ranges.stored(tuned['bs'])) == '8 112 int 8'
    assert ranges.range_text(ranges.stored(ranges.parse('bs 8 112 int'.split())[1])) == '8 112 int'


def test_arguments_of_a_librarys_loss_are_tuned():
    tuned = dict(ranges.parse(words.split()) for words in
                 ('loss_pml_args.alpha 1 5 int', 'loss_pml_args.swap true,false', 'miner_pml_args.epsilon 0.1 1 log'))
    assert ranges.tuned_settings(ranges.grid(tuned, 2)[1]) == {
        'loss_pml_args': [{'alpha': 1, 'swap': True}], 'miner_pml_args': [{'epsilon': pytest.approx(1)}]}
    with pytest.raises(UserError, match='--tune lr.alpha: --lr takes no YAML mapping; leave .alpha out'):
        ranges.parse('lr.alpha 1 2'.split())
