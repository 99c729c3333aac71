"""Every loss and its variants, from flags to value and gradients, against the formula written with loops."""
import pytest
import torch

import criteria
from criteria import hyperbolic, margin, multisimilarity, quadruplet, triplet
from tests.criteria import cases, references

SHAPES = {
    'two a class': [0, 0, 1, 1, 2, 2, 3, 3],
    'three a class, unordered': [2, 0, 1, 0, 2, 1, 1, 0, 2],
    'unbalanced': [0, 0, 0, 0, 0, 1, 1, 3, 3, 3],
    'sixteen a class': [0] * 16 + [1] * 3,
    'lone classes': [0, 0, 0, 1, 3, 2, 2],
    'one class': [1, 1, 1],
    'all lone': [0, 1, 2],
    'one sample': [2],
    'duplicates': [0, 0, 0, 1, 1, 2, 3],
    'duplicates, unordered': [3, 1, 3, 0, 1, 1, 0, 3],
}
BOTH = [loss for loss, module in criteria.CRITERIA.items()
        if module.REQUIRES_BATCHMINER and module.ALLOWED_MINING_OPS is None and getattr(module, 'ACCEPTS_MASKS', False)]
FEW = ('unbalanced', 'lone classes', 'one class', 'duplicates')            # of the variants
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
    """Trained parameters around the first ones; boundaries stay distances."""
    generator = torch.Generator().manual_seed(1)
    for parameter in criterion.parameters():
        noise = torch.randn(parameter.shape, dtype=cases.F64, generator=generator)
        parameter.data = noise if parameter.dim() > 1 else parameter.data + .3 * noise


@pytest.mark.parametrize('case, way, shape', [
    pytest.param(case, way, shape, id=f'{cases.named(case)}, {way}, {shape}')
    for case, way in WAYS for shape in (FEW if case[1] else SHAPES)])
def test_value_and_gradients_are_those_of_the_formula(case, way, shape, opt):
    namespace = cases.flags_of(opt, *case)
    criterion, recorder = cases.build(namespace, cases.every_triple if way == 'list' else None)
    randomise(criterion)
    batch, labels = batch_of(shape)
    value = cases.fast(criterion, batch, labels)
    expected = cases.slow(criterion, recorder, namespace, batch, labels)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    for found, wanted in zip(*(cases.gradients(loss, batch, criterion) for loss in (value, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
