"""From flags to a criterion: miners, sums, cross-batch memory, direction regularisation, pytorch-metric-learning."""
import copy
import importlib.metadata
import sys

import numpy as np
import pytest
import torch

import batch_mining
import criteria
import optimization
from criteria import triplet
from criteria.cross_batch_memory import CrossBatchMemory
from criteria.direction_regularisation import DirectionRegularised
from tests.criteria import cases, references
from tests.criteria.cases import LABELS, UNIT
from utilities import libraries
from utilities.errors import UserError
from utilities.mined import checked, own_groups

SMALL = {'n_classes': 3, 'embed_dim': 3, 'bs': 6}


def select(namespace):
    torch.manual_seed(0)
    return criteria.select(namespace, batch_mining.select(namespace))


def value(criterion, batch=UNIT, labels=LABELS):
    return criterion(batch=batch, labels=labels, batch_features=None, f_embed=None)


# Miners

@pytest.mark.parametrize('flags, sentence', [
    ({'loss': 'triplet', 'batch_mining': 'none'}, '--loss triplet needs a miner: set --batch_mining'),
    ({'loss': 'npair', 'batch_mining': 'none'}, r'--loss npair needs a miner: set --batch_mining \(npair\)'),
    ({'loss': 'npair', 'batch_mining': 'all'}, '--loss npair does not work with --batch_mining all; choose from npair'),
    ({'loss': 'tripel'}, '--loss tripel: unknown; choose from .*angular, arcface'),
    ({'loss': 'triplet+margin', 'batch_mining': 'all+all+all'},
     r'--batch_mining all\+all\+all: give one miner, or one for each loss of --loss triplet\+margin'),
    ({'loss': 'triplet+margin', 'batch_mining': 'all', 'loss_weights': [1.]},
     r'--loss_weights: expected one for each loss of --loss triplet\+margin, not 1'),
    ({'loss': 'triplet+', 'batch_mining': 'all'}, '--loss : unknown'),
    ({'loss': 'triplet+npair', 'batch_mining': 'all'}, '--loss npair does not work with --batch_mining all'),
    ({'loss': 'triplet+supcon', 'batch_mining': 'none+all'}, '--loss triplet needs a miner'),
    ({'loss': 'triplet', 'xbm_size': 512},
     '--xbm_size does not work with --loss triplet: it is for losses that compare a batch with references, such as'),
    ({'loss': 'triplet+proxynca', 'xbm_size': 512}, '--xbm_size does not work with'),
    ({'loss': 'supcon', 'xbm_size': 111}, '--xbm_size 111: the memory bank must hold at least a batch, --bs 112'),
    ({'loss': 'supcon', 'dr_weight': .1}, '--dr_weight does not work with --loss supcon: it is for losses of triplets'),
    ({'loss': 'npair', 'batch_mining': 'npair', 'dr_weight': .1}, '--dr_weight does not work with --loss npair'),
    ({'loss': 's2sd', 'loss_s2sd_target': 's2sd'}, '--loss_s2sd_target s2sd: give one loss, and not s2sd itself'),
    ({'loss': 's2sd', 'loss_s2sd_target': 'nonsense'}, '--loss_s2sd_target nonsense: unknown; choose from'),
    ({'loss': 's2sd', 'loss_s2sd_pool_aggr': True, 'n_maps': None}, '--loss_s2sd_pool_aggr: .* has no feature maps'),
], ids=str)
def test_what_a_loss_cannot_have_is_refused(flags, sentence, opt):
    with pytest.raises(UserError, match=sentence):
        select(opt(**flags))


@pytest.mark.parametrize('loss', ['snr', 'dr_triplet', 'quadruplet'])
def test_a_loss_of_triplets_gets_those_that_a_miners_pairs_make(loss, opt):
    values = []
    for miner in (batch_mining.select(opt(batch_mining='all')), cases.every_triple):
        torch.manual_seed(0)
        values.append(value(criteria.select(opt(loss=loss), miner)).item())
    assert values[0] == pytest.approx(values[1], abs=1e-12)


@pytest.mark.parametrize('loss', [name for name, module in criteria.CRITERIA.items() if module.REQUIRES_BATCHMINER])
def test_every_loss_takes_every_miner_or_refuses_it(loss, opt):
    """Of some miners, the anchor may be its own positive, or positive and negative are of one class."""
    allowed = criteria.CRITERIA[loss].ALLOWED_MINING_OPS
    for miner in [name for name in batch_mining.BATCHMINERS if name != 'none']:
        namespace = opt(loss=loss, batch_mining=miner, miner_rho_distance_cp=.5, miner_parametric_adapt=True, **SMALL)
        if allowed is not None and miner not in allowed:
            with pytest.raises(UserError, match='does not work with'):
                select(namespace)
            continue
        batch = UNIT.float().requires_grad_()
        total = value(select(namespace), batch)
        total.backward()
        assert total.isfinite() and batch.grad.isfinite().all(), miner


# Parameters

@pytest.mark.parametrize('flags, trained', [({}, True), ({'loss_margin_beta_constant': True}, False)])
def test_the_beta_of_margin_is_trained_unless_it_is_constant(flags, trained, opt):
    criterion = select(opt(loss='margin', n_classes=8, **flags))
    assert criterion.beta.requires_grad == trained == bool(criterion.parameter_groups())


@pytest.mark.parametrize('loss', criteria.CRITERIA)
def test_parameters_train_at_their_own_rate(loss, opt):
    allowed = criteria.CRITERIA[loss].ALLOWED_MINING_OPS
    namespace = opt(loss=loss, lr=1e-4, n_classes=8, batch_mining=allowed[0] if allowed else 'all',
                    loss_s2sd_target_dims=[6])
    criterion = select(namespace)
    groups = criterion.parameter_groups()
    module = criteria.CRITERIA[loss]
    assert module.REQUIRES_OPTIM == bool(groups)
    rates = [getattr(namespace, f'loss_{loss}_{name}') * (1e-4 if name.endswith('lrmulti') else 1)
             for name in getattr(module, 'FLAGS', {}) if name.endswith(('lr', 'lrmulti'))]
    if module.REQUIRES_OPTIM:
        assert [group['lr'] for group in groups] == pytest.approx(rates or [1e-4])
    assert {id(p) for group in groups for p in group['params']} == {id(p) for p in criterion.parameters()}
    assert loss in ('hier', 'nir', 's2sd') or all(len(parameter) == 8 for parameter in criterion.parameters())


def test_parameters_without_a_rate_are_refused(opt):
    class Careless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(UserError, match='Careless has parameters, but neither a rate self.lr nor optimizer groups'):
        own_groups(Careless())


# Sums

def test_a_sum_is_the_weighted_sum_of_its_parts(opt):
    parts = {'triplet': 'semihard', 'multisimilarity': 'none', 'contrastive': 'all'}
    expected = []
    for loss, miner in parts.items():
        alone = select(opt(loss=loss, batch_mining=miner, **SMALL))
        torch.manual_seed(1)
        expected.append(value(alone).item())
    for weights, factors in (([], [1, 1, 1]), ([.5, 2., -1.], [.5, 2, -1])):
        criterion = select(opt(loss='+'.join(parts), batch_mining='+'.join(parts.values()), loss_weights=weights,
                               **SMALL))
        torch.manual_seed(1)
        total = value(criterion).item()
        assert total == pytest.approx(sum(map(float.__mul__, expected, map(float, factors))), abs=1e-12)
        assert {name: criterion.log[f'{name}_loss'].item() for name in parts} == dict(
            zip(parts, map(pytest.approx, expected), strict=True))
        assert criterion.log['triplet_tuples'] == 6


def test_one_miner_serves_all_losses_of_a_sum(opt):
    both = select(opt(loss='triplet+margin', batch_mining='all', **SMALL))
    alone = [value(select(opt(loss=loss, batch_mining='all', **SMALL))) for loss in ('triplet', 'margin')]
    assert value(both).item() == pytest.approx(sum(alone).item(), abs=1e-12)
    assert value(select(opt(loss='triplet', batch_mining='all', loss_weights=[3.]))).item() == pytest.approx(
        3 * alone[0].item())


def test_the_parameters_of_all_parts_of_a_sum_reach_the_optimizer_and_the_checkpoint(opt):
    flags = {'loss': 'margin+proxyanchor+triplet+softmax', 'batch_mining': 'all', 'lr': .01, **SMALL}
    criterion = select(opt(**flags))
    model = torch.nn.Module()
    model.backbone, model.f_embed = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer, _ = optimization.select(opt(**flags), model, criterion)
    groups = {group['name']: group for group in optimizer.param_groups}
    assert {name: group['lr'] for name, group in groups.items() if 'criterion' in name} == {
        'criterion_margin': .0005, 'criterion_proxyanchor': 1., 'criterion_softmax': .00001}
    before = copy.deepcopy(criterion.state_dict())
    value(criterion, UNIT.float().requires_grad_()).backward()
    optimizer.step()
    changed = {name for name, tensor in criterion.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == set(before) and len(before) == 3
    other = select(opt(**flags))
    other.load_state_dict(criterion.state_dict())
    assert value(other).item() == value(criterion).item()


def test_the_losses_inside_s2sd_keep_their_rates_miners_and_wrappers(opt):
    flags = {'loss': 's2sd+softmax', 'batch_mining': 'all', 'loss_s2sd_source': 'margin', 'lr': .01,
             'loss_s2sd_target': 'proxyanchor', 'loss_s2sd_target_dims': [5, 4], 'n_features': 3, **SMALL}
    criterion = select(opt(**flags))
    groups = criterion.parameter_groups()
    assert [group['lr'] for group in groups] == [.01, .0005, 1., 1., .00001]
    assert {id(p) for group in groups for p in group['params']} == {id(p) for p in criterion.parameters()}
    assert [tuple(target.proxies.shape) for target in criterion.criteria[0].targets] == [(3, 5), (3, 4)]
    wrapped = select(opt(**flags | {'loss_s2sd_target': 'contrastive', 'xbm_size': 8, 'dr_weight': .1})).criteria[0]
    memory = wrapped.targets[1].criterion
    assert isinstance(wrapped.source, DirectionRegularised) and isinstance(memory, CrossBatchMemory)
    assert memory.embeddings.shape == (8, 4)
    batch = UNIT.float().requires_grad_()
    total = wrapped(batch=batch, labels=LABELS, batch_features=batch, f_embed=None)
    total.backward()
    assert total.isfinite() and all(parameter.grad.isfinite().all() for parameter in wrapped.heads.parameters())
    for source, needs in (('margin', True), ('softmax', False)):
        inside = select(opt(**flags | {'loss': 's2sd', 'loss_s2sd_source': source}))
        assert criteria.needs_pairs(inside) == needs


@pytest.mark.parametrize('loss, miner, flags', [
    ('npair', 'npair', {'loss_npair_negatives': 'pairs'}),
    ('margin', 'semihard', {'loss_margin_margin': .5, 'loss_margin_beta': .6})])
def test_a_miner_inside_s2sd_reads_the_flags_of_the_loss_that_it_mines_for(loss, miner, flags, opt):
    flags = {'batch_mining': miner, 'n_features': 3, **flags, **SMALL}
    inside = select(opt(loss='s2sd', loss_s2sd_source=loss, loss_s2sd_target=loss, **flags))
    alone = select(opt(loss=loss, **flags))
    torch.manual_seed(1)
    expected = value(alone).item()
    torch.manual_seed(1)
    assert value(inside.source).item() == expected
    assert vars(inside.source.batchminer.batchminer) == vars(alone.batchminer.batchminer)


@pytest.mark.parametrize('flags, margins', [
    ({'loss': 's2sd', 'loss_pml_args': [{'pos_margin': .3}]}, (.3, .3)),
    ({'loss': 's2sd', 'loss_s2sd_target': 'pml:TripletMarginLoss',
      'loss_pml_args': [{'pos_margin': .3}, {'margin': .4}]}, (.3, .4)),
    ({'loss': 'pml:ArcFaceLoss+s2sd', 'loss_pml_args': [{'scale': 8}, {'pos_margin': .3}]}, (.3, .3))], ids=str)
def test_losses_of_libraries_inside_s2sd_have_their_arguments_and_miner(flags, margins, opt):
    pytest.importorskip('pytorch_metric_learning')
    flags = opt(**{'batch_mining': 'distance', 'loss_s2sd_source': 'pml:ContrastiveLoss',
                   'loss_s2sd_target': 'pml:ContrastiveLoss', 'n_features': 3} | SMALL | flags)
    criterion = criteria.select(flags, batch_mining.select(flags, criteria.takes_miner))
    inside = criterion if flags.loss == 's2sd' else criterion.criteria[1]
    target = inside.targets[0].loss
    assert (inside.source.loss.pos_margin, getattr(target, 'pos_margin', getattr(target, 'margin', 0))) == margins
    assert inside.source.batchminer.name == inside.targets[0].batchminer.name == 'distance'
    flags = opt(**{'loss': 's2sd', 'loss_s2sd_source': 'torch:CrossEntropyLoss', 'n_features': 3} | SMALL,
                loss_torch_args=[{'label_smoothing': .1}])
    assert select(flags).source.loss.label_smoothing == .1


def test_a_memory_bank_gives_positives_only_to_the_losses_that_use_it(opt):
    for losses, needs in (('contrastive+softmax', False), ('contrastive+softmax+triplet', True),
                          ('supcon+multisimilarity', False), ('supcon+smoothap', True)):
        criterion = select(opt(loss=losses, batch_mining='all', xbm_size=500, **SMALL))
        assert criteria.needs_pairs(criterion) == needs, losses
    assert criteria.needs_pairs(select(opt(loss='contrastive', batch_mining='all', **SMALL)))


def test_no_miner_is_built_for_a_loss_that_takes_none(opt):
    def built(**flags):
        miners = batch_mining.select(opt(**SMALL, **flags), criteria.takes_miner)
        return [type(miner).__module__ for miner in (miners if isinstance(miners, list) else [miners])]

    assert built(loss='margin+softmax', batch_mining='distance') == ['batch_mining.distance', 'builtins']
    assert built(loss='softmax', batch_mining='distance') == ['builtins']                              # None
    assert built(loss='softmax+s2sd', batch_mining='distance', loss_s2sd_target='triplet') == [
        'builtins', 'batch_mining.distance']
    assert built(loss='s2sd+triplet', batch_mining='distance') == ['builtins', 'batch_mining.distance']
    flags = opt(loss='s2sd', batch_mining='semihard', n_features=3, **SMALL)
    assert criteria.select(flags, batch_mining.select(flags, criteria.takes_miner))


def test_s2sd_distils_features_after_its_delay_which_a_checkpoint_keeps(opt):
    flags = {'loss': 's2sd', 'loss_s2sd_target_dims': [5], 'loss_s2sd_feat_distill': True, 'n_features': 3, **SMALL}
    criterion = select(opt(loss_s2sd_feat_distill_delay=2, **flags)).double()
    batch = {'batch': UNIT, 'labels': LABELS, 'batch_features': UNIT.flip(1) + 1}
    values = [criterion(**batch).item() for _ in range(2)]
    other = select(opt(loss_s2sd_feat_distill_delay=2, **flags)).double()
    other.load_state_dict(criterion.state_dict())
    assert values[0] == values[1] < other(**batch).item() == criterion(**batch).item()


def test_a_sum_and_a_wrapper_pass_feature_maps_on(opt):
    flags = {'loss_s2sd_target_dims': [5], 'batch_mining': 'all', **SMALL, 'n_features': 9, 'n_maps': 3}
    assert not criteria.inputs(select(opt(loss='s2sd+triplet', **flags)))
    summed = opt(loss='s2sd+triplet', loss_s2sd_pool_aggr=True, dr_weight=.1, **flags)
    criterion = select(summed).double()
    assert criteria.inputs(criterion) == {'feature_maps'}
    batch = {'batch': UNIT, 'labels': LABELS, 'batch_features': torch.randn(6, 9, dtype=cases.F64)}
    values = [criterion(**batch, feature_maps=cases.maps_of(maps)).item() for maps in (UNIT, UNIT.flip(0))]
    assert values[0] != values[1]


# Cross-batch memory

def memory_of(opt, loss='contrastive', **flags):
    return select(opt(loss=loss, batch_mining='all', **SMALL | {'xbm_size': 8, 'xbm_start': 0} | flags)).double()


@pytest.mark.parametrize('loss', ['contrastive', 'multisimilarity', 'ntxent', 'supcon', 'circle'])
def test_the_memory_is_a_ring_of_past_batches_and_this_one_without_each_samples_own_entry(loss, opt):
    """Batches of several sizes around the ring, against a list that drops its oldest entries."""
    criterion = memory_of(opt, loss, xbm_weight=.25)
    plain = select(opt(loss=loss, batch_mining='all', **SMALL)).double()
    generator, kept = torch.Generator().manual_seed(0), []
    for step, size in enumerate((3, 6, 5, 6, 1, 6)):
        batch = torch.randn(size, 3, dtype=cases.F64, generator=generator).requires_grad_()
        labels = torch.randint(3, (size,), generator=generator)
        if step == 3:
            batch.data[1] = kept[-1][0]                              # a duplicate of an earlier one is an ordinary pair
        total = value(criterion, batch, labels)
        kept = (kept + list(zip(batch.detach(), labels, strict=True)))[-8:]
        entries, entry_labels = (torch.stack(part) for part in zip(*kept, strict=True))
        expected = value(plain, batch, labels) + .25 * plain(
            batch=batch, labels=labels, references=entries, reference_labels=entry_labels,
            own=torch.arange(len(kept) - size, len(kept)))
        gradients = [torch.autograd.grad(loss, batch)[0] for loss in (total, expected)]
        torch.testing.assert_close(total, expected, rtol=0, atol=1e-8)
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-8)


def test_the_memory_is_used_after_its_start_and_filled_before(opt):
    late, at_once = memory_of(opt, xbm_start=2), memory_of(opt)
    plain = value(select(opt(loss='contrastive', batch_mining='all', **SMALL))).item()
    values = [(value(late).item(), value(at_once).item()) for _ in range(3)]
    assert [one for one, _ in values[:2]] == [plain, plain] and values[2][0] == values[2][1] != plain


def test_the_memory_takes_half_precision_and_its_gradient_survives_the_next_batch(opt):
    criterion = select(opt(loss='contrastive', batch_mining='all', xbm_size=6, xbm_start=0, **SMALL))
    batch = UNIT.to(torch.float16).requires_grad_()
    first = value(criterion, batch)
    value(criterion, UNIT.flip(0).float())                           # overwrites the entries
    first.backward()
    assert batch.grad.isfinite().all() and batch.grad.abs().sum() > 0


def test_each_part_of_a_sum_that_can_has_a_memory(opt):
    criterion = select(opt(loss='supcon+triplet+margin+contrastive', batch_mining='all', xbm_size=8, **SMALL))
    assert [isinstance(part, CrossBatchMemory) for part in criterion.criteria] == [True, False, False, True]
    assert [group['name'] for group in criterion.parameter_groups()] == ['criterion_margin']


# Direction regularisation of any loss of triplets

@pytest.mark.parametrize('loss', ['triplet', 'margin', 'contrastive', 'snr'])
@pytest.mark.parametrize('labels', [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 2], [1] * 6])
def test_dr_weight_subtracts_the_mean_direction(loss, labels, opt):
    labels, batch = torch.tensor(labels), UNIT.clone()
    batch[1] = batch[0]                                              # has no direction
    batch.requires_grad_()
    namespace = opt(loss=loss, batch_mining='all', dr_weight=.4, **SMALL)
    triplets = references.all_triplets(labels.tolist())
    base = select(opt(loss=loss, batch_mining='all', **SMALL))
    expected = value(base, batch, labels) - .4 * references.average(
        [references.direction(*batch[[a, p, n]]) for a, p, n in triplets], batch)
    found = value(select(namespace), batch, labels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    gradients = [torch.autograd.grad(total, batch)[0] for total in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
    assert found.isfinite() and gradients[0].isfinite().all()


def test_dr_weight_and_a_memory_together_count_the_direction_once(opt):
    flags = {'loss': 'contrastive', 'batch_mining': 'all', 'xbm_size': 8, 'xbm_start': 0, **SMALL}
    both, memory_only = select(opt(dr_weight=.4, **flags)).double(), select(opt(**flags)).double()
    directions = [references.direction(*UNIT[[a, p, n]]) for a, p, n in references.all_triplets(LABELS.tolist())]
    for _ in range(2):
        assert value(both).item() == pytest.approx(value(memory_only).item() - .4 * float(sum(directions)) / 24)


# pytorch-metric-learning by name

def test_a_loss_and_a_miner_of_pytorch_metric_learning_with_nested_arguments(opt):
    pytest.importorskip('pytorch_metric_learning')
    from pytorch_metric_learning import distances, losses, miners, reducers
    squared, batch = {'LpDistance': {'power': 2, 'normalize_embeddings': False}}, UNIT.float() * 1.3
    criterion = select(opt(loss='pml:TripletMarginLoss', batch_mining='none', **SMALL, loss_pml_args=[
        {'margin': .3, 'distance': squared, 'reducer': {'MeanReducer': None}}]))
    theirs = losses.TripletMarginLoss(.3, distance=distances.LpDistance(power=2, normalize_embeddings=False),
                                      reducer=reducers.MeanReducer())
    assert value(criterion, batch).item() == theirs(batch, LABELS).item()
    mined = opt(loss='pml:TripletMarginLoss', batch_mining='pml:TripletMarginMiner', **SMALL,
                miner_pml_args=[{'margin': .2, 'type_of_triplets': 'semihard'}])
    theirs = losses.TripletMarginLoss()
    tuples = miners.TripletMarginMiner(margin=.2, type_of_triplets='semihard')(batch, LABELS)
    assert value(select(mined), batch).item() == pytest.approx(theirs(batch, LABELS, tuples).item())
    ours = opt(loss='triplet', batch_mining='pml:TripletMarginMiner', **SMALL,
               miner_pml_args=[{'margin': .2, 'type_of_triplets': 'semihard', 'distance': squared}])
    distance = distances.LpDistance(power=2, normalize_embeddings=False)
    tuples = miners.TripletMarginMiner(.2, type_of_triplets='semihard', distance=distance)(batch, LABELS)
    assert value(select(ours), batch).item() == pytest.approx(
        triplet.triplet_loss(batch, torch.stack(tuples, dim=1)).item())


@pytest.mark.parametrize('miner', ['all', 'semihard', 'pml:MultiSimilarityMiner'])
def test_masks_and_triplets_reach_the_library_as_its_own_tuples_would(miner, opt):
    pytest.importorskip('pytorch_metric_learning')
    arguments = {'distance': {'LpDistance': {'normalize_embeddings': False}}, 'reducer': {'MeanReducer': {}}}
    theirs = opt(loss='pml:ContrastiveLoss', batch_mining=miner, **SMALL, loss_pml_args=[arguments])
    ours = opt(loss='contrastive', batch_mining=miner, **SMALL)
    values = []
    for namespace in (theirs, ours):
        torch.manual_seed(3)
        values.append(value(criteria.select(namespace, batch_mining.select(namespace))).item())
    assert values[0] == pytest.approx(values[1], abs=1e-8)


def test_a_loss_of_the_library_that_runs_out_of_memory_is_no_users_error():
    def without_memory():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    with pytest.raises(RuntimeError, match='DefaultCPUAllocator') as caught:
        libraries.called(without_memory, flag='--loss')
    assert not isinstance(caught.value, UserError)


def test_a_pair_that_a_miner_of_the_library_repeats_counts_as_often(opt):
    pytest.importorskip('pytorch_metric_learning')
    from pytorch_metric_learning import losses, miners
    torch.manual_seed(3)
    tuples = miners.UniformHistogramMiner()(UNIT.float(), LABELS)
    expected = losses.ContrastiveLoss()(UNIT.float(), LABELS, tuples).item()
    torch.manual_seed(3)
    flags = opt(loss='pml:ContrastiveLoss', batch_mining='pml:UniformHistogramMiner', **SMALL)
    found = value(select(flags), UNIT.float())
    positives = torch.stack(tuples[:2], dim=1)
    assert found.item() == pytest.approx(expected) and len(positives) > len(positives.unique(dim=0))


def test_a_loss_of_the_library_gets_its_sizes_trains_and_adds_up(opt):
    pytest.importorskip('pytorch_metric_learning')
    flags = {'loss': 'pml:ArcFaceLoss+pml:ProxyAnchorLoss+triplet', 'batch_mining': 'none+none+all', 'lr': .01, **SMALL,
             'loss_pml_args': [{'scale': 16}, {'alpha': 8}], 'loss_pml_lr': .5}
    criterion = select(opt(**flags))
    assert [tuple(parameter.shape) for parameter in criterion.parameters()] == [(3, 3), (3, 3)]
    assert criterion.criteria[0].loss.scale == 16 and criterion.criteria[1].loss.alpha == 8
    groups = criterion.parameter_groups()
    assert [(group['name'], group['lr']) for group in groups] == [
        ('criterion_pml:ArcFaceLoss', .5), ('criterion_pml:ProxyAnchorLoss', .5)]
    assert select(opt(**flags | {'loss_pml_lr': -1.})).parameter_groups()[0]['lr'] == .01
    other = select(opt(**flags))
    other.load_state_dict(criterion.state_dict())
    assert value(other, UNIT.float()).item() == value(criterion, UNIT.float()).item()
    batch = UNIT.to(torch.bfloat16).requires_grad_()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        total = value(criterion, batch)
    total.backward()
    assert total.dtype == torch.float32 and batch.grad.isfinite().all()


@pytest.mark.parametrize('flags, sentence', [
    ({'loss': 'pml:Nonsense'}, r'--loss pml:Nonsense: pytorch-metric-learning [\d.]+ has no such class in losses; '
                               'choose from .*ContrastiveLoss'),
    ({'loss': 'triplet', 'batch_mining': 'pml:Nonsense'}, 'has no such class in miners; choose from .*HardMiner'),
    ({'loss': 'pml:TripletMarginLoss', 'loss_pml_args': [{'nonsense': 1}]},
     '--loss pml:TripletMarginLoss: .*nonsense.*; its arguments are set with --loss_pml_args'),
    ({'loss': 'pml:TripletMarginLoss', 'loss_pml_args': [{}, {}]}, r'--loss_pml_args: expected one .*\(1\), not 2'),
    ({'loss': 'pml:DynamicSoftMarginLoss'}, 'pml:DynamicSoftMarginLoss does not work here: it keeps a histogram'),
    ({'loss': 'pml:CrossBatchMemory', 'loss_pml_args': [{'loss': {'ContrastiveLoss': {}}}]},
     'pml:CrossBatchMemory does not work here: it keeps earlier batches.* --xbm_size'),
    ({'loss': 'pml:SelfSupervisedLoss', 'loss_pml_args': [{'loss': {'CrossBatchMemory': {}}}]}, 'it keeps earlier'),
    ({'loss': 'pml:TripletMarginLoss', 'dr_weight': .1}, '--dr_weight does not work with --loss pml:TripletMargin'),
    ({'loss': 'pml:VICRegLoss', 'batch_mining': 'distance'}, 'pml:VICRegLoss'),
    ({'loss': 'pml:ContrastiveLoss', 'loss_pml_args': [{'distance': 3}]}, 'pml:ContrastiveLoss'),
    ({'loss': 'pml:BaseMetricLossFunction'}, 'pml:BaseMetricLossFunction'),
    ({'loss': 'pml:ContrastiveLoss', 'batch_mining': 'pml:EmbeddingsAlreadyPackagedAsTriplets'}, 'pml:Contrast|pml:Em'),
])
def test_what_the_library_does_not_have_or_take_is_refused(flags, sentence, opt):
    """Some of it when it is called."""
    pytest.importorskip('pytorch_metric_learning')
    with pytest.raises(UserError, match=sentence):
        value(select(opt(**SMALL, **{'batch_mining': 'none'} | flags)), UNIT[:5].float(), LABELS[:5])


def test_without_the_library_a_sentence_says_how_to_get_it(opt, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pytorch_metric_learning', None)
    with pytest.raises(UserError, match='pip install "pytorch-metric-learning>=2.8,<3"'):
        select(opt(loss='pml:TripletMarginLoss', batch_mining='none'))


@pytest.mark.parametrize('version, works', [('2.7.0', False), ('2.10.1', True), ('3.0.0rc1', False)])
def test_other_versions_of_the_library_are_refused(version, works, monkeypatch):
    pytest.importorskip('pytorch_metric_learning')
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: version)
    if works:
        assert libraries.require_library('--loss pml:TripletMarginLoss') == version
        return
    with pytest.raises(UserError, match=f'from 2.8 to below 3, and {version} is installed: pip install'):
        libraries.require_library('--loss pml:TripletMarginLoss')


@pytest.mark.parametrize('flags, ranks', [
    ({'loss': 'hyperbolic+softmax'}, True), ({'loss': 'hyperbolic', 'distill': 'ema', 'ema': .9}, True),
    ({'loss': 's2sd', 'loss_s2sd_source': 'hyperbolic'}, True), ({'loss': 'softmax'}, False),
    ({'loss': 's2sd', 'loss_s2sd_target': 'hyperbolic'}, False)])
def test_a_sum_and_a_wrapper_rank_by_the_only_distance_that_a_loss_inside_has(flags, ranks, opt):
    """s2sd normalises the embeddings that it gives its loss."""
    criterion = select(opt(**{'batch_mining': 'none', 'loss_s2sd_target_dims': [5], 'n_features': 3} | SMALL | flags))
    assert hasattr(criterion, 'ranking_embeddings') == ranks
    if ranks:
        alone = select(opt(loss='hyperbolic', batch_mining='none', **SMALL))
        given = 7 * UNIT.float() if flags['loss'] == 's2sd' else UNIT.float()
        torch.testing.assert_close(criterion.ranking_embeddings(given), alone.ranking_embeddings(UNIT.float()))


@pytest.mark.parametrize('flags, expected', [
    ({'loss': 'triplet'}, False), ({'loss': 'hyperbolic+softmax'}, True), ({'loss': 'happier'}, False),
    ({'loss': 's2sd', 'loss_s2sd_source': 'hyperbolic'}, True), ({'loss': 's2sd'}, False),
    ({'loss': 'pml:TripletMarginLoss', 'batch_mining': 'none'}, False),
])
def test_the_files_of_the_losses_tell_whether_they_have_a_distance(flags, expected, opt, monkeypatch):
    """A library that is not installed is none of evaluation's business."""
    monkeypatch.setitem(sys.modules, 'pytorch_metric_learning', None)
    assert criteria.has_own_distance(opt(superclasses=None, **flags)) == expected


@pytest.mark.parametrize('mined, sentence', [
    (None, 'it returned None'), ({'a': 1}, 'it returned dict'), ([1, 2, 3], 'it returned list of 3, the first int'),
    (torch.rand(4, 3), r'it returned Tensor of float32 \[4, 3\]'),
    (torch.zeros(4, 2).long(), r'it returned Tensor of int64 \[4, 2\]'),
    (torch.eye(8).bool(), r'it returned Tensor of bool \[8, 8\]'),
    ((torch.eye(3).bool(),) * 2, r'it returned tuple of 2, the first Tensor of bool \[3, 3\]'),
    ([(0, 1, -1)], 'it returned list of 1, the first tuple of 3'),
    (([0], [[1, -1]], [[4, 5]]), 'it returned tuple of 3, the first list of 1'),
])
def test_a_miner_that_returns_something_else_is_named(mined, sentence, opt):
    criterion = criteria.select(opt(loss='triplet', batch_mining='random'), lambda batch, labels: mined)
    with pytest.raises(UserError, match=f'--batch_mining random: {sentence}.*; expected triplets'):
        criterion(torch.rand(8, 4), torch.arange(8) // 2)


def test_columns_and_lists_of_lists_are_told_apart():
    batch = torch.rand(8, 2)
    columns = tuple([*torch.tensor(numbers)] for numbers in ([0, 0], [1, 2], [3, 4]))      # lists of 0-d tensors
    assert checked(columns, batch).tolist() == [[0, 1, 3], [0, 2, 4]]
    positives, negatives = checked(([0, 2], [1, 3], np.array([[4, 5], [6, 7]])), batch)
    assert positives.nonzero().tolist() == [[0, 1], [2, 3]]
    assert negatives.nonzero().tolist() == [[0, 4], [0, 5], [2, 6], [2, 7]]
    assert not any(mask.any() for mask in checked(([], [], []), batch))                    # a batch without pairs
