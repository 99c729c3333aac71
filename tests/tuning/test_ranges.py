"""tuning/ranges.py: the grid, and what --tune refuses."""
import itertools

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


def test_a_choice_that_main_refuses_is_refused():
    with pytest.raises(UserError, match='invalid choice'):
        ranges.parse(['scheduler', 'step,cosinus'])
