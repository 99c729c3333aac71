"""What every file of losses keeps to: forward calls the documented function, and what is repeated has one text."""
import ast
from pathlib import Path

import pytest
import torch

import batch_mining
import criteria
from flags import method_flags
from tests.criteria import cases, references
from tests.criteria.test_references import WAYS, assert_same, batch_of
from utilities.mined import triplets_from_masks


def files_of(package):
    return [path for path in sorted(Path(package.__file__).parent.glob('*.py')) if path.name != '__init__.py']


# The documented function

@pytest.mark.parametrize('loss', cases.PUBLISHED)
def test_forward_computes_the_documented_function(loss, opt, monkeypatch):
    """With every variant of its flags, with masks and triplets, and of references."""
    batch, labels = batch_of('three a class, unordered')
    calls = [{}]
    if loss in cases.naming('references'):
        calls.append({'references': torch.cat([batch.detach().flip(0), batch.detach()]),
                      'reference_labels': torch.cat([labels.flip(0), labels]), 'own': torch.arange(9) + 9})
    built = [(case, way, cases.build(cases.flags_of(opt, *case), cases.every_triple if way == 'list' else None)[0])
             for case, way in WAYS if case[0] == loss]
    before = [[cases.fast(criterion, batch, labels, **more).item() for more in calls] for *_, criterion in built]
    function = getattr(criteria.CRITERIA[loss], f'{loss}_loss')
    monkeypatch.setattr(criteria.CRITERIA[loss], function.__name__,
                        lambda *arguments, **named: 3 * function(*arguments, **named))
    for values, (case, way, criterion) in zip(before, built, strict=True):
        for value, more in zip(values, calls, strict=True):
            assert cases.fast(criterion, batch, labels, **more).item() == 3 * value != 0, (case, way)


@pytest.mark.parametrize('case', [case for case in cases.CASES if case[0] in ('triplet', 'margin')], ids=cases.named)
def test_masks_and_the_triplets_that_they_make_give_the_same(case, opt):
    """Random pairs of a random batch with duplicates. Contrastive has one formula for both, and a pair counts once."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (12,), generator=generator)
    batch = torch.randn(12, 4, dtype=cases.F64, generator=generator)
    batch[3] = batch[8]
    batch.requires_grad_()
    masks = tuple(mask & (torch.rand(12, 12, generator=generator) < .7)
                  for mask in batch_mining.all_pairs.all_pairs(labels))
    values = [cases.fast(cases.build(cases.flags_of(opt, *case), lambda *_, mined=mined: mined)[0], batch, labels)
              for mined in (masks, triplets_from_masks(*masks))]
    assert_same(*values, batch, 1e-9)


@pytest.mark.parametrize('loss', ['npair', 'angular'])
def test_the_other_positives_of_an_anchor_are_not_its_negatives(loss, opt):
    """With tuples of a miner that gives several positives; npair has a term for each, angular for the first."""
    batch, labels = batch_of('unbalanced')
    positives, negatives = batch_mining.all_pairs.all_pairs(labels)
    first = positives & (positives.cumsum(dim=1) == 1)
    counted = first if loss == 'angular' else positives
    namespace = cases.flags_of(opt, loss, {})
    criterion, _ = cases.build(namespace, lambda *_: (positives, negatives))
    pairs = [[tuple(pair) for pair in mask.nonzero().tolist()] for mask in (counted, negatives)]
    expected = getattr(references, loss)(batch, labels.tolist(), namespace, pairs)
    assert_same(cases.fast(criterion, batch, labels), expected, batch, 1e-9)


def test_the_counts_of_the_log(opt):
    """Where triplets are listed and where masks make them."""
    batch, labels = batch_of('unbalanced')

    def counted(loss, miner=None):
        criterion, _ = cases.build(cases.flags_of(opt, loss, {}), miner)
        cases.fast(criterion, batch, labels)
        return {key: int(count) for key, count in criterion.log.items()}

    triplets = references.all_triplets(labels.tolist())
    d = torch.cdist(batch, batch).tolist()
    active = sum(d[a][p] ** 2 - d[a][n] ** 2 + .2 > 0 for a, p, n in triplets)
    assert counted('triplet') == counted('triplet', cases.every_triple) == {
        'tuples': len(triplets), 'active_tuples': active}
    assert counted('margin', cases.every_triple) == {
        'tuples': len(triplets), 'active_tuples': sum(d[a][p] > 1. or d[a][n] < 1.4 for a, p, n in triplets),
        'violating_positives': sum(d[a][p] > 1. for a, p, _ in triplets),
        'violating_negatives': sum(d[a][n] < 1.4 for a, _, n in triplets)}
    n_kept = [int(mask.sum()) for mask in batch_mining.multisimilarity.multisimilarity_pairs(batch, labels, .1)]
    assert counted('multisimilarity') == {
        'tuples': sum(n_kept), 'violating_positives': n_kept[0], 'violating_negatives': n_kept[1]}


@pytest.mark.parametrize('methods', [criteria.CRITERIA, batch_mining.BATCHMINERS], ids=['losses', 'miners'])
def test_the_functions_of_a_method_agree_on_their_defaults(methods):
    """A flag has the default of one of them."""
    for name, module in methods.items():
        known = {}
        for function in method_flags.public_functions(module) if module else ():
            if function.__name__.startswith(name):
                for argument, (default, _) in method_flags.defaults_and_texts(function).items():
                    assert known.setdefault(argument, default) == default, (function, argument)


# Repeated functions

NAMES_OF_PARTS = {'Criterion', 'BatchMiner', 'around', 'problem'}              # each file has its own


@pytest.mark.parametrize('package', [criteria, batch_mining])
def test_functions_of_one_name_have_one_text(package):
    """Each file can be copied alone, so that some functions are in several of them."""
    texts = {}
    for path in files_of(package):
        source = path.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in NAMES_OF_PARTS:
                texts.setdefault(node.name, {})[path.name] = ast.get_source_segment(source, node)
    repeated = {name: found for name, found in texts.items() if len(found) > 1}
    assert len(repeated) >= 4
    for name, found in repeated.items():
        assert len(set(found.values())) == 1, (name, list(found))


@pytest.mark.parametrize('loss', [loss for loss, module in criteria.CRITERIA.items() if any(
    isinstance(part, type) and issubclass(part, torch.autograd.Function) for part in vars(module).values())])
def test_functions_with_a_gradient_of_their_own_refuse_second_derivatives(loss, opt):
    criterion, _ = cases.build(cases.flags_of(opt, loss, {}))
    batch = torch.randn(110, 4, dtype=cases.F64).requires_grad_()          # roadmap and recallatk divide a large one
    value = cases.fast(criterion, batch, torch.zeros(110, dtype=torch.int64))
    with pytest.raises(RuntimeError, match='no second derivatives: call backward without create_graph=True'):
        gradient, = torch.autograd.grad(value, batch, create_graph=True)
        torch.autograd.grad(gradient.square().sum(), batch)
