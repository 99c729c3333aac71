"""Every loss and its variants, from flags to value and gradients, against the formula written with loops."""
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import criteria
from criteria import histogram, quadruplet
from tests.criteria import cases, references

SHAPES = {
    'three a class, unordered': [2, 0, 1, 0, 2, 1, 1, 0, 2],
    'unbalanced': [0, 0, 0, 0, 0, 1, 1, 3, 3, 3],
    'lone classes': [0, 0, 0, 1, 3, 2, 2],
    'duplicates, unordered': [3, 1, 3, 0, 1, 1, 0, 3, 2],
    'duplicates, few triplets': [0, 0, 1, 1],
    'one class': [1, 1, 1],
    'all lone': [0, 1, 2],
    'one sample': [2],
    'sixteen a class': [0] * 16 + [1] * 3,
}
BOTH = [loss for loss, module in criteria.CRITERIA.items()
        if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None and cases.takes_masks(loss)]
WAYS = [(case, way) for case in cases.CASES for way in
        (('all', 'list') if case[0] in BOTH else ('list',) if criteria.CRITERIA[case[0]].REQUIRES_BATCHMINER
         and criteria.CRITERIA[case[0]].ALLOWED_MINING_OPS is None else ('own',))]


def batch_of(shape):
    """Random points of random norms; among duplicates are samples of one class and of two."""
    generator = torch.Generator().manual_seed(len(shape))
    labels = torch.tensor(SHAPES[shape])
    batch = torch.nn.functional.normalize(torch.randn(len(labels), 4, dtype=cases.F64, generator=generator), dim=1)
    batch = batch * (.5 + 2.5 * torch.rand(len(labels), 1, dtype=cases.F64, generator=generator))
    if shape.startswith('duplicates'):
        batch[2], batch[3] = batch[0], batch[0]
    return batch.requires_grad_(), labels


def randomise(criterion):
    """Trained parameters around the first ones; betas stay distances."""
    generator = torch.Generator().manual_seed(1)
    for parameter in criterion.parameters():
        noise = torch.randn(parameter.shape, dtype=cases.F64, generator=generator)
        parameter.data = noise if parameter.dim() > 1 else parameter.data + .3 * noise


def shapes_for(loss, flags):
    """
    Two for the variants; sixteen of a class are for the 16 of recall@16. Of few triplets the distances come from
    differences, of many from one matrix.
    """
    if flags:
        return 'lone classes', 'duplicates, unordered'
    return [shape for shape in SHAPES if shape != 'sixteen a class' or loss == 'recallatk']


@pytest.mark.parametrize('case, way', WAYS, ids=lambda part: part if isinstance(part, str) else cases.named(part))
def test_value_and_gradients_are_those_of_the_formula(case, way, opt):
    namespace = cases.flags_of(opt, *case)
    criterion, recorder = cases.build(namespace, cases.every_triple if way == 'list' else None)
    randomise(criterion)
    for shape in shapes_for(*case):
        batch, labels = batch_of(shape)
        value = cases.fast(criterion, batch, labels)
        expected = cases.slow(criterion, recorder, namespace, batch, labels)
        found, wanted = ([loss, *cases.gradients(loss, batch, criterion)] for loss in (value, expected))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, at=shape: f'{at}: {text}')


def assert_same(value, expected, batch, tolerance=1e-12):
    """Value and gradient."""
    torch.testing.assert_close(value, expected, rtol=0, atol=tolerance)
    found, wanted = (torch.autograd.grad(loss, batch, retain_graph=True)[0] for loss in (value, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


def test_a_fourth_sample_is_of_neither_class_and_uniform_or_there_is_none():
    labels = torch.tensor([2, 0, 5, 0, 2, 9, 5, 9, 9])
    triplets = torch.tensor(references.all_triplets(labels.tolist())).repeat_interleave(400, dim=0)
    torch.manual_seed(0)
    fourths = quadruplet.sample_fourths(labels, triplets)
    assert (labels[fourths] != labels[triplets[:, 0]]).all() and (labels[fourths] != labels[triplets[:, 2]]).all()
    chosen = fourths[(labels[triplets[:, 0]] == 0) & (labels[triplets[:, 2]] == 9)]
    counts = chosen.bincount(minlength=9)
    assert counts.nonzero()[:, 0].tolist() == [0, 2, 4, 6]
    expected = len(chosen) / 4
    assert ((counts[counts > 0] - expected) ** 2 / expected).sum() < 16.3          # χ² with 3 degrees, p = .001
    two_classes = torch.tensor([0, 1, 0])
    assert quadruplet.sample_fourths(two_classes, torch.tensor([[0, 2, 1]])).tolist() == [-1]


def test_a_fourth_sample_is_of_another_class_where_anchor_and_negative_are_of_one():
    labels = torch.tensor([3, 0, 1, 2, 0, 3, 1, 2])
    torch.manual_seed(0)
    for tuples in ([1, 1, 4], [4, 1, 1], [0, 0, 5], [2, 6, 2]):                  # of the first, last and a middle class
        counts = quadruplet.sample_fourths(labels, torch.tensor([tuples] * 3000)).bincount(minlength=8)
        assert counts[labels == labels[tuples[0]]].tolist() == [0, 0]
        others = counts[labels != labels[tuples[0]]]
        assert ((others - 500.) ** 2 / 500).sum() < 20.6                                # χ² with 5 degrees, p = .001
    assert quadruplet.sample_fourths(torch.tensor([0, 0, 1]), torch.tensor([[0, 0, 1], [1, 0, 0]])).tolist() == [2, 2]


def test_the_histogram_of_a_large_batch_loses_no_digits():
    generator = torch.Generator().manual_seed(0)
    batch, labels = torch.randn(1500, 8, generator=generator), torch.arange(1500) % 40
    wide = histogram.histogram_loss(batch.double(), labels, n_nodes=11)
    assert histogram.histogram_loss(batch, labels, n_nodes=11).item() == pytest.approx(wide.item(), rel=3e-7)


@pytest.mark.parametrize('c', [.1, 1.])
def test_hyperbolic_ranking_embeddings_rank_by_the_distance_of_the_loss(c, opt):
    batch, _ = batch_of('unbalanced')
    criterion, _ = cases.build(cases.flags_of(opt, 'hyperbolic', {'c': c}))
    queries, gallery = criterion.ranking_embeddings(batch.float())
    points = [references.to_ball(row, c, 2.3) for row in batch.detach()]
    distances = torch.tensor(references.table(lambda z, w: references.ball_distance(z, w, c), points))
    torch.testing.assert_close(queries @ gallery.T, -torch.cosh(c ** .5 * distances), rtol=1e-5, atol=1e-5)
    with FakeTensorMode():                                                      # of an Apple GPU, which has no float64
        queries, gallery = criterion.ranking_embeddings(torch.ones(3, 4, device='mps'))
    assert queries.device == gallery.device == torch.device('cpu') and queries.dtype == gallery.dtype == torch.float64


@pytest.mark.parametrize('case', [case for case in cases.CASES if case[0] in cases.naming('references')],
                         ids=cases.named)
def test_losses_of_a_batch_and_references(case, opt):
    """References hold the batch itself, at other places, a duplicate of a sample, and classes that the batch lacks."""
    namespace = cases.flags_of(opt, *case)
    criterion, _ = cases.build(namespace)
    batch, labels = batch_of('lone classes')
    own = torch.tensor([4, 2, 0, 8, 3, 5, 6])
    memory = torch.randn(11, 4, dtype=cases.F64, generator=torch.Generator().manual_seed(2))
    memory[own] = batch.detach()
    memory[1] = memory[4]
    memory_labels = torch.tensor([9, 0, 9, 9, 9, 9, 9, 1, 9, 3, 0])
    memory_labels[own] = labels
    value = cases.fast(criterion, batch, labels, references=memory, reference_labels=memory_labels, own=own)
    if case[0] == 'contrastive':
        pairs = [(i, j) for i in range(len(labels)) for j in range(len(memory)) if j != own[i]]
        mined = tuple([(i, j) for i, j in pairs if (labels[i] == memory_labels[j]) == same] for same in (True, False))
        expected = references.contrastive(batch, labels.tolist(), namespace, mined, memory)
    else:
        expected = getattr(references, case[0])(batch, labels.tolist(), namespace, memory, memory_labels.tolist(),
                                                own.tolist())
    assert_same(value, expected, batch, 1e-8)                  # softplus leaves out e^-20 = 2e-9
