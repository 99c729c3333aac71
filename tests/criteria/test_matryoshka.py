"""--matryoshka: the sum of a loss over prefixes of the embedding, against slow references; and what it refuses."""
import shlex

import pytest
import torch
import torch.nn.functional as F

import batch_mining
import configuration
import criteria
from criteria.matryoshka import Matryoshka
from tests.criteria import references
from tests.criteria.cases import F64, SMALL, Recorder
from tests.helpers import manual_seed
from utilities.errors import UserError

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
REFUSED = {'nir': r": its parameter flow\.\S+ has the shape \[128, 12\], but \[128, 4\] for embeddings of 3 dimensions",
           's2sd': ', which takes batch_features beside the embeddings'}


def batch_of(dim=8, dtype=F64):
    rows = torch.randn(len(LABELS), dim, dtype=F64, generator=torch.Generator().manual_seed(1))
    return F.normalize(rows, dim=1).to(dtype).requires_grad_()


def flags_of(opt, loss, dims, **more):
    module = criteria.CRITERIA.get(loss)
    allowed = getattr(module, 'ALLOWED_MINING_OPS', None)
    mining = (allowed[0] if allowed else 'all') if module and module.REQUIRES_BATCHMINER else 'none'
    small = {f'loss_{loss}_{name}': value for name, value in SMALL.get(loss, {}).items() if not loss == 'nir'}
    return opt(**{'loss': loss, 'batch_mining': mining, 'matryoshka': dims, 'embed_dim': 8, 'n_classes': 4, 'bs': 8,
                  'arch': 'conv4_normalize'} | small | more)


def select(namespace, recorded=False):
    manual_seed(0)
    miner = batch_mining.select(namespace)
    miner = Recorder(miner) if recorded and miner else miner
    return criteria.select(namespace, miner), miner


def gradients(value, wanted):
    return torch.autograd.grad(value, wanted, allow_unused=True)


@pytest.mark.parametrize('arch, weights', [('conv4_normalize', [2., .5, 1.]), ('conv4', [])])
@pytest.mark.parametrize('loss, miner', [('triplet', 'semihard'), ('contrastive', 'all'), ('margin', 'distance'),
                                         ('multisimilarity', 'none'), ('proxyanchor', 'none'), ('arcface', 'none'),
                                         ('softtriplet', 'none')])
def test_value_and_gradient_are_those_of_the_references_on_slices(loss, miner, arch, weights, opt):
    namespace = flags_of(opt, loss, [2, 5, 8], batch_mining=miner, arch=arch, matryoshka_weights=weights)
    criterion, recorder = select(namespace, recorded=True)
    criterion, batch, expected = criterion.double(), batch_of(), 0
    found = criterion(batch=batch, labels=LABELS)
    shared = list(criterion.parameters())
    for dim, weight in zip((2, 5, 8), weights or [1, 1, 1], strict=True):
        part = F.normalize(batch[:, :dim], dim=1) if arch == 'conv4_normalize' and dim < 8 else batch[:, :dim]
        own = [parameter if loss == 'margin' else parameter[..., :dim] for parameter in shared]
        mined = [] if recorder is None else [recorder.last]
        if loss == 'margin' or loss == 'triplet':
            mined = [references.triplets_of(mined[0]) if isinstance(mined[0], tuple) else mined[0]]
        expected = expected + weight * getattr(references, loss)(part, LABELS.tolist(), namespace, *mined, *own)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for one, other in zip(*(gradients(value, [batch, *shared]) for value in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
    assert found.item() == pytest.approx(sum(weight * criterion.log[f'prefix_{dim}_loss'].item() for dim, weight in zip(
        (2, 5, 8), weights or [1, 1, 1], strict=True)))


def test_tuples_are_mined_once_or_for_each_prefix(opt):
    """The miner sees the whole embedding; with --matryoshka_mine_prefixes each prefix, with norm 1."""
    for mines_prefixes in (False, True):
        namespace = flags_of(opt, 'triplet', [2, 8], matryoshka_mine_prefixes=mines_prefixes)
        seen, batch = [], batch_of()

        def miner(embeddings, labels, seen=seen):
            seen.append(embeddings)
            return torch.tensor([[0, 1, 2 * len(seen)]])
        criterion = criteria.select(namespace, miner)
        found = criterion(batch=batch, labels=LABELS)
        parts, negatives = [F.normalize(batch[:, :2], dim=1), batch], [2, 4] if mines_prefixes else [2, 2]
        assert [part.shape[1] for part in seen] == ([2, 8] if mines_prefixes else [8])
        assert all(map(torch.equal, seen, parts if mines_prefixes else parts[1:]))
        expected = sum(references.triplet(part, LABELS.tolist(), namespace, [(0, 1, negative)])
                       for part, negative in zip(parts, negatives, strict=True))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize('loss', [*criteria.CRITERIA, 'torch:CrossEntropyLoss'])
def test_every_loss_is_refused_or_takes_prefixes_and_with_one_prefix_it_is_the_loss_to_the_bit(loss, opt):
    if loss in REFUSED:
        with pytest.raises(UserError, match=f'--matryoshka does not work with --loss {loss}{REFUSED[loss]}'):
            select(flags_of(opt, loss, [3, 8]))
        return
    found = []
    for dims in ([], [8], [3, 8]):
        criterion, batch = select(flags_of(opt, loss, dims))[0], batch_of(dtype=torch.float32)
        manual_seed(1)
        value = criterion(batch=batch, labels=LABELS, step=1, epoch=1, indices=torch.arange(8))
        trained = [parameter for group in criterion.parameter_groups() for parameter in group['params']
                   if parameter.requires_grad]
        assert set(trained) == {parameter for parameter in criterion.parameters() if parameter.requires_grad}
        found.append([value, *gradients(value, [batch, *trained])])
    assert all(one is other is None or torch.equal(one, other) for one, other in zip(*found[:2], strict=True))
    assert found[2][0].isfinite() and len(found[2]) == len(found[0])           # no parameters of its own
    assert found[2][1][:, :3].ne(found[0][1][:, :3]).any()


def test_the_memory_bank_of_a_prefix_and_its_direction_regularisation_are_its_own(opt):
    for loss, more in (('contrastive', {'xbm_size': 12, 'xbm_start': 0}), ('triplet', {'dr_weight': .4})):
        whole, separate = (select(flags_of(opt, loss, dims, embed_dim=dim, **more))[0]
                           for dims, dim in (([3, 8], 8), ([], 8)))
        short = select(flags_of(opt, loss, [], embed_dim=3, **more))[0]
        for shift in (0, 3):
            batch = batch_of().roll(shift, 0)
            expected = separate(batch=batch, labels=LABELS) + short(batch=F.normalize(batch[:, :3], dim=1),
                                                                     labels=LABELS)
            torch.testing.assert_close(whole(batch=batch, labels=LABELS), expected)
        names = [name for name in whole.state_dict() if 'embeddings' in name]
        assert len(names) == (2 if loss == 'contrastive' else 0)


def test_a_sum_and_its_guidance_have_the_prefixes_inside(opt):
    namespace = flags_of(opt, 'proxyanchor+supcon', [3, 8], batch_mining='none', loss_weights=[1., 2.])
    criterion = select(namespace)[0]
    criterion(batch=batch_of(dtype=torch.float32), labels=LABELS)
    assert [isinstance(part, Matryoshka) for part in criterion.criteria] == [True, True]
    assert {'proxyanchor_prefix_3_loss', 'supcon_prefix_8_loss'} <= criterion.log.keys()
    assert [len(group['params']) for group in criterion.parameter_groups()] == [1]
    assert hasattr(select(flags_of(opt, 'hyperbolic', [3, 8]))[0], 'ranking_embeddings')


def test_losses_of_the_library_share_proxies_and_other_shapes_are_refused(opt):
    pytest.importorskip('pytorch_metric_learning')
    ours, theirs = (select(flags_of(opt, name, [3, 8], loss_proxyanchor_alpha=32.))[0].double()
                    for name in ('proxyanchor', 'pml:ProxyAnchorLoss'))
    theirs.criterion.loss.proxies.data = ours.criterion.proxies.data
    torch.testing.assert_close(*(one(batch=batch_of(), labels=LABELS) for one in (ours, theirs)))
    with pytest.raises(UserError, match=r'parameter loss.W has the shape \[8, 4\], but \[3, 4\] for embeddings of 3'):
        select(flags_of(opt, 'pml:ArcFaceLoss', [3, 8]))


@pytest.mark.parametrize('flags, sentence', [
    ('--matryoshka 64 32 128', '--matryoshka 64 32 128: give dimensions in ascending order, each once, and'),
    ('--matryoshka 32 64', '--matryoshka 32 64: .* --embed_dim, 128, as the last one; other dimensions'),
    ('--matryoshka 32 128 --matryoshka_weights 1', r'--matryoshka_weights 1.0: expected one for each number .* \(2\)'),
    ('--matryoshka 32 128 --matryoshka_weights 0 0', '--matryoshka_weights 0.0 0.0: nothing would be trained'),
    ('--matryoshka 32 128 --cascade 1 --cascade_fractions 0.5', '--matryoshka does not work with --cascade'),
])
def test_flags_that_do_not_go_together_are_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        configuration.parse(shlex.split(flags))
