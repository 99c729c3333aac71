"""Losses of torch.nn on a linear classifier, --loss torch:NAME."""
import pytest
import torch

import criteria
from utilities import libraries
from utilities.errors import UserError


def random(n):
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def fine(loss, **flags):
    return {'loss': loss, 'batch_mining': 'none', 'embed_dim': 3, **flags}


@pytest.mark.parametrize('name, arguments, reference', [
    ('CrossEntropyLoss', {'label_smoothing': .1}, lambda logits, labels: -torch.stack([
        (.9 * (torch.arange(10) == label).double() + .01) @ row.log_softmax(dim=0)
        for row, label in zip(logits, labels, strict=True)]).mean()),
    ('CrossEntropyLoss', {'weight': [1, 0] * 5}, lambda logits, labels: -sum(
        row.log_softmax(dim=0)[label] * (label % 2 == 0) for row, label in zip(logits, labels, strict=True)
    ) / (labels % 2 == 0).sum()),
    ('BCEWithLogitsLoss', {}, lambda logits, labels: -torch.stack([
        (row if c == label else -row)[c].sigmoid().log()
        for row, label in zip(logits, labels, strict=True) for c in range(10)]).mean()),
    ('SoftMarginLoss', {}, lambda logits, labels: torch.stack([
        (1 + (-row[c] if c == label else row[c]).exp()).log()
        for row, label in zip(logits, labels, strict=True) for c in range(10)]).mean()),
    ('NLLLoss', {}, lambda logits, labels: -logits.log_softmax(dim=1)[torch.arange(6), labels].mean()),
    ('KLDivLoss', {'reduction': 'batchmean'}, lambda logits, labels: -logits.log_softmax(dim=1)[
        torch.arange(6), labels].mean()),
    ('BCELoss', {}, lambda logits, labels: torch.nn.BCEWithLogitsLoss()(logits, torch.eye(10).double()[labels])),
    ('MultiLabelMarginLoss', {}, lambda logits, labels: sum(
        (1 - row[label] + row).clamp(min=0).sum() - 1 for row, label in zip(logits, labels, strict=True)) / 60),
])
def test_losses_of_torch_are_those_of_a_linear_classifier(name, arguments, reference, opt):
    flags = opt(**fine(f'torch:{name}', loss_torch_args=[arguments], loss_torch_lr=.5))
    criterion = criteria.select(flags, None).double()
    batch, labels = random(6), torch.tensor([0, 4, 4, 1, 9, 7])
    logits = batch @ criterion.weights.T + criterion.biases
    torch.testing.assert_close(criterion(batch=batch, labels=labels), reference(logits, labels))
    group, = criterion.parameter_groups()
    assert group['lr'] == .5 and len(group['params']) == 2


@pytest.mark.parametrize('name, reference', [
    ('HingeEmbeddingLoss', lambda one, other, alike: (one - other).norm() if alike else max(
        torch.zeros(()), 1 - (one - other).norm())),
    ('CosineEmbeddingLoss', lambda one, other, alike: 1 - torch.cosine_similarity(one, other, dim=0) if alike else max(
        torch.zeros(()), torch.cosine_similarity(one, other, dim=0)))])
def test_losses_of_pairs_are_means_over_all_pairs_of_a_batch(name, reference, opt):
    criterion = criteria.select(opt(**fine(f'torch:{name}')), None)
    batch, labels = random(6), torch.tensor([0, 4, 4, 1, 1, 0])
    expected = torch.stack([reference(batch[i], batch[j], labels[i] == labels[j]) for i in range(6) for j in range(i)])
    torch.testing.assert_close(criterion(batch=batch, labels=labels), expected.mean(), rtol=1e-4, atol=1e-5)
    alone = torch.ones(1, 3, requires_grad=True)
    criterion(batch=alone, labels=labels[:1]).backward()
    assert alone.grad.norm() == 0 and not list(criterion.parameters())


def test_every_loss_of_torch_trains_its_classifier_or_the_embeddings(opt):
    for name in libraries.TARGETS:
        criterion = criteria.select(opt(**fine(f'torch:{name}')), None)
        batch = torch.randn(6, 3, requires_grad=True)
        criterion(batch=batch, labels=torch.arange(6) // 2).backward()
        assert all(values.grad.norm() > 0 for values in (batch, *criterion.parameters()))


@pytest.mark.parametrize('flags, sentence', [
    (fine('torch:CrossEntropy'), '--loss torch:CrossEntropy: unknown; choose from torch:CrossEntropyLoss, '),
    (fine('torch:MSELoss', loss_torch_args=[{'nonsense': 1}]), "--loss torch:MSELoss: .*'nonsense'; its arguments"),
    (fine('torch:CrossEntropyLoss', loss_torch_args=[{'weight': [1., 2.]}]), '--loss torch:CrossEntropyLoss: .*weight'),
    (fine('torch:L1Loss', loss_torch_args=[{'reduction': 'none'}]), r'it does not return one number, but .*\[2, 10\]'),
    (fine('torch:L1Loss', loss_torch_args=[{}, {}]), r'--loss_torch_args: expected one .*\(1\), not 2'),
])
def test_losses_of_torch_that_do_not_work_are_refused(flags, sentence, opt):
    with pytest.raises(UserError, match=sentence):
        criteria.select(opt(**flags), None)
