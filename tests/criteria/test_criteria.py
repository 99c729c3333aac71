"""Each loss against a slow reference with loops, known numbers, another library, and the contract of criteria."""
import doctest
import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import batch_mining
import criteria
from criteria import margin, multisimilarity, proxyanchor, softmax, triplet

F64 = torch.float64
ZERO = torch.zeros((), dtype=F64)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
BATCH = torch.tensor([(1, 0, 0), (.8, .6, 0), (.48, .6, .64), (0, .6, .8), (-.6, 0, .8), (.36, .48, -.8)], dtype=F64)
VECTORS = torch.tensor([(3, 4, 0), (0, 4, 3), (-1, 0, 1)], dtype=F64)
TRIPLETS = torch.tensor([(0, 1, 2), (1, 0, 3), (2, 3, 1), (3, 2, 5), (4, 5, 0), (5, 4, 1)])


def all_triplets(labels):
    n = range(len(labels))
    return torch.tensor([(a, p, k) for a, p, k in itertools.product(n, n, n)
                         if a != p and labels[a] == labels[p] != labels[k]], dtype=torch.int64).reshape(-1, 3)


def distance(x, y, power=1):
    squared = ((x - y) ** 2).sum()
    return squared ** (power / 2) if squared > 0 else squared * 0


def cosine(x, y):
    return (x * y).sum() / (x.norm() * y.norm())


def average(terms, zero):
    return sum(terms) / len(terms) if terms else zero


# References: the formulas, one scalar at a time.

def triplet_reference(batch, labels, power=2, active_only=False, m=.2):
    terms = [torch.relu(distance(batch[a], batch[p], power) - distance(batch[a], batch[n], power) + m)
             for a, p, n in all_triplets(labels).tolist()]
    return average([term for term in terms if term > 0] if active_only else terms, batch.sum() * 0)


def margin_reference(batch, labels, beta, nu=0., m=.2):
    total, count = batch.sum() * 0, 0
    for a, p, n in all_triplets(labels).tolist():
        b = beta[labels[a]]
        u, v = torch.relu(distance(batch[a], batch[p]) - b + m), torch.relu(b - distance(batch[a], batch[n]) + m)
        total, count = total + u + v + nu * b, count + int(u > 0) + int(v > 0)
    return total / count if count else batch.sum() * 0


def multisimilarity_reference(batch, labels, alpha=2., beta=40., eps=.1, base=.5):
    total, n = batch.sum() * 0, len(batch)
    for i in range(n):
        pos = [cosine(batch[i], batch[j]) for j in range(n) if j != i and labels[j] == labels[i]]
        neg = [cosine(batch[i], batch[j]) for j in range(n) if labels[j] != labels[i]]
        if not pos or not neg:
            continue
        if eps < 2:
            pos, neg = [s for s in pos if s - eps < max(neg)], [s for s in neg if s + eps > min(pos)]
        total = total + torch.log(1 + sum([torch.exp(-alpha * (s - base)) for s in pos], ZERO)) / alpha
        total = total + torch.log(1 + sum([torch.exp(beta * (s - base)) for s in neg], ZERO)) / beta
    return total / n


def softmax_reference(batch, labels, vectors, temperature=.05):
    terms = []
    for x, y in zip(batch, labels.tolist(), strict=True):
        logits = [cosine(x, w) / temperature for w in vectors]
        terms.append(torch.log(sum(torch.exp(z) for z in logits)) - logits[y])
    return average(terms, 0)


def proxyanchor_reference(batch, labels, vectors, delta=.1, alpha=32.):
    pull, push, n_present = 0, 0, 0
    for c, w in enumerate(vectors):
        own = [cosine(x, w) for x, y in zip(batch, labels, strict=True) if y == c]
        other = [cosine(x, w) for x, y in zip(batch, labels, strict=True) if y != c]
        n_present += bool(own)
        pull = pull + torch.log(1 + sum([torch.exp(-alpha * (s - delta)) for s in own], ZERO))
        push = push + torch.log(1 + sum([torch.exp(alpha * (s + delta)) for s in other], ZERO))
    return pull / n_present + push / len(vectors)


BETA = torch.tensor([1.2, 1.0, .8], dtype=F64)


def margin_function(batch, labels, **arguments):
    triplets = all_triplets(labels)
    return margin.margin_loss(batch, triplets, BETA[labels[triplets[:, 0]]], **arguments)


CASES = {
    'triplet': (lambda x, y: triplet.triplet_loss(x, all_triplets(y)), triplet_reference),
    'triplet, plain, active': (lambda x, y: triplet.triplet_loss(x, all_triplets(y), power=1, active_only=True),
                               lambda x, y: triplet_reference(x, y, 1, True)),
    'margin': (lambda x, y: margin_function(x, y), lambda x, y: margin_reference(x, y, BETA)),
    'margin, nu': (lambda x, y: margin_function(x, y, nu=.01), lambda x, y: margin_reference(x, y, BETA, .01)),
    'multisimilarity': (multisimilarity.multisimilarity_loss, multisimilarity_reference),
    'multisimilarity, no mining': (lambda x, y: multisimilarity.multisimilarity_loss(x, y, margin=2),
                                   lambda x, y: multisimilarity_reference(x, y, eps=2)),
    'softmax': (lambda x, y: softmax.softmax_loss(x, y, VECTORS), lambda x, y: softmax_reference(x, y, VECTORS)),
    'proxyanchor': (lambda x, y: proxyanchor.proxyanchor_loss(x, y, VECTORS),
                    lambda x, y: proxyanchor_reference(x, y, VECTORS)),
}
SHAPES = {
    'two a class': [0, 0, 1, 1, 2, 2],
    'unbalanced': [0, 0, 0, 0, 0, 1, 1, 2, 2, 2],
    'a lone class': [0, 0, 0, 1, 2, 2],
    'unordered': [2, 0, 1, 0, 2, 1, 0],
    'one class': [1, 1, 1],
    'all lone': [0, 1, 2],
    'one sample': [2],
    'sixteen a class': [0] * 16 + [1] * 16,
}


def unit_batch(labels, seed=0, duplicate=False):
    batch = torch.randn(len(labels), 3, dtype=F64, generator=torch.Generator().manual_seed(seed))
    batch = torch.nn.functional.normalize(batch, dim=1)
    if duplicate and len(labels) > 3:
        batch[1], batch[3] = batch[0], batch[0]
    return batch


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('duplicate', [False, True])
def test_equals_the_slow_reference_in_value_and_gradient(case, shape, duplicate):
    function, reference = CASES[case]
    labels = torch.tensor(SHAPES[shape])
    results = []
    for loss in (function, reference):
        batch = unit_batch(labels, duplicate=duplicate).requires_grad_()
        value = loss(batch, labels)
        value.backward()
        results.append((value.detach(), batch.grad))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-9)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-9 if not duplicate else 1e-8)


@pytest.mark.parametrize('value, expected', [
    (lambda: triplet.triplet_loss(BATCH, TRIPLETS), 0.629333),
    (lambda: triplet.triplet_loss(BATCH, all_triplets(LABELS), margin=.1, power=1, active_only=True), 0.608880),
    (lambda: margin.margin_loss(BATCH, TRIPLETS, torch.tensor(1.2, dtype=F64)), 0.610954),
    (lambda: margin.margin_loss(BATCH, TRIPLETS, BETA[LABELS[TRIPLETS[:, 0]]], nu=.01), 0.654287),
    (lambda: multisimilarity.multisimilarity_loss(BATCH, LABELS), 0.576050),
    (lambda: multisimilarity.multisimilarity_loss(BATCH, LABELS, margin=2), 0.742885),
    (lambda: softmax.softmax_loss(BATCH, LABELS, VECTORS), 4.757040),
    (lambda: proxyanchor.proxyanchor_loss(BATCH, LABELS, VECTORS), 32.594533),
])
def test_known_numbers(value, expected):
    assert float(value()) == pytest.approx(expected, abs=5.1e-7)


def test_agrees_with_pytorch_metric_learning():
    losses = pytest.importorskip('pytorch_metric_learning.losses')
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.miners import MultiSimilarityMiner
    from pytorch_metric_learning.reducers import MeanReducer
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    batch = unit_batch(labels, seed=3)
    plain = LpDistance(normalize_embeddings=False)

    def close(ours, theirs):
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-8)

    triplets = all_triplets(labels)
    close(triplet.triplet_loss(batch, triplets),
          losses.TripletMarginLoss(.2, distance=LpDistance(power=2, normalize_embeddings=False),
                                   reducer=MeanReducer())(batch, labels))
    close(triplet.triplet_loss(batch, triplets, margin=.1, power=1, active_only=True),
          losses.TripletMarginLoss(.1)(batch, labels))
    theirs = losses.MarginLoss(.2, .01, 1.2, distance=plain, learn_beta=True, num_classes=3)
    theirs.beta = torch.nn.Parameter(BETA)                       # float64
    close(margin_function(batch, labels, nu=.01), theirs(batch, labels))
    miner = MultiSimilarityMiner(.1)
    close(multisimilarity.multisimilarity_loss(batch, labels),
          losses.MultiSimilarityLoss(2, 40, .5)(batch, labels, miner(batch, labels)))
    theirs = losses.NormalizedSoftmaxLoss(3, 3, temperature=.05)
    theirs.W.data = VECTORS.T
    close(softmax.softmax_loss(batch, labels, VECTORS), theirs(batch, labels))
    theirs = losses.ProxyAnchorLoss(3, 3, margin=.1, alpha=32)
    theirs.proxies.data = VECTORS
    close(proxyanchor.proxyanchor_loss(batch, labels, VECTORS), theirs(batch, labels))


def test_the_distance_matrix_and_the_gathered_differences_agree():
    """Few triplets are computed from differences, many from one matrix; duplicates have distance 0 either way."""
    labels = torch.tensor(SHAPES['unbalanced'])
    batch = unit_batch(labels, duplicate=True)
    triplets = all_triplets(labels)
    parts = [triplet.triplet_violations(batch, part, power=1) for part in triplets.split(len(batch))]
    at_once = triplet.triplet_violations(batch, triplets, power=1)
    torch.testing.assert_close(at_once, torch.cat(parts), atol=1e-9, rtol=0)


@pytest.fixture(params=criteria.CRITERIA)
def name(request):
    return request.param


def build(name, opt, **flags):
    flags = opt(loss=name, n_classes=8, embed_dim=16, **flags)
    miner = batch_mining.select(flags) if criteria.CRITERIA[name].REQUIRES_BATCHMINER else None
    return criteria.select(flags, miner)


def test_built_from_default_flags_each_gives_a_finite_loss_and_gradient(name, opt):
    criterion = build(name, opt)
    batch = torch.nn.functional.normalize(torch.randn(16, 16), dim=1).requires_grad_()
    loss = criterion(batch=batch, labels=torch.arange(8).repeat_interleave(2), batch_features=None, f_embed=None)
    loss.backward()
    assert loss.shape == () and loss.isfinite() and batch.grad.isfinite().all() and batch.grad.abs().sum() > 0


@pytest.mark.parametrize('labels', [[0] * 6, list(range(6)), [3]])
def test_a_batch_without_a_valid_tuple_is_no_nan(name, opt, labels):
    batch = torch.nn.functional.normalize(torch.randn(len(labels), 16), dim=1).requires_grad_()
    loss = build(name, opt)(batch=batch, labels=torch.tensor(labels))
    loss.backward()
    assert loss.isfinite() and batch.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, opt, dtype):
    torch.manual_seed(0)
    criterion = build(name, opt)
    batch = torch.nn.functional.normalize(torch.randn(16, 16), dim=1).to(dtype)
    labels = torch.arange(8).repeat_interleave(2)
    values = []
    for given, autocast in ((batch.float(), False), (batch, False), (batch.float(), True)):
        torch.manual_seed(1)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            values.append(criterion(batch=given, labels=labels))
    assert values[1].dtype == torch.float32
    assert len({value.item() for value in values}) == 1


def test_without_a_miner_or_with_the_wrong_one_a_sentence_says_so(opt, monkeypatch):
    from utilities.errors import UserError
    with pytest.raises(UserError, match='--loss triplet needs a miner: set --batch_mining'):
        criteria.select(opt(loss='triplet', batch_mining='none'), None)
    monkeypatch.setattr(triplet, 'ALLOWED_MINING_OPS', ['random'])
    with pytest.raises(UserError, match='--loss triplet does not work with --batch_mining distance; choose from'):
        criteria.select(opt(loss='triplet', batch_mining='distance'), lambda batch, labels: None)
    with pytest.raises(UserError, match='--loss tripel: unknown; choose from triplet, margin'):
        criteria.select(opt(loss='tripel'), None)


def test_a_miner_may_return_a_list_of_triples(opt):
    criterion = criteria.select(opt(loss='triplet'), lambda batch, labels: [(0, 1, 2), (1, 0, 3)])
    torch.testing.assert_close(criterion(batch=BATCH, labels=LABELS), triplet.triplet_loss(BATCH, TRIPLETS[:2]))


def test_margin_has_a_boundary_per_class_one_for_all_or_a_fixed_one(opt):
    for flags, n, trained in (({}, 8, True), ({'loss_margin_beta_shared': True}, 1, True),
                              ({'loss_margin_beta_constant': True}, 8, False)):
        criterion = build('margin', opt, **flags)
        assert len(criterion.beta) == n and criterion.beta.requires_grad == trained and criterion.lr == 0.0005


def test_proxies_train_at_a_multiple_of_the_networks_rate(opt):
    group, = build('proxyanchor', opt, lr=1e-4).optim_dict_list
    assert math.isclose(group['lr'], 1e-2) and group['params'][0].shape == (8, 16)


COPY = """
import doctest, sys, torch
sys.modules['numpy'] = None                                    # only torch may be imported
import {module}
results = doctest.testmod({module})
assert results.attempted and not results.failed, results

class Flags:
    loss, n_classes, embed_dim, lr, triplets = 'x', 3, 4, 0.1, True
    def __getattr__(self, name):
        if name in DEFAULTS:
            return DEFAULTS[name]
        raise AttributeError(name)
DEFAULTS = {defaults!r}

def miner(batch, labels):
    return torch.tensor([(0, 1, 2), (1, 0, 4), (2, 3, 0), (3, 2, 5), (4, 5, 1), (5, 4, 3)])

torch.manual_seed(0)
criterion = {module}.Criterion(Flags(), miner) if {module}.REQUIRES_BATCHMINER else {module}.Criterion(Flags())
batch = torch.nn.Parameter(torch.randn(6, 4))
optimizer = torch.optim.SGD([batch, *criterion.parameters()], lr=0.05)
losses = []
for _ in range(11):
    loss = criterion(batch=torch.nn.functional.normalize(batch, dim=1), labels=torch.tensor([0, 0, 1, 1, 2, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
"""


def test_copied_alone_into_an_empty_folder_it_imports_runs_its_example_and_trains(name, opt, tmp_path):
    source = Path(criteria.CRITERIA[name].__file__)
    (tmp_path / source.name).write_text(source.read_text())
    defaults = {flag: value for flag, value in vars(opt()).items() if flag.startswith('loss_')}
    script = COPY.format(module=source.stem, defaults=defaults)
    done = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_docstring_examples(name):
    results = doctest.testmod(criteria.CRITERIA[name])
    assert results.attempted and not results.failed
