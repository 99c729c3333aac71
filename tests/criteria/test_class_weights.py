"""--class_weights: values against loops, known numbers, the file, and runs."""
import pytest
import torch

import batch_mining
import criteria
from criteria import class_weights
from tests.criteria import cases, references
from tests.criteria.cases import LABELS, UNIT, VECTORS
from tests.criteria.test_references import batch_of, randomise
from tests.helpers import folder_of
from utilities.errors import UserError

FITTING = cases.naming('reduction')
OTHER_LABELS = torch.tensor([0, 0, 1, 1, 1, 2])                          # 16, 4 and 1 training images


def weighted(opt, tmp_path, loss, weights, names='abcd', **flags):
    """The criterion in float64 with a file of class weights."""
    file = tmp_path / 'weights.csv'
    lines = [f'{name},{weight}' for name, weight in zip(names, weights, strict=True)]
    file.write_text('\n'.join(['class,weight', *lines]))
    namespace = cases.flags_of(opt, loss, flags, class_weights=str(file), class_names=[*names], n_classes=len(names))
    return criteria.select(namespace, None).double(), namespace


def values_by_loops(loss, namespace, parameters, batch, labels, monkeypatch):
    """{sample: its value} of the reference, without samples that the mean over samples leaves out."""
    y, function = labels.tolist(), getattr(references, loss)
    own, others = ([found(y, i) for i in range(len(y))] for found in (references.positives, references.negatives))
    if loss in ('dcl', 'fastap'):
        terms = []
        with monkeypatch.context() as patch:
            patch.setattr(references, 'average', lambda found, x: terms.extend(found) or references.zero(x))
            function(batch, y, namespace)
        return dict(zip([i for i in range(len(y)) if own[i]], terms, strict=True)) if terms else {}
    if loss in ('supcon', 'circle', 'multisimilarity'):
        counted = [i for i in range(len(y)) if own[i] and (others[i] or loss == 'supcon') or loss == 'multisimilarity']
        return {i: function(batch[i:i + 1], y[i:i + 1], namespace, batch, y, [i]) for i in counted}
    return {i: function(batch[i:i + 1], y[i:i + 1], namespace, *parameters) for i in range(len(y))}


@pytest.mark.parametrize('loss', FITTING)
def test_values_and_gradients_are_those_of_loops(loss, opt, tmp_path, monkeypatch):
    weights = [.25, 1., 3., .5]                                          # float32 has these
    for shape in ('unbalanced', 'lone classes', 'one class', 'all lone'):
        criterion, namespace = weighted(opt, tmp_path, loss, weights)
        randomise(criterion)
        batch, labels = batch_of(shape)
        values = values_by_loops(loss, namespace, [*criterion.parameters()], batch, labels, monkeypatch)
        total = sum((weights[labels[i]] * value for i, value in values.items()), references.zero(batch))
        expected = total / max(len(values), 1)
        found = cases.fast(criterion, batch, labels)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        for one, other in zip(*(cases.gradients(value, batch, criterion) for value in (found, expected)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_known_numbers(opt, tmp_path):
    """LDAM's balanced weights, and PML's ClassWeightedReducer."""
    balanced = class_weights.balanced_weights([16, 4, 1])
    assert balanced.tolist() == pytest.approx([.142955, .571478, 2.285567], abs=1e-6)
    for loss, labels, weights, expected in (('softmax', OTHER_LABELS, balanced.tolist(), 11.804704),
                                            ('arcface', LABELS, [.2, 1, 3], 13.452392)):
        criterion, _ = weighted(opt, tmp_path, loss, weights, names='abc')
        criterion.criterion.weights.data = VECTORS.clone()
        assert cases.fast(criterion, UNIT, labels).item() == pytest.approx(expected, abs=2e-6)
    flags = cases.flags_of(opt, 'softmax', {}, class_weights='balanced', n_classes=3)             # 16, 4 and 1 images
    assert torch.equal(criteria.select(flags, None).class_weights, balanced)


def test_values_that_are_not_finite_are_not_left_out(opt, tmp_path):
    criterion, _ = weighted(opt, tmp_path, 'supcon', [1] * 4)
    assert cases.fast(criterion, UNIT * torch.nan, LABELS).isnan()


def test_a_memory_and_prefixes_go_around_class_weights(opt, tmp_path):
    """With equal weights, both are what they are without."""
    for loss, flags in (('supcon', {'xbm_size': 9, 'xbm_start': 0, 'bs': 6}), ('softmax', {'matryoshka': [2, 4]})):
        values = []
        for more in ({}, {'class_weights': 'balanced'}):
            torch.manual_seed(0)
            namespace = cases.flags_of(opt, loss, {}, **flags, **more)
            namespace.class_counts = [7] * 4
            criterion = criteria.select(namespace, None).double()
            batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
            values.append([cases.fast(criterion, batch, LABELS).item() for _ in range(2)])
        assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize('text, sentence', [
    ('', 'the first line must be class,weight'), ('a,1\nb,1\n', 'the first line must be class,weight'),
    ('class,weight\na,1\nb,x\n', 'each line must have a class and a number'),
    ('class,weight\na,1\nb,1,2\n', 'each line must have a class and a number'),
    ('class,weight\na,1\nb,-1\n', 'each class must occur once, with a weight of at least 0'),
    ('class,weight\na,1\na,2\nb,1\n', 'each class must occur once, with a weight of at least 0'),
    ('class,weight\na,0\nb,0.0\n', 'all weights are 0, and nothing would be trained'),
    ('class,weight\na,1\n', 'it has no weight for 1 of the training classes, such as b'),
    (f'class,weight\na,1\n{"b" * 131_073},1\n', r'not a CSV file \(field larger than field limit'),
    ('class,weight\na,1\nb,1\nc,1\nd,2\n', '2 of its classes are no training classes, such as c'),
])
def test_a_file_that_does_not_fit_is_refused(text, sentence, opt, tmp_path):
    file = tmp_path / 'weights.csv'
    file.write_text(text)
    flags = cases.flags_of(opt, 'softmax', {}, class_weights=str(file), class_names=['a', 'b'], n_classes=2)
    with pytest.raises(UserError, match=f'--class_weights .*weights.csv: {sentence}.*; give balanced, or a CSV file'):
        criteria.select(flags, None)


@pytest.mark.parametrize('loss', ['margin', 'softmax+ntxent', 'softtriplet', 'ldam', 'torch:CrossEntropyLoss'])
def test_losses_without_a_value_per_sample_are_refused(loss, opt):
    names = opt(loss=loss, batch_mining='distance', class_weights='balanced', n_classes=3)
    with pytest.raises(UserError, match='--class_weights does not work with --loss .*: it needs a loss that has a'):
        criteria.select(names, batch_mining.select(names))


def test_a_run_needs_the_file_for_training_only(quick, run, tmp_path, capsys):
    file = tmp_path / 'weights.csv'
    arguments = [*quick, '--n_epochs', '1', '--loss', 'softmax+supcon', '--class_weights', file]
    assert run(*arguments) == 2
    assert f'--class_weights {file}: No such file' in capsys.readouterr().err
    file.write_text('class,weight\n' + ''.join(f'class_0{label},{1 + label}\n' for label in range(6)))
    assert run(*arguments) == 0
    file.write_text(file.read_text().replace('class_01,2', 'class_01,3'))
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 2
    assert 'the file of --class_weights has changed' in capsys.readouterr().err
    file.unlink()
    assert run('--evaluate', folder_of(tmp_path)) == 0
