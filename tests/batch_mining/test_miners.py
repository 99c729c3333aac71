"""What all miners of the registry have in common, and the miners of pairs, which give masks."""
import collections
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import batch_mining
import criteria
from batch_mining import all_pairs, easyhard, hard, lifted, multisimilarity, npair, semihard
from docs import method_pages
from tests.batch_mining import references
from tests.batch_mining.batches import BATCH, LABELS, SHAPES, collapsed, grid, unit
from tests.batch_mining.test_triplets import agrees
from tests.helpers import examples_alone
from utilities.errors import UserError
from utilities.loss_sums import triplets_from_masks

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


def test_masks_or_triplets_as_declared(name, miner):
    for labels in SHAPES.values():
        found = mined(miner, unit(len(labels)), labels)
        if name in MASKS:
            assert found.dtype == torch.bool and found.shape == (2, len(labels), len(labels))
            same = labels[:, None] == labels
            assert not (found[0] & (~same | torch.eye(len(labels), dtype=torch.bool))).any()
            assert not (found[1] & same).any()
        else:
            assert found.dtype == torch.int64 and found.shape[1:] == (3,)
            assert ((found >= 0) & (found < len(labels))).all()
        assert not found.requires_grad


@pytest.mark.parametrize('name', [name for name in MINERS if name not in LAWLESS])
def test_triplets_are_valid(name, miner):
    for (shape, labels), make in itertools.product(SHAPES.items(), (unit, grid, collapsed)):
        found = miner(make(len(labels)), labels)
        triplets = triplets_from_masks(*found) if name in MASKS else found
        anchors, positives, negatives = labels[triplets].T
        assert (anchors == positives).all() and (anchors != negatives).all(), (shape, make)
        assert (triplets[:, 0] != triplets[:, 1]).all(), (shape, make)


def test_the_same_seed_gives_the_same_and_another_seed_something_else(name, miner):
    labels = torch.arange(8).repeat_interleave(4)
    one, again, other = (mined(miner, unit(32), labels, seed) for seed in (0, 0, 1))
    assert one.equal(again)
    assert one.equal(other) == (name in DETERMINISTIC)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2 ** 30), n=st.integers(1, 24), n_classes=st.integers(1, 8))
@pytest.mark.parametrize('deterministic', DETERMINISTIC)
def test_a_permuted_batch_gives_the_permuted_triplets(deterministic, seed, n, n_classes):
    generator = torch.Generator().manual_seed(seed)
    labels, order = torch.randint(n_classes, (n,), generator=generator), torch.randperm(n, generator=generator)
    batch = unit(n, seed=seed)
    miner = build(deterministic)
    found, permuted = mined(miner, batch, labels), mined(miner, batch[order], labels[order])
    if deterministic in MASKS:
        assert permuted.equal(found[:, order][:, :, order])
    else:
        assert sorted(order[permuted].tolist()) == sorted(found.tolist())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2 ** 30), n=st.integers(1, 24), factor=st.sampled_from([.25, 2, 64]),
       names=st.lists(st.integers(-2 ** 40, 2 ** 40), min_size=6, max_size=6, unique=True))
@pytest.mark.parametrize('name', MINERS)
def test_names_of_classes_and_scales_do_not_matter(name, seed, n, factor, names):
    labels = torch.randint(6, (n,), generator=torch.Generator().manual_seed(seed))
    batch, miner = unit(n, seed=seed), build(name)
    found = mined(miner, batch, labels)
    in_order = torch.tensor(sorted(names))[labels]
    assert mined(miner, batch, in_order).equal(found)
    if name in DETERMINISTIC:
        assert mined(miner, batch, torch.tensor(names)[labels]).equal(found)
    if name in (*DETERMINISTIC, 'softhard'):
        assert mined(miner, batch * factor, labels).equal(found)


def build(name):
    import parameters
    flags = parameters.build().parse_args(['--batch_mining', name, '--loss', 'triplet'])
    return batch_mining.select(flags)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2 ** 30), dtype=st.sampled_from([torch.float16, torch.bfloat16]))
@pytest.mark.parametrize('name', MINERS)
def test_half_precision_is_upcast_and_autocast_is_off(name, seed, dtype):
    miner, batch = build(name), unit(16, seed=seed).to(dtype)
    labels = torch.arange(8).repeat_interleave(2)
    expected = mined(miner, batch.float(), labels)
    assert mined(miner, batch, labels).equal(expected)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert mined(miner, batch.float(), labels).equal(expected)


def test_gradients_are_neither_needed_nor_kept(miner):
    batch = unit(10).requires_grad_()
    assert mined(miner, batch, UNEVEN).equal(mined(miner, batch.detach(), UNEVEN)) and batch.grad is None


def test_embeddings_that_are_all_equal(name, miner):
    labels = torch.arange(4).repeat_interleave(2)
    for value in (0., 1e-20, 1e15):
        found = mined(miner, torch.full((8, 16), value), labels)
        if name not in {'easyhard', 'multisimilarity'}:
            assert len(found), value                       # for these two no negative may be farther, or as near


def test_inputs_are_left_as_they_are(miner):
    batch, labels = unit(10), UNEVEN.clone()
    mined(miner, batch, labels)
    assert batch.equal(unit(10)) and labels.equal(UNEVEN)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='counts synchronisations of an NVIDIA GPU')
def test_at_most_one_synchronisation_on_a_gpu(name, miner, recwarn):
    batch, labels = unit(32, dtype=torch.float32).cuda(), torch.arange(8).repeat_interleave(4).cuda()
    mined(miner, batch, labels)                            # what is set up at the first call does not count
    torch.cuda.set_sync_debug_mode('warn')
    try:
        recwarn.clear()
        mined(miner, batch, labels)
        found = [warning for warning in recwarn if 'synchronizing' in str(warning.message)]
    finally:
        torch.cuda.set_sync_debug_mode('default')
    assert len(found) <= 1, [str(warning.message) for warning in found]


def test_copied_alone_each_file_runs_its_examples_and_the_snippet_of_its_page(tmp_path):
    snippets = {Path(module.__file__): method_pages.snippet('miners', name) for name, module in MINERS.items()}
    results = examples_alone(list(snippets), tmp_path, snippets)
    assert all(attempted and not failed for attempted, failed in results.values()), results


def test_an_unknown_miner_is_refused_with_the_choices(opt):
    with pytest.raises(UserError, match='--batch_mining semihrad: unknown; choose from random, all,'):
        batch_mining.select(opt(batch_mining='semihrad'))
    assert batch_mining.select(opt(batch_mining='none')) is None


def test_semihards_window_is_the_losss_margin_unless_its_own_flag_says_else(opt):
    def margin(**flags):
        return batch_mining.select(opt(batch_mining='semihard', **flags)).margin
    assert margin(loss='triplet', loss_triplet_margin=.3) == .3
    assert margin(loss='contrastive') == .2
    assert margin(loss='triplet', miner_semihard_margin=.7) == .7


TAKES_ANY_MINER = [loss for loss, module in criteria.CRITERIA.items()
                   if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None]


@pytest.mark.parametrize('loss', TAKES_ANY_MINER)
def test_semihards_default_window_is_in_the_unit_of_the_losss_margin(loss, opt):
    """On embeddings of norm 1 and mean 0 a ratio of variances is a squared distance."""
    powers = {'distance': 1, 'distance^power': 1.5, 'variance ratio': 2}
    flags = opt(loss=loss, batch_mining='semihard', loss_triplet_power=1.5)
    miner = batch_mining.select(flags)
    if hasattr(flags, f'loss_{loss}_margin'):
        assert miner.margin == getattr(flags, f'loss_{loss}_margin')
        assert miner.power == powers[criteria.CRITERIA[loss].MARGIN_UNIT]
    else:
        assert (miner.margin, miner.power) == (.2, 2)
    flags.miner_semihard_margin = .3
    miner = batch_mining.select(flags)
    assert (miner.margin, miner.power) == (.3, 2)


def test_semihards_units_name_losses_that_there_are():
    assert set(semihard.MARGIN_POWERS) <= set(TAKES_ANY_MINER)


def test_in_a_sum_each_loss_has_its_own_window(opt):
    miners = batch_mining.select(opt(loss='margin+triplet', batch_mining='semihard'))
    assert [miner.power for miner in miners] == [1, 2]


@pytest.mark.parametrize('loss, flags, violation', [
    *(('triplet', {'loss_triplet_power': power}, lambda batch, triplet, opt: criteria.triplet.triplet_loss(
        batch, triplet, opt.loss_triplet_margin, opt.loss_triplet_power)) for power in (1., 1.5, 2.)),
    ('dr_triplet', {'loss_dr_triplet_margin': .1}, lambda batch, triplet, opt: criteria.dr_triplet.dr_triplet_loss(
        batch, triplet, opt.loss_dr_triplet_margin, gamma=0))])
def test_semihard_negatives_violate_the_losss_own_margin(loss, flags, violation, opt):
    """And are farther than the positive, so that the violation is less than the margin; else there is no such one."""
    flags = opt(loss=loss, batch_mining='semihard', **flags)
    miner, margin, n_inside = batch_mining.select(flags), getattr(flags, f'loss_{loss}_margin'), 0
    labels = SHAPES['four of each']
    for seed in range(5):
        batch = unit(len(labels), seed=seed)

        def is_inside(a, p, n, batch=batch):
            return 0 < violation(batch, torch.tensor([[a, p, n]]), flags) < margin

        for a, p, n in mined(miner, batch, labels, seed).tolist():
            n_inside += bool(is_inside(a, p, n))
            assert is_inside(a, p, n) or not any(is_inside(a, p, n) for n in range(len(labels))
                                                 if labels[n] != labels[a])
    assert n_inside > 20


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
    assert batch_mining.select(opt(batch_mining='distance', miner_distance_lower_cutoff=.9)).lower_cutoff == .9
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


def test_multisimilaritys_known_pairs():
    positives, negatives = multisimilarity.multisimilarity_pairs(BATCH, LABELS, .1)
    assert positives.nonzero().tolist() == [[1, 0], [4, 5], [5, 4]]
    assert negatives.nonzero().tolist() == [[1, 2], *([a, n] for a in (4, 5) for n in range(4))]


def test_multisimilarity_agrees_with_pytorch_metric_learning():
    miners = pytest.importorskip('pytorch_metric_learning.miners')
    for seed in range(5):
        batch = unit(10, seed=seed)
        a1, p, a2, n = miners.MultiSimilarityMiner(epsilon=.1)(batch, UNEVEN)
        positives, negatives = multisimilarity.multisimilarity_pairs(batch, UNEVEN, .1)
        assert positives.nonzero().tolist() == sorted(torch.stack([a1, p], dim=1).tolist())
        assert negatives.nonzero().tolist() == sorted(torch.stack([a2, n], dim=1).tolist())


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


@pytest.mark.parametrize('name', ['rho_distance', 'random_distance', 'intra_random', 'parametric'])
def test_losses_of_triplets_take_what_the_unusual_miners_give(name, opt):
    """Triplets with an anchor as its own positive, or with positive and negative of one class."""
    labels = torch.arange(8).repeat_interleave(2)
    for loss, module in criteria.CRITERIA.items():
        if not module.REQUIRES_BATCHMINER or module.ALLOWED_MINING_OPS is not None:
            continue
        flags = opt(loss=loss, batch_mining=name, miner_rho_distance_cp=.5, miner_parametric_adapt=True, n_classes=8)
        batch = unit(16, dtype=torch.float32).requires_grad_()
        criterion = criteria.select(flags, batch_mining.select(flags))
        value = criterion(batch=batch, labels=labels, batch_features=None, f_embed=None)
        value.backward()
        assert value.isfinite() and batch.grad.isfinite().all(), loss
