"""The miners of triplets: each draw is one that the rule allows, as often as it should be."""
import collections
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare

from batch_mining import (
    distance,
    easyhard,
    hard,
    intra_random,
    parametric,
    random_distance,
    random_triplets,
    rho_distance,
    semihard,
    softhard,
)
from tests.batch_mining import references
from tests.batch_mining.batches import SHAPES, collapsed, grid, unit
from tests.helpers import LABELS, UNIT, manual_seed

P_VALUE = 1e-4           # below it, frequencies are not those of the rule; the seeds are fixed
WEIGHTS = torch.tensor([1., 4., 1e-15, 2., 3.])
EASYHARD = {f'easyhard {pos} {neg}': {'pos': pos, 'neg': neg}
            for pos in ('easy', 'hard') for neg in ('semihard', 'hard')}

# name: (miner, reference, parameters)
RULES = {
    'hard': (hard.hard_triplets, references.hard, {}),
    **{name: (easyhard.easyhard_triplets, references.easyhard, flags) for name, flags in EASYHARD.items()},
    'semihard': (semihard.semihard_triplets, references.semihard, {}),
    'semihard, wide': (semihard.semihard_triplets, references.semihard, {'margin': 1.5}),
    'semihard of plain distances': (semihard.semihard_triplets, references.semihard, {'margin': .1, 'power': 1}),
    'semihard of power 1.5': (semihard.semihard_triplets, references.semihard, {'power': 1.5}),
    'softhard': (softhard.softhard_triplets, references.softhard, {}),
    'distance': (distance.distance_triplets, references.distance, {}),
    'distance, cut off at 1.2': (distance.distance_triplets, references.distance, {'lower_cutoff': 1.2}),
    'rho_distance': (rho_distance.rho_distance_triplets, references.rho_distance, {}),
    'rho_distance, mostly pushing': (rho_distance.rho_distance_triplets, references.rho_distance, {'cp': .9}),
    'parametric': (parametric.parametric_triplets, references.parametric, {'weights': WEIGHTS}),
    'parametric among all': (parametric.parametric_triplets, references.parametric,
                             {'weights': WEIGHTS, 'support_lim': (.3, 1.3), 'among_all': True}),
}
BATCHES = {'unit': unit, 'unit in 3 dimensions': lambda n, seed: unit(n, 3, seed), 'grid': grid, 'collapsed': collapsed}


@pytest.mark.parametrize('make', BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize('rule', RULES)
def test_each_triplet_follows_the_rule_and_no_anchor_is_missing(rule, make):
    mine, reference, flags = RULES[rule]
    for labels, seed in itertools.product(SHAPES.values(), range(2)):
        batch = make(len(labels), seed=seed)
        if make is grid and len(labels) not in (4, 8, 16):
            continue                                       # elsewhere rounding decides between equal distances
        allowed = reference(batch, labels, **flags)
        manual_seed(seed)
        triplets = mine(batch, labels, **flags)
        assert triplets.dtype == torch.int64 and triplets.shape == (len(allowed), 3)
        assert triplets[:, 0].tolist() == sorted(allowed), labels
        for a, p, n in triplets.tolist():
            assert (p, n) in allowed[a], labels


def frequencies(draw, n, n_draws=600):
    """[n, n, n]: how often draw() gave each triplet of n samples."""
    manual_seed(0)
    triplets = torch.cat([draw() for _ in range(n_draws)])
    return (triplets @ torch.tensor([n * n, n, 1])).bincount(minlength=n ** 3).view(n, n, n)


@pytest.mark.parametrize('rule, make', [*((rule, unit) for rule in RULES if not rule.startswith(('hard', 'easyhard'))),
                                        ('softhard', grid), ('distance', grid)])
def test_frequencies_are_those_of_the_rule(rule, make):
    """But for rules that leave one choice only."""
    mine, reference, flags = RULES[rule]
    labels, batch = torch.tensor([0, 3, 0, 1, 3, 0, 1, 0]), make(8, seed=1)
    counts = frequencies(lambda: mine(batch, labels, **flags), 8)
    for a, chances in reference(batch, labels, **flags).items():
        found = {pair: int(counts[a][pair]) for pair in chances}
        assert sum(found.values()) == counts[a].sum() and agrees(found, chances, 600)


def agrees(counts, chances, n_draws):
    """Pearson's test of {outcome: number} against {outcome: probability}; rare outcomes count as one."""
    rare = [outcome for outcome, chance in chances.items() if chance * n_draws < 5]
    observed = [counts[outcome] for outcome in chances if outcome not in rare]
    expected = [chances[outcome] * n_draws for outcome in chances if outcome not in rare]
    if sum(chances[outcome] for outcome in rare) * n_draws >= 1:
        observed.append(sum(counts[outcome] for outcome in rare))
        expected.append(sum(chances[outcome] for outcome in rare) * n_draws)
    if len(observed) < 2:
        return True
    scale = sum(observed) / sum(expected)
    return abs(scale - 1) < .01 and chisquare(observed, [scale * number for number in expected]).pvalue > P_VALUE


def test_the_frequency_test_notices_other_frequencies():
    chances = references.uniform(range(4))
    assert agrees({0: 150, 1: 145, 2: 160, 3: 145}, chances, 600)
    assert not agrees({0: 200, 1: 120, 2: 140, 3: 140}, chances, 600)


def test_known_values_of_the_deterministic_miners():
    assert hard.hard_triplets(UNIT, LABELS).tolist() == [
        [0, 1, 2], [1, 0, 2], [2, 3, 1], [3, 2, 4], [4, 5, 3], [5, 4, 1]]
    assert easyhard.easyhard_triplets(UNIT, LABELS).tolist() == [[0, 1, 2], [1, 0, 2], [2, 3, 1], [3, 2, 4]]


def test_known_weights_of_distance():
    same = LABELS[:, None] == LABELS
    weights = distance.negative_weights(UNIT, same)[0]
    known = torch.tensor([0, 0, .313226, .225870, .178566, .282338], dtype=torch.float64)
    torch.testing.assert_close(weights / weights.sum(), known, atol=5.1e-7, rtol=0)


@pytest.mark.parametrize('dim, lower_cutoff', [
    (3, 0), (4, .5), (128, 0), (128, .5), (128, 1.4), (128, 2), (512, 0), (512, .5), (2048, .5), (2048, 2)])
def test_weights_of_antipodes_and_duplicates(dim, lower_cutoff):
    """In any dimension, with any cut-off: finite, and the largest of a row between 1 / 2B and 2, or what 1/d allows."""
    batch = torch.zeros(6, dim)
    batch[0, 0] = batch[1, 0] = batch[4, 1] = batch[5, 2] = 1
    batch[2, 0] = batch[3, 0] = -1
    labels = torch.tensor([0, 1, 0, 1, 2, 3])
    same = labels[:, None] == labels
    weights = distance.negative_weights(batch, same, lower_cutoff)
    assert weights.isfinite().all() and (weights >= 0).all() and (weights[same] == 0).all()
    if lower_cutoff == .5:
        assert (weights.amax(dim=1) >= 1 / 12).all() and (weights.amax(dim=1) <= 2).all()
    logs = [[references.inverse_density(math.sqrt(d), dim, max(lower_cutoff, 1e-6)) for d in row]
            for row in references.squared_distances(batch)]
    for a in range(6):
        row = {n: logs[a][n] for n in range(6) if labels[n] != labels[a]}
        expected = references.weighted({n: math.exp(value - max(row.values())) for n, value in row.items()})
        found = weights[a] / weights[a].sum()
        assert all(abs(found[n] - chance) < 1e-3 for n, chance in expected.items())
    for seed in range(5):
        manual_seed(seed)
        triplets = distance.distance_triplets(batch, labels, lower_cutoff)
        assert (labels[triplets[:, 0]] != labels[triplets[:, 2]]).all()


def test_a_negative_of_no_weight_is_never_drawn():
    weights = torch.zeros(2000, 64)
    weights[:, 7] = 1e-25
    weights[:, 40] = 1e25
    assert (distance.sample_weighted(weights) == 40).all()
    weights[:, 40] = 0
    assert (distance.sample_weighted(weights) == 7).all()


@pytest.mark.parametrize('labels', [*SHAPES.values()][1::2], ids=[*SHAPES][1::2])
def test_each_positive_pair_has_a_negative_of_its_own(labels):
    """Wu et al.: as many triplets as positive pairs, whose negatives are sampled independently of each other."""
    batch, draws = unit(len(labels), seed=1), []
    chances = references.distance_of_pairs(batch, labels)

    def draw():
        draws.append(distance.distance_triplets(batch, labels, positives='all'))
        return draws[-1]

    counts = frequencies(draw, len(labels))
    for triplets in draws:
        assert triplets.dtype == torch.int64 and triplets[:, :2].tolist() == [list(pair) for pair in sorted(chances)]
    for (a, p), negatives in chances.items():
        found = {negative: int(counts[a, p, negative]) for negative in negatives}
        assert sum(found.values()) == 600 and agrees(found, negatives, 600)


def test_negatives_of_one_anchor_are_independent():
    labels, batch, n_equal = torch.tensor([0, 0, 0, 1, 2]), torch.eye(5), 0
    manual_seed(0)
    for _ in range(600):
        negatives = distance.distance_triplets(batch, labels, positives='all')[:2, 2]
        n_equal += int(negatives[0] == negatives[1])
    assert agrees({True: n_equal, False: 600 - n_equal}, {True: .5, False: .5}, 600)


@pytest.mark.parametrize('power', [1, 2])
@pytest.mark.parametrize('offset, spread', [(1, 1e-3), (1e4, 1)])
def test_distances_keep_their_digits_far_from_the_origin(offset, spread, power):
    """In float32, against float64 differences: the gaps of semihard, and the weights of distance without a cut-off."""
    batch = (offset + spread * torch.randn(24, 8, generator=torch.Generator().manual_seed(0))).float()
    distances = (batch.double()[:, None] - batch.double()).square().sum(dim=2)
    powers = distances.pow(power / 2)
    gaps, expected = (part - part[:, [0]] for part in (semihard.distance_powers(batch, power).double(), powers))
    torch.testing.assert_close(gaps[:, 1:], expected[:, 1:], rtol=0, atol=1e-3 * powers.max().item())
    if spread < 1:
        same = torch.eye(24, dtype=torch.bool)
        logs = distance.negative_weights(batch, same, lower_cutoff=1e-6).double().log()
        u = distances * (1 - distances / 4)
        wanted = -2.5 * u.log() - distances.log() / 2
        torch.testing.assert_close((logs - logs[:, [0]])[1:][~same[1:]], (wanted - wanted[:, [0]])[1:][~same[1:]],
                                   rtol=0, atol=.01)


def test_random_distance_is_distance_mining_for_shuffled_labels():
    labels = SHAPES['uneven, not contiguous, one class alone']
    batch, anchors_seen = unit(10), set()
    for seed in range(20):
        for more in ({}, {'positives': 'all'}):
            manual_seed(seed)
            triplets = random_distance.random_distance_triplets(batch, labels, **more)
            manual_seed(seed)
            shuffled = labels[torch.randperm(10)]
            assert triplets.equal(distance.distance_triplets(batch, shuffled, **more))
            anchors_seen |= set(triplets[:, 0].tolist())
    assert anchors_seen == set(range(10))                  # whose class is alone changes


@pytest.mark.parametrize('labels', SHAPES.values(), ids=SHAPES)
def test_random_triplets_are_valid_distinct_and_as_many_as_there_can_be(labels):
    valid = {(a, p, n) for a, positives, negatives in references.anchors(labels) for p in positives for n in negatives}
    for n_triplets in (1, len(labels), 1000):
        manual_seed(n_triplets)
        triplets = list(map(tuple, random_triplets.random_triplets(labels, n_triplets).tolist()))
        assert set(triplets) <= valid and len(set(triplets)) == len(triplets) == min(n_triplets, len(valid))


@pytest.mark.parametrize('n_triplets', [1, 5])
def test_random_triplets_are_uniform(n_triplets):
    labels, n_draws = torch.tensor([0, 2, 0, 1, 2, 0]), 2000
    valid = [(a, p, n) for a, positives, negatives in references.anchors(labels) for p in positives for n in negatives]
    counts = collections.Counter()
    manual_seed(0)
    for _ in range(n_draws):
        counts.update(map(tuple, random_triplets.random_triplets(labels, n_triplets).tolist()))
    # without replacement the counts vary less than Pearson's test takes for granted, so it still holds
    assert agrees({triplet: counts[triplet] for triplet in valid}, references.uniform(valid), n_draws * n_triplets)


def test_random_triplets_of_many_are_distinct_and_uniform():
    """Where the valid triplets are many more than those asked for, they are drawn in another way."""
    labels = torch.arange(16).repeat_interleave(4)                     # 64 · 3 · 60 = 11,520 valid triplets
    counts = torch.zeros(64, 64)
    manual_seed(0)
    for _ in range(600):
        triplets = random_triplets.random_triplets(labels, 64)
        assert len(triplets.unique(dim=0)) == 64
        assert (labels[triplets[:, 0]] == labels[triplets[:, 1]]).all() and (triplets[:, 0] != triplets[:, 1]).all()
        counts.index_put_((triplets[:, 0], triplets[:, 2]), torch.ones(64), accumulate=True)
    assert counts[labels[:, None] == labels].sum() == 0
    negatives = counts[labels[:, None] != labels]
    assert chisquare(negatives.numpy()).pvalue > P_VALUE


def test_intra_random_draws_a_class_then_three_of_its_samples_with_replacement():
    labels = torch.tensor([3, 3, 7, 3, 0, 0])
    manual_seed(0)
    n_draws = 6000
    counts = collections.Counter(map(tuple, intra_random.intra_random_triplets(labels, n_draws).tolist()))
    members = [(0, 1, 3), (2,), (4, 5)]
    chances = {(a, p, n): 1 / 3 / len(of) ** 3 for of in members for a in of for p in of for n in of}
    assert counts.keys() <= chances.keys()
    assert agrees({triplet: counts[triplet] for triplet in chances}, chances, n_draws)
