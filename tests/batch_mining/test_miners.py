"""What all miners of the registry have in common, and the miners of pairs, which give masks."""
import collections
import itertools
from pathlib import Path

import pytest
import torch

import batch_mining
import criteria
from batch_mining import all_pairs, easyhard, hard, lifted, multisimilarity, npair, semihard
from benchmarks.gpu import synchronisations
from tests.batch_mining import references
from tests.batch_mining.batches import SHAPES, collapsed, grid, unit
from tests.batch_mining.test_triplets import agrees
from tests.helpers import examples_alone, flags_alone, published
from utilities.errors import UserError

MINERS = {name: module for name, module in batch_mining.BATCHMINERS.items() if module}
MASKS = {name for name, module in MINERS.items() if getattr(module, 'RETURNS', '') == 'masks'}
DETERMINISTIC = ['all', 'lifted', 'hard', 'easyhard', 'multisimilarity']
LAWLESS = {'intra_random', 'random_distance', 'rho_distance'}           # which mean to give triplets that are not valid
UNEVEN = SHAPES['uneven, not contiguous, one class alone']


@pytest.fixture(params=MINERS)
def name(request):
    return request.param


@pytest.fixture
def miner(name, opt):
    return batch_mining.select(opt(batch_mining=name, loss='triplet'))


def mined(miner, batch, labels, seed=0):
    """What the miner gives, as one tensor."""
    torch.manual_seed(seed)
    found = miner(batch, labels)
    return torch.stack(found) if isinstance(found, tuple) else found


def test_masks_or_valid_triplets_as_declared(name, miner):
    for (shape, labels), make in itertools.product(SHAPES.items(), (unit, grid, collapsed)):
        found = mined(miner, make(len(labels)), labels)
        assert not found.requires_grad
        if name in MASKS:
            assert found.dtype == torch.bool and found.shape == (2, len(labels), len(labels))
            same = labels[:, None] == labels
            assert not (found[0] & (~same | torch.eye(len(labels), dtype=torch.bool))).any(), (shape, make)
            assert not (found[1] & same).any(), (shape, make)
            continue
        assert found.dtype == torch.int64 and found.shape[1:] == (3,)
        assert ((found >= 0) & (found < len(labels))).all()
        if name not in LAWLESS:
            anchors, positives, negatives = labels[found].T
            assert (anchors == positives).all() and (anchors != negatives).all(), (shape, make)
            assert (found[:, 0] != found[:, 1]).all(), (shape, make)


def test_the_same_seed_gives_the_same_and_another_seed_something_else(name, miner):
    labels = torch.arange(8).repeat_interleave(4)
    one, again, other = (mined(miner, unit(32), labels, seed) for seed in (0, 0, 1))
    assert one.equal(again)
    assert one.equal(other) == (name in DETERMINISTIC)


def test_order_names_of_classes_and_scales_do_not_matter(name, miner):
    """A permuted batch gives the permuted triplets."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        n = int(torch.randint(1, 25, (), generator=generator))
        labels, order = torch.randint(6, (n,), generator=generator), torch.randperm(n, generator=generator)
        names, batch = torch.randint(-2 ** 40, 2 ** 40, (6,), generator=generator), unit(n, seed=seed)
        found = mined(miner, batch, labels)
        assert mined(miner, batch, names.sort().values[labels]).equal(found)
        if name in (*DETERMINISTIC, 'softhard'):
            for factor in (.25, 64):
                assert mined(miner, batch * factor, labels).equal(found)
        if name in DETERMINISTIC:
            assert mined(miner, batch, names[labels]).equal(found)
            permuted = mined(miner, batch[order], labels[order])
            assert (permuted.equal(found[:, order][:, :, order]) if name in MASKS
                    else sorted(order[permuted].tolist()) == sorted(found.tolist()))


def test_half_precision_is_upcast_and_autocast_is_off(miner):
    labels = torch.arange(32).repeat_interleave(2)
    for seed, dtype in enumerate((torch.float16, torch.bfloat16)):
        batch = unit(64, seed=seed).to(dtype)
        expected = mined(miner, batch.float(), labels)
        assert mined(miner, batch, labels).equal(expected)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            assert mined(miner, batch.float(), labels).equal(expected)


def test_inputs_are_left_as_they_are_and_need_no_gradient(miner):
    batch, labels = unit(10).requires_grad_(), UNEVEN.clone()
    assert mined(miner, batch, labels).equal(mined(miner, unit(10), UNEVEN)) and batch.grad is None
    assert batch.equal(unit(10)) and labels.equal(UNEVEN)


def test_embeddings_that_are_all_equal(name, miner):
    labels = torch.arange(4).repeat_interleave(2)
    for value in (0., 1e-20, 1e15):
        found = mined(miner, torch.full((8, 16), value), labels)
        if name not in {'easyhard', 'multisimilarity'}:
            assert len(found), value                       # for these two no negative may be farther, or as near


@pytest.mark.gpu('cuda')
def test_at_most_one_synchronisation_on_a_gpu(miner):
    batch, labels = unit(32, dtype=torch.float32).cuda(), torch.arange(8).repeat_interleave(4).cuda()
    for _ in range(2):                                     # what is set up at the first call does not count
        with synchronisations() as found:
            mined(miner, batch, labels)
    assert len(found) <= 1, found


def test_copied_alone_each_file_runs_its_examples_and_mines(opt, tmp_path):
    files = [Path(module.__file__) for module in published(MINERS).values()]
    flags = f'types.SimpleNamespace(**{flags_alone(opt())})'
    programs = {file: f'import types\nimport {file.stem}\n'
                      f'assert len({file.stem}.BatchMiner({flags})(embeddings, labels))' for file in files}
    results = examples_alone(files, tmp_path, programs)
    assert all(attempted and not failed for attempted, failed in results.values()), results


def test_an_unknown_miner_is_refused_with_the_choices(opt):
    with pytest.raises(UserError, match='--batch_mining semihrad: unknown; choose from .*random, all,'):
        batch_mining.select(opt(batch_mining='semihrad'))
    assert batch_mining.select(opt(batch_mining='none')) is None


TAKES_ANY_MINER = [loss for loss, module in criteria.CRITERIA.items()
                   if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None]


@pytest.mark.parametrize('loss', TAKES_ANY_MINER)
def test_semihards_window_is_the_losss_margin_in_its_unit_unless_its_own_flag_says_else(loss, opt):
    """On embeddings of norm 1 and mean 0 a ratio of variances is a squared distance."""
    powers = {'triplet': 1.5, 'snr': 2}
    flags = opt(loss=loss, batch_mining='semihard', loss_triplet_power=1.5)
    expected = .2, 2
    if hasattr(flags, f'loss_{loss}_margin'):
        setattr(flags, f'loss_{loss}_margin', .35)
        expected = .35, powers.get(loss, 1)
    miner = batch_mining.select(flags)
    assert (miner.margin, miner.power) == expected
    flags.miner_semihard_margin = .3
    miner = batch_mining.select(flags)
    assert (miner.margin, miner.power) == (.3, 2)


def test_semihards_units_name_losses_that_there_are():
    assert set(semihard.MARGIN_POWERS) <= set(TAKES_ANY_MINER)


def test_in_a_sum_each_loss_has_its_own_window(opt):
    miners = batch_mining.select(opt(loss='margin+triplet', batch_mining='semihard'))
    assert [miner.power for miner in miners] == [1, 2]


def test_flags_reach_the_miners(opt):
    labels = torch.arange(8).repeat_interleave(2)
    batch = unit(16)
    one = mined(batch_mining.select(opt(batch_mining='easyhard', miner_easyhard_pos='hard', miner_easyhard_neg='hard')),
                batch, labels)
    assert one.equal(hard.hard_triplets(batch, labels))
    pushing = batch_mining.select(opt(batch_mining='rho_distance', miner_rho_distance_cp=1))
    assert (labels[mined(pushing, batch, labels)] == labels[:, None]).all()
    everything = batch_mining.select(opt(batch_mining='multisimilarity', miner_multisimilarity_epsilon=2))
    assert mined(everything, batch, labels).equal(torch.stack(all_pairs.all_pairs(labels)))
    for miner in ('distance', 'rho_distance'):
        flags = opt(**{'batch_mining': miner, f'miner_{miner}_lower_cutoff': .9})
        assert batch_mining.select(flags).lower_cutoff == .9
    flags = opt(batch_mining='parametric', miner_parametric_support_lim=[.2, .9])
    assert batch_mining.select(flags).support_lim == [.2, .9]
    for miner in ('distance', 'random_distance'):
        every = batch_mining.select(opt(batch_mining=miner, miner_distance_positives='all'))
        assert len(every(unit(8), torch.arange(2).repeat_interleave(4))) == 8 * 3
    paper = batch_mining.select(opt(batch_mining='npair', loss='npair', loss_npair_negatives='pairs'))
    assert (mined(paper, batch, labels).sum(dim=2) > 0).sum() == 2 * 8
    assert easyhard.BatchMiner(opt()).pos == 'easy'


# Masks.

@pytest.mark.parametrize('labels', SHAPES.values(), ids=SHAPES)
def test_all_and_lifted_are_every_pair_and_every_pair_of_anchors_with_both(labels):
    both = {a: (positives, negatives) for a, positives, negatives in references.anchors(labels)}
    positives, negatives = all_pairs.all_pairs(labels)
    of_anchors = lifted.lifted_pairs(labels)
    for i in range(len(labels)):
        expected = ([j for j in range(len(labels)) if labels[j] == labels[i] and j != i],
                    [j for j in range(len(labels)) if labels[j] != labels[i]])
        assert (positives[i].nonzero()[:, 0].tolist(), negatives[i].nonzero()[:, 0].tolist()) == expected
        assert tuple(mask[i].nonzero()[:, 0].tolist() for mask in of_anchors) == both.get(i, ([], []))


def multisimilarity_reference(batch, labels, epsilon):
    unit_rows = (batch / batch.norm(dim=1, keepdim=True)).tolist()
    pairs = set(), set()
    for a, positives, negatives in references.anchors(labels):
        s = [sum(x * y for x, y in zip(unit_rows[a], row, strict=True)) for row in unit_rows]
        pairs[0].update((a, p) for p in positives if s[p] - epsilon < max(s[n] for n in negatives))
        pairs[1].update((a, n) for n in negatives if s[n] + epsilon > min(s[p] for p in positives))
    return pairs


@pytest.mark.parametrize('labels', SHAPES.values(), ids=SHAPES)
def test_multisimilarity_keeps_what_its_rule_says(labels):
    for seed, epsilon in enumerate((0, .1, .5)):
        batch = 3 * unit(len(labels), 4, seed)
        masks = multisimilarity.multisimilarity_pairs(batch, labels, epsilon)
        assert tuple(set(map(tuple, mask.nonzero().tolist())) for mask in masks) == multisimilarity_reference(
            batch, labels, epsilon)


@pytest.mark.parametrize('labels', SHAPES.values(), ids=SHAPES)
def test_npair_gives_every_anchor_one_positive_and_all_negatives(labels):
    positives, negatives = npair.npair_tuples(labels)
    same = labels[:, None] == labels
    has_positive = same.sum(dim=1) > 1
    assert positives.sum(dim=1).equal(has_positive.long())
    assert negatives.equal(~same & has_positive[:, None])


def test_npairs_positives_are_uniform():
    labels, n_draws = torch.tensor([0, 1, 0, 0, 1, 0]), 1000
    counts = collections.defaultdict(collections.Counter)
    torch.manual_seed(0)
    for _ in range(n_draws):
        for a, p in npair.npair_tuples(labels)[0].nonzero().tolist():
            counts[a][p] += 1
    for a, positives, _ in references.anchors(labels):
        assert counts[a].keys() == set(positives)
        assert agrees(counts[a], references.uniform(positives), n_draws)


def test_npairs_of_the_paper_are_one_pair_of_each_class_and_the_others_positives():
    labels, n_draws = torch.tensor([0, 1, 0, 2, 0, 1]), 1200
    counts = collections.Counter()
    torch.manual_seed(0)
    for _ in range(n_draws):
        positives, negatives = npair.npair_tuples(labels, 'pairs')
        pairs = positives.nonzero().tolist()
        assert sorted(int(labels[a]) for a, _ in pairs) == [0, 1]      # class 2 has no pair
        for a, _ in pairs:
            assert negatives[a].nonzero()[:, 0].tolist() == [p for _, p in pairs if labels[p] != labels[a]]
        counts.update(tuple(pair) for pair in pairs if labels[pair[0]] == 0)
    chances = references.uniform([(a, p) for a in (0, 2, 4) for p in (0, 2, 4) if a != p])
    assert counts.keys() == chances.keys() and agrees(counts, chances, n_draws)
