"""Cascaded embeddings and adversarial negatives: against loops, and where their gradients go."""
import copy
import math

import pytest
import torch

import batch_mining
import criteria
from criteria import cascade
from criteria.cascade import Cascade, hardest_pairs
from criteria.deep_adversarial import DeepAdversarial
from tests.criteria import references
from tests.criteria.cases import F64, PUBLISHED
from utilities.errors import UserError

CASCADE = {'cascade': [1, 2], 'cascade_fractions': [.5, .2], 'embed_dim': 12, 'n_classes': 4}
DAML = {'daml': True, 'daml_layers': [5], 'n_features': 6, 'n_classes': 4, 'embed_dim': 4}
OF_TRIPLETS = [name for name, module in PUBLISHED.items()
               if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None]


def select(namespace, miner=None):
    torch.manual_seed(0)
    return criteria.select(namespace, miner or batch_mining.select(namespace)).double()


def batch_of(dim, labels=(0, 0, 0, 1, 1, 2, 2, 3)):
    """Embeddings, whose parts of 4 numbers have norm 1, and labels."""
    rows = torch.randn(len(labels), dim // 4, 4, dtype=F64, generator=torch.Generator().manual_seed(dim))
    return torch.nn.functional.normalize(rows, dim=2).flatten(1).requires_grad_(), torch.tensor(labels)


def reference(name, namespace, x, labels, mined, *parameters):
    labels = labels.tolist()
    more = [mined]
    if name == 'quadruplet':
        triplets = torch.tensor(mined, dtype=torch.int64).reshape(-1, 3)
        more.append(criteria.quadruplet.sample_fourths(torch.tensor(labels), triplets).tolist())
    return getattr(references, name)(x, labels, namespace, *more, *parameters)


def assert_equal(found, expected, wanted):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    pairs = zip(*(torch.autograd.grad(total, wanted, allow_unused=True) for total in (found, expected)), strict=True)
    for one, other in pairs:
        one, other = (torch.zeros(()) if part is None else part for part in (one, other))
        torch.testing.assert_close(one.expand_as(other) if one.dim() == 0 else one,
                                   other.expand_as(one) if other.dim() == 0 else other, rtol=0, atol=1e-9)


# Cascaded embeddings

def hardest(x, tuples, n):
    """The n hardest triplets, or of two lists of pairs the n[0] farthest positive and n[1] nearest negative ones."""
    def squared(i, j):
        return float(sum((x[i] - x[j]) ** 2))

    if isinstance(tuples, tuple):
        pull, push = tuples
        return (sorted(pull, key=lambda pair: -squared(*pair))[:n[0]],
                sorted(push, key=lambda pair: squared(*pair))[:n[1]])
    return sorted(sorted(tuples, key=lambda t: squared(t[0], t[2]) - squared(t[0], t[1]))[:n], key=tuples.index)


@pytest.mark.parametrize('miner', ['all', 'semihard'])
@pytest.mark.parametrize('loss', OF_TRIPLETS)
def test_a_cascade_is_the_sum_of_the_losses_of_what_each_level_leaves_to_the_next(loss, miner, opt):
    namespace = opt(loss=loss, batch_mining=miner, **CASCADE)
    batch, labels = batch_of(12)
    criterion, first = select(namespace), batch[:, :4].detach()
    torch.manual_seed(1)
    mined = batch_mining.select(namespace)(first, labels)
    if isinstance(mined, tuple):
        mined = tuple([tuple(pair) for pair in mask.nonzero().tolist()] for mask in mined)
        mined = mined if loss == 'contrastive' else references.triplets_of(mined)
    else:
        mined = [tuple(triple) for triple in mined.tolist()]
    sizes = [len(part) for part in mined] if isinstance(mined, tuple) else len(mined)
    expected, tuples = 0, mined
    for level, part in enumerate(batch.split(4, dim=1)):
        expected = expected + reference(loss, namespace, part, labels, tuples, *criterion.levels[level].parameters())
        if level < 2:
            share = namespace.cascade_fractions[level]
            n = [math.ceil(share * size) for size in sizes] if isinstance(sizes, list) else math.ceil(share * sizes)
            tuples = hardest(part.detach(), tuples, n)
    torch.manual_seed(1)
    found = criterion(batch=batch, labels=labels)
    assert_equal(found, expected, [batch, *criterion.parameters()])
    assert found == sum(criterion.log[f'level_{number}_loss'] for number in (1, 2, 3))


@pytest.mark.parametrize('loss, miner', [('MultiSimilarityLoss', 'MultiSimilarityMiner'),
                                         ('TripletMarginLoss', 'TripletMarginMiner')])
def test_a_cascade_of_a_loss_of_the_library_is_its_sum_over_the_levels(loss, miner, opt):
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    miners = pytest.importorskip('pytorch_metric_learning.miners')
    batch, labels = batch_of(12)
    levels = batch.split(4, dim=1)
    mined = getattr(miners, miner)()(levels[0], labels)
    expected = sum(getattr(losses, loss)()(level, labels, mined) for level in levels)
    flags = CASCADE | {'cascade_fractions': [1, 1], 'loss': f'pml:{loss}'}
    assert_equal(select(opt(**flags, batch_mining=f'pml:{miner}'))(batch=batch, labels=labels), expected, [batch])
    flags |= {'loss': f'triplet+pml:{loss}', 'batch_mining': 'all+none'}
    assert [type(part).__name__ for part in select(opt(**flags)).criteria] == ['Cascade', 'PmlCriterion']


def test_pairs_that_a_miner_lists_twice_are_triplets_of_a_cascade(opt):
    class Twice:
        def __call__(self, batch, labels):
            anchors, positives, negatives = torch.tensor([[0, 1, 3], [1, 2, 4], [3, 5, 0]])
            return anchors.repeat(2), positives.repeat(2), anchors, negatives

    batch, labels = batch_of(12)
    flags = CASCADE | {'cascade_fractions': [1, 1], 'loss': 'contrastive', 'loss_contrastive_active_only': True}
    found = select(opt(**flags), Twice())(batch=batch, labels=labels)
    levels = [select(opt(**flags | {'cascade': []}), Twice())(batch=level, labels=labels)
              for level in batch.split(4, dim=1)]
    assert found.isfinite() and found.item() == pytest.approx(sum(levels).item())


def test_pairs_that_are_symmetric_and_ties_keep_their_number():
    """Of duplicates, all distances are equal; the number of pairs is the smallest that is not below the fraction."""
    labels = torch.tensor([0, 0, 1, 1])
    same = labels[:, None] == labels
    positives = same ^ torch.eye(4, dtype=torch.bool)
    for share, counts in ((1, [4, 8]), (.5, [2, 4]), (.3, [2, 3]), (0, [0, 0])):
        masks = hardest_pairs(torch.ones(4, 2), positives, ~same, share * positives.sum(), share * (~same).sum())
        assert [int(mask.sum()) for mask in masks] == counts
        assert not (masks[0] & ~positives).any() and not (masks[1] & same).any()


@pytest.mark.parametrize('method, loss, labels', [
    (CASCADE, 'contrastive', (0, 1, 2, 3)), (CASCADE, 'triplet', (0, 0, 0, 0)), (CASCADE, 'margin', (0, 1, 2, 3)),
    (DAML, 'contrastive', (0, 0, 0, 0)), (DAML, 'triplet', (0, 1, 2, 3)), (DAML, 'margin', (0, 0, 0, 0))])
def test_a_batch_without_triplets_is_a_differentiable_zero(method, loss, labels, opt):
    dim = method['embed_dim']
    batch, labels = batch_of(dim, labels)
    f_embed = torch.nn.Linear(6, 4).double()
    total = select(opt(loss=loss, batch_mining='distance', **method))(
        batch=batch, labels=labels, batch_features=torch.randn(4, 6, dtype=F64), f_embed=f_embed)
    total.backward()
    assert total == 0 and not batch.grad.any()


def test_each_level_has_its_own_parameters_rates_memory_and_direction(opt):
    flags = {'loss': 'margin+softmax', 'batch_mining': 'distance+none', 'dr_weight': .1, **CASCADE}
    criterion = select(opt(**flags))
    groups = {group['name']: group for group in criterion.parameter_groups()}
    assert {name: group['lr'] for name, group in groups.items()} == {
        'criterion_level_1': .0005, 'criterion_level_2': .0005, 'criterion_level_3': .0005, 'criterion_softmax': .00001}
    assert {id(p) for group in groups.values() for p in group['params']} == {id(p) for p in criterion.parameters()}
    cascade, softmax = criterion.criteria
    assert isinstance(cascade, Cascade) and softmax.weights.shape == (4, 12)
    memory = select(opt(loss='contrastive', batch_mining='all', xbm_size=200, **CASCADE))
    assert [level.embeddings.shape for level in memory.levels] == [(200, 4)] * 3


@pytest.mark.parametrize('method', [CASCADE, DAML])
def test_losses_of_pairs_in_a_sum_get_the_whole_embedding(method, opt):
    flags = {'loss': 'triplet+npair', 'batch_mining': 'semihard+npair'}
    outer, npair = select(opt(**flags, **method)).criteria
    assert isinstance(outer, Cascade if method is CASCADE else DeepAdversarial)
    assert isinstance(npair, criteria.npair.Criterion)


# Adversarial negatives

def generated(parameters, rows):
    """The layers of weights and biases, with ReLU between them, one row after the other."""
    made, parameters = [], list(parameters)
    for row in rows:
        for number in range(0, len(parameters), 2):
            row = parameters[number] @ row + parameters[number + 1]
            row = row.clamp(min=0) if number + 2 < len(parameters) else row
        made.append(row)
    return made


@pytest.mark.parametrize('loss, flags', [*((loss, {}) for loss in OF_TRIPLETS if loss != 'quadruplet'), (
    'triplet', {'daml_weight': .3, 'daml_real_weight': 0., 'daml_reg_weight': 2., 'daml_adv_weight': 7.,
                'daml_margin': -.3, 'daml_layers': [5, 3]}), ('margin', {'arch': 'conv4', 'daml_layers': []})])
def test_synthetic_negatives_against_loops(loss, flags, opt):
    namespace = opt(loss=loss, batch_mining='all', **DAML | flags)
    normalize = '_normalize' in namespace.arch
    criterion, layer = select(namespace), torch.nn.Linear(6, 4).double()
    features = torch.randn(8, 6, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels, f_embed = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3]), copy.deepcopy(layer)

    def embedded(rows, layer):
        rows = [layer.weight @ row + layer.bias for row in rows]
        return references.unit(rows) if normalize else rows

    triplets = references.all_triplets(labels.tolist())
    constants = [row.detach() for row in features]
    synthetic = generated(criterion.generator.parameters(), [torch.cat([constants[i] for i in t]) for t in triplets])
    batch = torch.stack(embedded(list(features), layer))
    fixed = copy.deepcopy(layer).requires_grad_(False)
    made, x = embedded(synthetic, fixed), batch.detach()
    hard, reg, adv = 0, 0, 0
    for (a, p, n), row, s in zip(triplets, synthetic, made, strict=True):
        hard, reg = hard + ((row - constants[a]) ** 2).sum(), reg + ((row - constants[n]) ** 2).sum()
        d_as, d_ap = (((x[a] - other) ** 2).sum() for other in (s, x[p]))
        adv = adv + (d_as - d_ap - namespace.daml_margin).clamp(min=0)
    objective = (hard + namespace.daml_reg_weight * reg + namespace.daml_adv_weight * adv) / len(triplets)
    more = embedded([row.detach() for row in synthetic], layer)
    longer = torch.stack([*batch, *more])
    replaced = [(a, p, len(batch) + number) for number, (a, p, _) in enumerate(triplets)]
    all_labels = torch.tensor([*labels.tolist(), *(int(labels[n]) for _, _, n in triplets)])
    own = list(criterion.criterion.parameters())
    expected = (namespace.daml_real_weight * reference(loss, namespace, batch, labels, triplets, *own)
                + namespace.daml_weight * reference(loss, namespace, longer, all_labels, replaced, *own) + objective)

    value = torch.nn.functional.normalize(f_embed(features), dim=1) if normalize else f_embed(features)
    found = criterion(batch=value, labels=labels, batch_features=features, f_embed=f_embed)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    wanted = [features, *criterion.parameters()]
    one = torch.autograd.grad(found, [*wanted, *f_embed.parameters()], allow_unused=True)
    other = torch.autograd.grad(expected, [*wanted, *layer.parameters()], allow_unused=True)
    for first, second in zip(one, other, strict=True):
        assert (first is None) == (second is None)
        if first is not None:
            torch.testing.assert_close(first, second, rtol=0, atol=1e-8)


def test_before_its_delay_the_network_has_its_own_loss(opt):
    flags = {'loss': 'triplet', 'batch_mining': 'all', **DAML, 'daml_delay': 2, 'daml_real_weight': 0.}
    batch, labels = batch_of(4)
    arguments = {'batch': batch, 'labels': labels, 'batch_features': torch.randn(8, 6, dtype=F64),
                 'f_embed': torch.nn.Linear(6, 4).double()}
    criterion, plain = select(opt(**flags)), select(opt(loss='triplet', batch_mining='all', n_classes=4))
    expected, = torch.autograd.grad(plain(batch=batch, labels=labels), batch)
    for _ in range(2):
        found, = torch.autograd.grad(criterion(**arguments), batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert 'synthetic_loss' not in criterion.log
    found, = torch.autograd.grad(criterion(**arguments), batch)
    assert not torch.allclose(found, expected) and 'synthetic_loss' in criterion.log


def test_the_generator_has_a_group_and_a_rate_of_its_own_beside_those_of_the_losses(opt):
    for rate, expected in ((-1., .01), (.2, .2)):
        criterion = select(opt(loss='margin+softmax', batch_mining='distance+none', lr=.01, daml_lr=rate, **DAML))
        groups = {group['name']: group for group in criterion.parameter_groups()}
        assert {name: group['lr'] for name, group in groups.items()} == {
            'criterion_generator': expected, 'criterion_margin': .0005, 'criterion_softmax': .00001}
        assert {id(p) for group in groups.values() for p in group['params']} == {id(p) for p in criterion.parameters()}
        assert isinstance(criterion.criteria[0], DeepAdversarial)


# Both

@pytest.mark.parametrize('flags, sentence', [
    ({'loss': 'proxyanchor', 'batch_mining': 'none'},
     'does not work with --loss proxyanchor: it is for losses .*, such as triplet, margin or contrastive$'),
    ({'loss': 'npair+angular', 'batch_mining': 'npair'}, 'does not work with --loss npair.angular'),
    ({'loss': 's2sd', 'loss_s2sd_source': 'margin'}, 'does not work with --loss s2sd'),
    ({'loss': 'triplet', 'batch_mining': 'none'}, '--loss triplet needs a miner'),
    ({'loss': 'pml:TripletMarginLoss', 'batch_mining': 'none'}, 'does not work with --loss pml:TripletMarginLoss'),
])
@pytest.mark.parametrize('method', [CASCADE, DAML])
def test_losses_without_triplets_are_refused(method, flags, sentence, opt):
    if flags['loss'].startswith('pml'):
        pytest.importorskip('pytorch_metric_learning')
    namespace = opt(**{'batch_mining': 'distance', **method, **flags})
    with pytest.raises(UserError, match=sentence):
        criteria.select(namespace, batch_mining.select(namespace))


def test_a_fraction_of_tuples_that_is_a_whole_number_is_not_rounded_up():
    batch = torch.randn(101, 2)
    triplets = torch.stack([torch.arange(100), torch.arange(1, 101), torch.zeros(100).long()], dim=1)
    assert len(cascade.hardest(batch, triplets, .07, triplets)) == 7 < .07 * 100
    mask = torch.zeros(101, 101, dtype=torch.bool)
    mask[:25, 50] = True
    assert [int(part.sum()) for part in cascade.hardest(batch, (mask, mask), .6, (mask, mask))] == [15, 15]
