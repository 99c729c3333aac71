"""Each miner: its rule holds for every triplet, its frequencies are those it promises, its randomness is torch's."""
import doctest
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import batch_mining
from batch_mining import distance, random_triplets, semihard, softhard

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
BATCH = torch.tensor([(1, 0, 0), (.8, .6, 0), (.48, .6, .64), (0, .6, .8), (-.6, 0, .8), (.36, .48, -.8)],
                     dtype=torch.float64)
UNEVEN = torch.tensor([5, 0, 5, 2, 0, 5, 9, 2, 5, 0])       # not contiguous; class 9 is alone
MINERS = [name for name in batch_mining.BATCHMINERS if name != 'none']


def unit(n, dim=8, seed=0):
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture(params=MINERS)
def miner(request, opt):
    return batch_mining.select(opt(batch_mining=request.param, loss='triplet'))


def test_triplets_are_valid_and_anchors_without_partners_left_out(miner):
    for seed in range(20):
        torch.manual_seed(seed)
        triplets = miner(unit(10, seed=seed), UNEVEN)
        anchors, positives, negatives = triplets.T
        assert triplets.dtype == torch.int64 and len(triplets) <= 10
        assert (UNEVEN[anchors] == UNEVEN[positives]).all() and (anchors != positives).all()
        assert (UNEVEN[anchors] != UNEVEN[negatives]).all() and 6 not in anchors


@pytest.mark.parametrize('labels', [[1, 1, 1], [0, 1, 2], [4]])
def test_no_valid_triplet_gives_none(miner, labels):
    assert miner(unit(len(labels)), torch.tensor(labels)).shape == (0, 3)


def test_the_same_seed_gives_the_same_triplets_and_another_other_ones(miner):
    labels = torch.arange(8).repeat_interleave(4)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(miner(unit(32), labels))
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])


def test_half_precision_and_gradients(miner):
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        triplets = miner(unit(10).to(dtype).requires_grad_(), UNEVEN)
        assert len(triplets) and not triplets.requires_grad


def test_random_triplets_are_distinct_and_uniform():
    torch.manual_seed(0)
    seen = {}
    n_draws = 4000
    for _ in range(n_draws):
        triplets = [tuple(row) for row in random_triplets.random_triplets(LABELS, 6).tolist()]
        assert len(set(triplets)) == 6
        for row in triplets:
            seen[row] = seen.get(row, 0) + 1
    assert len(seen) == 24                                             # 6 anchors, 1 positive, 4 negatives
    expected = n_draws * 6 / 24
    assert all(abs(count - expected) < 5 * expected ** .5 for count in seen.values())


def test_random_triplets_of_many_are_distinct_and_uniform():
    """Where the valid triplets are many more than those asked for, they are drawn in another way."""
    labels = torch.arange(16).repeat_interleave(4)                     # 64 * 3 * 60 = 11,520 valid triplets
    torch.manual_seed(0)
    counts = torch.zeros(64, 64)
    for _ in range(600):
        triplets = random_triplets.random_triplets(labels, 64)
        assert len(triplets.unique(dim=0)) == 64
        assert (labels[triplets[:, 0]] == labels[triplets[:, 1]]).all() and (triplets[:, 0] != triplets[:, 1]).all()
        counts.index_put_((triplets[:, 0], triplets[:, 2]), torch.ones(64), accumulate=True)
    negatives = counts[labels[:, None] != labels]
    expected = 600 * 64 / (64 * 60)
    assert counts[labels[:, None] == labels].sum() == 0
    assert abs(negatives.var() / expected - 1) < .15                   # as for counts of independent draws
    assert abs(negatives - expected).max() < 6 * expected ** .5


def test_all_valid_triplets_where_there_are_fewer_than_asked_for():
    drawn = random_triplets.random_triplets(torch.tensor([0, 0, 1]), 5)
    assert sorted(map(tuple, drawn.tolist())) == [(0, 1, 2), (1, 0, 2)]


def test_semihard_takes_the_window_on_squared_distances_or_any_negative():
    """Known values: with a window of .2, only anchor 1 has a semi-hard negative, 2."""
    torch.manual_seed(0)
    seen = {}
    for _ in range(300):
        for a, p, n in semihard.semihard_triplets(BATCH, LABELS, .2).tolist():
            assert p == a ^ 1
            seen.setdefault(a, set()).add(n)
    assert seen.pop(1) == {2}
    assert all(found == {n for n in range(6) if LABELS[n] != LABELS[a]} for a, found in seen.items())


@pytest.mark.parametrize('margin', [.05, .2, .5])
def test_semihard_negatives_lie_in_the_window_where_it_is_not_empty(margin):
    for seed in range(10):
        batch, labels = unit(24, 4, seed).double(), torch.arange(6).repeat_interleave(4)
        squared = torch.cdist(batch, batch) ** 2
        torch.manual_seed(seed)
        for a, p, n in semihard.semihard_triplets(batch, labels, margin).tolist():
            window = [k for k in range(24) if labels[k] != labels[a] and 0 < squared[a, k] - squared[a, p] < margin]
            assert n in window or not window


def test_semihards_window_is_the_losss_margin_unless_its_own_flag_says_else(opt):
    def margin(**flags):
        return semihard.BatchMiner(opt(**flags)).margin
    assert margin(loss='triplet', loss_triplet_margin=.3) == .3
    assert margin(loss='contrastive') == .2
    assert margin(loss='triplet', miner_semihard_margin=.7) == .7


def test_softhard_takes_what_is_out_of_order():
    """Known values: for anchors 0 to 3 nothing is; for 4 and 5 every negative is nearer than the positive."""
    batch, labels = torch.tensor([[0.], [1.], [5.], [2.], [9.]], dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1])
    torch.manual_seed(0)
    seen = {}
    for _ in range(300):
        for a, p, n in softhard.softhard_triplets(batch, labels).tolist():
            seen.setdefault(a, set()).add((p, n))
    assert seen == {0: {(2, 3)}, 1: {(2, 3)}, 2: {(0, 3), (0, 4), (1, 3), (1, 4)},
                    3: {(4, 0), (4, 1), (4, 2)}, 4: {(3, 2)}}
    assert {a: {n for _, n in found} for a, found in softhard_partners(BATCH, LABELS).items()} == {
        a: {n for n in range(6) if LABELS[n] != LABELS[a]} for a in range(6)}


def softhard_partners(batch, labels):
    seen = {}
    for _ in range(300):
        for a, p, n in softhard.softhard_triplets(batch, labels).tolist():
            seen.setdefault(a, set()).add((p, n))
    return seen


def test_distance_weights_are_the_known_ones():
    same = LABELS[:, None] == LABELS
    weights = distance.negative_weights(BATCH, same, .5)[0]
    torch.testing.assert_close(weights / weights.sum(), torch.tensor([0, 0, .313226, .225870, .178566, .282338],
                                                                    dtype=torch.float64), atol=5.1e-7, rtol=0)


def test_distance_negatives_are_drawn_with_these_probabilities():
    torch.manual_seed(0)
    n_draws, counts = 4000, torch.zeros(6)
    for _ in range(n_draws):
        counts[distance.distance_triplets(BATCH, LABELS)[0, 2]] += 1
    expected = torch.tensor([0, 0, .313226, .225870, .178566, .282338])
    assert (counts[:2] == 0).all()
    assert ((counts / n_draws - expected).abs() < 5 * (expected / n_draws) ** .5 + 1e-9).all()


def test_distance_of_antipodes_and_duplicates_is_finite():
    batch = torch.tensor([[1., 0, 0], [1, 0, 0], [-1, 0, 0], [-1, 0, 0]]).repeat(1, 40) / 40 ** .5
    weights = distance.negative_weights(batch, torch.tensor([[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2).bool(), .5)
    assert weights.isfinite().all() and (weights.amax(dim=1) == 1).all()


def test_positives_are_uniform():
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 0, 0, 1])
    counts = torch.zeros(5)
    for _ in range(3000):
        counts[distance.distance_triplets(unit(5), labels)[0, 1]] += 1
    assert counts[0] == counts[4] == 0 and (counts[1:4] - 1000).abs().max() < 5 * 1000 ** .5


@pytest.mark.parametrize('name', MINERS)
def test_copied_alone_it_runs_its_example(name, tmp_path):
    source = Path(batch_mining.BATCHMINERS[name].__file__)
    (tmp_path / source.name).write_text(source.read_text())
    script = (f'import sys; sys.modules["numpy"] = None\nimport doctest, {source.stem}\n'
              f'results = doctest.testmod({source.stem})\nassert results.attempted and not results.failed')
    done = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert doctest.testmod(batch_mining.BATCHMINERS[name]).failed == 0
