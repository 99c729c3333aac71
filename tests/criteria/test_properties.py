"""What holds for every loss and any batch: order and names do not matter, nothing is NaN, half precision is upcast."""
import copy
import itertools
import re

import pytest
import torch

import criteria
from tests.criteria import cases
from tests.criteria.test_docs import TEXT
from tests.helpers import GPU

DEVICES = ['cpu', pytest.param(GPU, marks=pytest.mark.gpu, id='gpu')]
# They or their miners sample at random; with these labels there is only one choice
DETERMINED = {'npair': [0, 0, 1, 1, 2, 2], 'angular': [0, 0, 1, 1, 2, 2], 'quadruplet': [0, 0, 1, 2]}
# As docs/losses.md says; antico does not normalise in one of its types only
AS_THEY_ARE = re.search(r'change their values, except:\n\n(.*?)\n\n', TEXT, re.DOTALL)[1].replace('antico', '')
NORMALISING = [name for name, module in cases.PUBLISHED.items()
               if not module.REQUIRES_BATCHMINER and name not in re.findall(r'\w+', AS_THEY_ARE)]
MINED = [loss for loss, module in criteria.CRITERIA.items()
         if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None]
# Parameters and buffers with a row for each class; in hier, not of classes
OF_CLASSES = ['weights', 'biases', 'proxies', 'centers', 'centroids', 'beta', 'superclasses', 'class_counts']


@pytest.fixture(params=criteria.CRITERIA)
def loss(request):
    return request.param


def random(seed, *shape):
    return torch.randn(*shape, dtype=cases.F64, generator=torch.Generator().manual_seed(seed))


def random_labels(seed):
    """1 to 12 of up to 4 classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, (int(torch.randint(1, 13, (), generator=generator)),), generator=generator)


def evaluate(criterion, batch, labels, autocast=None, **inputs):
    """Value and gradients; the value under autocast to a type, where one is given."""
    batch = batch.detach().requires_grad_()
    with torch.autocast(batch.device.type, dtype=autocast, enabled=autocast is not None):
        value = cases.fast(criterion, batch, labels, **inputs)
    return value.detach(), *cases.gradients(value, batch, criterion)


def all_equal(found, expected, rtol=1e-7, atol=1e-8):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


def assert_the_order_does_not_matter(loss, criterion, batch, labels, seed):
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if loss == 'hyperbolic':               # the samples of a class meet in the order of the batch: that one is kept
        place = order.argsort()
        for label in labels.unique():
            own = labels == label
            place[own] = place[own].sort().values
        order = place.argsort()
    value, gradient, *others = evaluate(criterion, batch, labels)
    all_equal(evaluate(criterion, batch[order], labels[order]), [value, gradient[order], *others])


def assert_names_do_not_matter(loss, criterion, batch, labels, seed):
    value, gradient, *others = evaluate(criterion, batch, labels)
    if others or loss == 'center':         # names are rows of parameters and buffers, which move along
        names = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
        criterion, rows, moved = copy.deepcopy(criterion), names.argsort(), set(OF_CLASSES if loss != 'hier' else ())
        for name, tensor in (*criterion.named_parameters(), *criterion.named_buffers()):
            tensor.data = tensor.data[rows] if name in moved else tensor.data
        others = [other[rows] if name in moved else other
                  for (name, _), other in zip(criterion.named_parameters(), others, strict=True)]
    else:
        names = torch.tensor([2 ** 40 - 1, 5, 0, 77]).roll(seed)
    all_equal(evaluate(criterion, batch, names[labels]), [value, gradient, *others])


def test_neither_the_order_of_the_batch_nor_the_names_of_the_classes_matter(loss, opt):
    criterion, _ = cases.build(cases.flags_of(opt, loss, {}))
    for seed in range(5):
        labels = torch.tensor(DETERMINED[loss]) if loss in DETERMINED else random_labels(seed)
        batch = 1.5 * random(seed, len(labels), 4)
        if loss != 'hier':                                                       # it samples triplets at random
            assert_the_order_does_not_matter(loss, criterion, batch, labels, seed)
        assert_names_do_not_matter(loss, criterion, batch, labels, seed)


def degenerate(kind, n, seed):
    batch = torch.nn.functional.normalize(random(seed, n, 4), dim=1)
    if kind == 'duplicates':
        batch[n // 2:] = batch[:n - n // 2].clone()
    elif kind == 'identical':
        batch[:] = batch[0]
    elif kind == 'opposite':
        batch[1::2] = -batch[:n // 2]
    elif kind == 'a zero vector':
        batch[0] = 0
    elif kind == 'zeros':
        batch[:] = 0
    elif kind == 'equal components':
        batch[::2] = .5
    elif kind == 'axes':
        batch = torch.eye(4, dtype=cases.F64)[torch.arange(n) % 4]
    return batch


KINDS = ['random', 'duplicates', 'identical', 'opposite', 'a zero vector', 'zeros', 'equal components', 'axes']


@pytest.mark.parametrize('device', DEVICES)
def test_nothing_is_nan_or_infinite(loss, device, opt):
    """In float32, whatever the labels, for points and class weights that coincide, are opposite, zero, tiny or huge."""
    criterion = cases.build(cases.flags_of(opt, loss, {}))[0].float().to(device)
    for seed, (scale, kind) in enumerate(itertools.product([1e-6, 1., 1e4], KINDS)):
        labels, vectors = random_labels(seed).to(device), KINDS[(seed + seed // 8) % 8]
        for name, parameter in criterion.named_parameters():
            if parameter.dim() > 1 and name in OF_CLASSES:              # not the weights of MLPs
                rows = degenerate(vectors, parameter.numel() // 4, seed)
                parameter.data = rows.reshape(parameter.shape).float().to(device)
        for part in evaluate(criterion, (scale * degenerate(kind, len(labels), seed)).float().to(device), labels):
            assert part.isfinite().all(), (scale, kind, vectors, labels)


@pytest.mark.parametrize('case', [case for case in cases.CASES if case[1]], ids=cases.named)
def test_nothing_is_nan_with_other_flags(case, opt):
    criterion, several = cases.build(cases.flags_of(opt, *case))[0].float(), [0, 0, 1, 1, 2, 2]
    for kind, labels in (('duplicates', several), ('opposite', several), ('zeros', several),
                         ('equal components', several), ('duplicates', [1, 1, 1]), ('opposite', [0, 1, 2]),
                         ('zeros', [3])):
        for part in evaluate(criterion, degenerate(kind, len(labels), 0).float(), torch.tensor(labels)):
            assert part.isfinite().all(), (kind, labels)


@pytest.mark.parametrize('case', cases.CASES, ids=cases.named)
def test_embeddings_that_are_not_finite_show_in_the_value(case, opt):
    """It is no number that looks as usual, and no error about indices."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    for miner in (None, cases.every_triple):
        for value in (torch.nan, torch.inf):
            batch = random(0, 6, 4)
            batch[1, 2] = value
            criterion, _ = cases.build(cases.flags_of(opt, *case), miner if case[0] in MINED else None)
            assert not cases.fast(criterion, batch, labels).isfinite()


@pytest.mark.parametrize('loss', [loss for loss, module in criteria.CRITERIA.items() if module.REQUIRES_OPTIM
                                  and loss != 'margin'])
def test_nothing_is_nan_with_one_class_to_train_on(loss, opt):
    criterion = cases.build(cases.flags_of(opt, loss, {}, n_classes=1))[0]
    value, *gradients = evaluate(criterion, random(0, 3, 4), torch.tensor([0, 0, 0]))
    assert value.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize('loss', cases.PUBLISHED)
def test_losses_do_not_see_norms_if_they_normalise(loss, opt):
    """Others do, but for those of ratios."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    batch = random(1, len(labels), 4)
    criterion, _ = cases.build(cases.flags_of(opt, loss, {}))
    value, gradient, *others = evaluate(criterion, batch, labels, batch_features=batch)
    if loss in NORMALISING:
        norms = torch.tensor([1e-6, 1e4, 1, 3, .1, 1e2, 1e-3], dtype=cases.F64)[:, None]
        found = evaluate(criterion, norms * batch, labels, batch_features=batch)
        all_equal(found, [value, gradient / norms, *others], rtol=1e-6, atol=1e-7)
    elif loss not in ('snr', 'snr_contrastive'):
        assert abs(evaluate(criterion, 1.2 * batch, labels)[0] - value) > 1e-3


@pytest.mark.parametrize('device', DEVICES)
def test_default_flags_give_finite_gradients_a_seed_fixes_the_value_and_half_precision_is_upcast(loss, device, opt):
    """The values of half inputs, and of float inputs under autocast, are those of the same numbers in float32."""
    criterion = cases.build(cases.flags_of(opt, loss, {}, n_classes=8, embed_dim=16))[0].float().to(device)
    rounding = 0 if device == 'cpu' else 1e-5                          # a GPU adds in another order each time
    labels = torch.arange(8, device=device).repeat_interleave(2)
    whole = torch.nn.functional.normalize(random(0, 16, 16), dim=1).float().to(device)
    value, *gradients = evaluate(criterion, whole, labels)
    assert value.shape == () and value.dtype == torch.float32 and value.isfinite()
    assert all(gradient.isfinite().all() and gradient.abs().sum() > 0 for gradient in gradients)
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with without_gradients():
            all_equal([cases.fast(criterion, whole, labels)], [value], rtol=rounding, atol=0)
    if loss not in cases.PUBLISHED:                     # the training step gives a loss of somebody's own float32
        return
    for dtype in (torch.float16, torch.bfloat16):
        batch, cast = whole.to(dtype), torch.bfloat16 if device == 'cpu' else dtype
        expected = evaluate(criterion, batch.float(), labels)
        for given, autocast in ((batch, None), (batch.float(), cast), (batch, cast)):
            value, *gradients = found = evaluate(criterion, given, labels, autocast)
            assert value.dtype == torch.float32 and gradients[0].dtype == given.dtype and gradients[0].isfinite().all()
            all_equal([value], expected[:1], rtol=rounding, atol=0)
            tolerance = 1e-2 if given.dtype == dtype else rounding
            all_equal([part.float() for part in found], expected, rtol=tolerance, atol=tolerance)


def test_duplicates_at_many_dimensions_are_ties(opt):
    """However the products are rounded: the ranks of equal points are equal."""
    batch = torch.nn.functional.normalize(random(0, 20, 128), dim=1)
    batch[10:] = batch[:10].clone()
    labels = torch.arange(20) % 5
    for loss in ('roadmap', 'smoothap', 'recallatk', 'dr_multisimilarity', 'snr_contrastive', 'contrastive'):
        namespace = cases.flags_of(opt, loss, {'active_only': True} if loss == 'contrastive' else {})
        criterion, recorder = cases.build(namespace)
        found = cases.fast(criterion, batch, labels)
        expected = cases.slow(criterion, recorder, namespace, batch, labels)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9, msg=loss)


DISTANCES = ['triplet', 'margin', 'contrastive', 'lifted', 'liftedstructure', 'quadruplet', 'dr_triplet', 'dr_proxynca',
             'snr_contrastive', 'hyperbolic']


@pytest.mark.parametrize('offset, spread', [(1, 1e-4), (1e4, 1)])
@pytest.mark.parametrize('name', DISTANCES)
def test_distances_keep_their_digits_far_from_the_origin(name, offset, spread, opt):
    """The gradients, and the values but for what margins add, in float32 are those of float64."""
    labels = torch.arange(24) % 6
    centre = torch.nn.functional.normalize(random(9, 1, 8), dim=1)
    batch, vectors = ((offset * centre + spread * random(seed, 24, 8)).float() for seed in (0, 1))
    flags = {'l2': 0.} if name in ('lifted', 'liftedstructure') else {}
    many = (lambda batch, labels: cases.every_triple(batch, labels)) if name in ('quadruplet', 'dr_triplet') else None
    results = []
    for double in (True, False):
        criterion, _ = cases.build(cases.flags_of(opt, name, flags, n_classes=24, embed_dim=8), many)
        for parameter in criterion.parameters():
            if parameter.dim() > 1:
                parameter.data = vectors.double()
        criterion = criterion if double else criterion.float()
        results.append(evaluate(criterion, batch.double() if double else batch, labels)[:2])
    (expected, gradient), (value, found) = results
    assert gradient.abs().max() > 0
    assert (found - gradient).abs().max() < (.02 if name == 'hyperbolic' else .002) * gradient.abs().max()
    torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=0)


def test_many_triplets_give_what_few_give():
    """With more triplets than 1 / 64 of the pairs, the distances of all pairs are computed; sample 3 is a duplicate."""
    batch = random(0, 48, 4)
    batch[3] = batch[0]
    batch.requires_grad_()
    triplets = torch.tensor(cases.references.all_triplets([0, 0, 0, 0] + [1] * 44))[:36]
    few, many = (criteria.snr.snr_loss(batch, given) for given in (triplets, triplets.repeat(2, 1)))
    all_equal([many, *torch.autograd.grad(many, batch)], [few, *torch.autograd.grad(few, batch)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('spread', [1e-2, 1e-3, 1e-4])
def test_directions_keep_their_digits_far_from_the_origin(spread):
    batch = (1 + spread * random(0, 12, 8)).float()
    hardest = torch.arange(12).roll(1)
    found = criteria.dr_multisimilarity.cosines_at_anchors(batch, hardest)
    torch.testing.assert_close(found.double(), criteria.dr_multisimilarity.cosines_at_anchors(batch.double(), hardest),
                               rtol=0, atol=1e-3)


@pytest.mark.parametrize('loss', ['antico', 'center', 'contextual', 'dcl', 'liftedstructure'])
def test_labels_of_another_shape_are_refused(loss, opt):
    criterion, _ = cases.build(cases.flags_of(opt, loss, {}))
    with pytest.raises(ValueError, match=r'expected labels \[B\] for embeddings \[B, D\], not \[6, 1\]'):
        criterion(batch=random(0, 6, 4).float(), labels=torch.tensor([[0], [0], [1], [1], [2], [2]]))
