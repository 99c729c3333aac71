"""--tuple_statistics: what is counted in each batch, and where it is recorded."""
import pytest
import torch

import batch_mining
import criteria
from records.trace import hard_pairs
from tests.helpers import folder_of, rows_of


@pytest.mark.parametrize('seed, offset', [(0, 0), (1, 0), (2, 0), (0, 1000)])
def test_hard_pairs_are_those_of_a_loop(seed, offset):
    generator = torch.Generator().manual_seed(seed)
    batch, labels = torch.randn(14, 3, generator=generator) + offset, torch.randint(4, (14,), generator=generator)
    expected = {'hard_positives': 0, 'hard_negatives': 0}
    for a in range(14):
        positives = [(batch[a] - batch[p]).norm() for p in range(14) if p != a and labels[p] == labels[a]]
        negatives = [(batch[a] - batch[n]).norm() for n in range(14) if labels[n] != labels[a]]
        expected['hard_positives'] += sum(d > min(negatives) for d in positives)
        expected['hard_negatives'] += sum(d < max(positives, default=-1) for d in negatives)
    assert {name: int(count) for name, count in hard_pairs(batch, labels).items()} == {
        name: int(count) for name, count in expected.items()}
    assert {int(count) for count in hard_pairs(batch, torch.zeros(14, dtype=torch.long)).values()} == {0}


def test_margin_violations_are_those_of_the_library(opt, monkeypatch):
    """All pairs of a batch; the library counts the terms that its reducers find above zero."""
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    common_functions = pytest.importorskip('pytorch_metric_learning.utils.common_functions')
    batch = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(12) // 3
    flags = opt(loss='contrastive', batch_mining='all', loss_contrastive_pos_margin=.8, loss_contrastive_neg_margin=1.2,
                tuple_statistics=True)
    ours = criteria.select(flags, batch_mining.select(flags))
    monkeypatch.setattr(common_functions, 'COLLECT_STATS', True)
    theirs = losses.ContrastiveLoss(pos_margin=.8, neg_margin=1.2)
    ours(batch=batch, labels=labels)
    theirs(batch, labels)
    counted = theirs.reducer.reducers
    assert 0 < int(ours.log['violating_positives']) == counted['pos_loss'].num_past_filter < 24
    assert 0 < int(ours.log['violating_negatives']) == counted['neg_loss'].num_past_filter < 108


def test_statistics_are_recorded_and_change_nothing(quick, run, tmp_path):
    quick += ['--loss', 'contrastive', '--n_epochs', '1', '--evaluation_metrics', 'e_recall@1']
    assert run(*quick) == 0 and run(*quick, '--tuple_statistics', '--group', 'counted') == 0
    (_, plain), (counted, row) = rows_of(folder_of(tmp_path)), rows_of(folder_of(tmp_path, 'counted_s1'))
    names = {f'step_{name}' for name in ('hard_positives', 'hard_negatives', 'violating_positives', 'grad_norm',
                                         'violating_negatives', 'tuples')}
    assert names <= row.keys() and not any(name.startswith('step_') for name in plain)
    assert {name: row[name] for name in plain} == plain and {counted[name] for name in names} == {''}
    assert 0 < float(row['step_hard_positives']) <= 12
