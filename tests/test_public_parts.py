"""Criteria, miners and samplers that are written to the contract of the public code of Roth et al."""
import importlib
import itertools
import re
import subprocess
import sys
import uuid
import warnings

import numpy as np
import pytest
import torch

import architectures
import batch_mining
import batchminer
import criteria
import datasampler
from tests.helpers import GPU, copied, images_of
from utilities.errors import UserError

BATCH = torch.nn.functional.normalize(torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), dim=1)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
UNEVEN = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4])                     # 3 has no positive
DEVICES = ['cpu', pytest.param(GPU, marks=pytest.mark.gpu, id='gpu')]

IMPORTS = '''
import numpy as np
import torch
import batchminer
REQUIRES_BATCHMINER, REQUIRES_OPTIM = True, False
'''
TRIPLES = IMPORTS + '''
ALLOWED_MINING_OPS = list(batchminer.BATCHMINING_METHODS.keys())

class Criterion(torch.nn.Module):
    def __init__(self, opt, batchminer):
        super().__init__()
        self.batchminer, self.margin = batchminer, 0 if batchminer.name == 'npair' else opt.loss_triplet_margin

    def forward(self, batch, labels, **kwargs):
        labels = {convert}
        found = self.batchminer(batch, labels)
        assert isinstance(found, list) and np.array([triple[0] for triple in found]).dtype == np.int64
        terms = []
        for triple in found:
            anchor, positive, negative = batch[triple[0], :], batch[triple[1], :], batch[triple[2], :]
            terms.append(torch.relu((anchor - positive).pow(2).sum() - (anchor - negative).pow(2).sum() + self.margin))
        return torch.stack(terms).mean()
'''
MINER = '''
import numpy as np
import torch

class BatchMiner():
    def __init__(self, opt):
        self.par, self.name = opt, 'own_miner'

    def __call__(self, batch, labels):
        if isinstance(labels, torch.Tensor): labels = labels.detach().cpu().numpy()
        triplets = []
        for anchor, label in enumerate(labels):
            positives, negatives = np.where(labels == label)[0], np.where(labels != label)[0]
            triplets.append([anchor, np.random.choice(positives), np.random.choice(negatives)])
        return triplets
'''
NPAIR = IMPORTS + '''
ALLOWED_MINING_OPS = ['npair']

class Criterion(torch.nn.Module):
    def __init__(self, opt, batchminer):
        super().__init__()
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        loss = 0
        anchors, positives, negatives = self.batchminer(batch, labels)
        for anchor, positive, others in zip(anchors, positives, negatives):
            assert type(anchor) is type(positive) is int
            own = batch[anchor:anchor + 1]
            exponents = (own * (batch[others] - batch[positive:positive + 1])).sum(dim=1)
            loss = loss + torch.log(1 + torch.exp(exponents).sum()) / len(anchors)
        return loss
'''
LIFTED = IMPORTS + '''
ALLOWED_MINING_OPS = ['lifted']

class Criterion(torch.nn.Module):
    def __init__(self, opt, batchminer):
        super().__init__()
        self.batchminer, self.margin = batchminer, opt.loss_lifted_neg_margin

    def forward(self, batch, labels, **kwargs):
        terms = []
        for anchor, positives, negatives in zip(*self.batchminer(batch, labels)):
            pull = (batch[positives, :].view(len(positives), -1) - batch[anchor]).norm(dim=1).logsumexp(dim=0)
            push = (self.margin - (batch[negatives, :] - batch[anchor]).norm(dim=1)).logsumexp(dim=0)
            terms.append(torch.relu(pull + push))
        return torch.stack(terms).mean()
'''
PROXIES = IMPORTS.replace('True, False', 'False, True') + '''
ALLOWED_MINING_OPS = None

class Criterion(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.par = opt
        self.proxies = torch.nn.Parameter(torch.randn(opt.n_classes, opt.embed_dim).to(opt.device) / 8)
        self.optim_dict_list = [{'params': self.proxies, 'lr': opt.lr * 10}]

    def forward(self, batch, labels, **kwargs):
        own = torch.stack([self.proxies[label:label + 1, :] for label in labels])
        return torch.nn.CrossEntropyLoss()(batch @ self.proxies.T, labels.to(self.par.device)) + own.sum() * 0
'''


RESULT = IMPORTS.replace('True, False', 'False, False') + '''
ALLOWED_MINING_OPS = None

class Criterion(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()

    def forward(self, batch, labels, **kwargs):
        return {result}
'''


class OwnMiner:
    def __init__(self, opt):
        self.par, self.name = opt, 'own'

    def __call__(self, batch, labels):
        labels = labels.detach().cpu().numpy()
        triplets = []
        for anchor in range(len(labels)):
            positives = np.where(labels == labels[anchor])[0]
            negatives = np.where(labels != labels[anchor])[0]
            triplets.append([anchor, np.random.choice(positives), np.random.choice(negatives)])
        return triplets


class OnTheCpu:
    """A miner that turns labels into an array without moving them."""

    def __init__(self, opt):
        self.name = 'own'

    def __call__(self, batch, labels):
        if isinstance(labels, torch.Tensor):
            labels = labels.detach().numpy()
        return [[a, p, n] for a, p, n in itertools.permutations(range(len(batch)), 3)
                if labels[a] == labels[p] and labels[a] != labels[n]]


class Lists(OnTheCpu):
    """A miner that returns anchors, the positives of each, and the negatives of each."""
    single = True

    def __call__(self, batch, labels):
        if isinstance(labels, torch.Tensor):
            labels = labels.detach().cpu().numpy()
        anchors = [a for a in range(len(batch)) if (labels == labels[a]).sum() > 1]
        positives = [np.array([p for p in np.where(labels == labels[a])[0] if p != a]) for a in anchors]
        negatives = [np.where(labels != labels[a])[0] for a in anchors]
        return anchors, [np.random.choice(own) for own in positives] if self.single else positives, negatives


class AllLists(Lists):
    single = False


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """registered(text) makes a file of a criterion, as after a registry line, with the name `own`."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text):
        name = f'own_{uuid.uuid4().hex}'
        (tmp_path / f'{name}.py').write_text(text)
        importlib.invalidate_caches()
        monkeypatch.setitem(criteria.CRITERIA, 'own', importlib.import_module(name))
    return make


def value(opt, device='cpu', labels=LABELS, batch=BATCH, **flags):
    """The loss of the flags on the batch, with seeded miners."""
    namespace = opt(embed_dim=8, bs=12, **flags)
    namespace.device = torch.device(device)
    torch.manual_seed(0)
    np.random.seed(0)
    criterion = criteria.select(namespace, batch_mining.select(namespace)).to(device)
    batch = batch.clone().to(device).requires_grad_()
    loss = criterion(batch=batch, labels=labels.to(device), batch_features=None, f_embed=None)
    loss.backward()
    assert batch.grad.isfinite().all()
    return loss.item()


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('convert', ['labels', 'labels.cpu().numpy()', 'labels.tolist()'])
def test_a_criterion_of_triples_takes_every_miner_whatever_it_makes_of_the_labels(convert, device, registered, opt):
    registered(TRIPLES.replace('{convert}', convert))
    for miner in [name for name, module in batch_mining.BATCHMINERS.items() if module]:
        for labels in (LABELS, UNEVEN):
            ours, theirs = (value(opt, device, labels, loss=loss, batch_mining=miner,
                                  loss_triplet_margin=0 if miner == 'npair' else 0.2) for loss in ('triplet', 'own'))
            assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), miner


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('labels', [LABELS, UNEVEN], ids=['even', 'uneven'])
@pytest.mark.parametrize('text, name', [(NPAIR, 'npair'), (LIFTED, 'lifted')])
def test_a_criterion_of_lists_gives_what_ours_gives(text, name, labels, device, registered, opt):
    registered(text)
    flags = {'batch_mining': name, 'loss_npair_l2': 0, 'loss_lifted_l2': 0}
    assert value(opt, device, labels, loss='own', **flags) == pytest.approx(
        value(opt, device, labels, loss=name, **flags), rel=1e-5)


@pytest.mark.parametrize('device', DEVICES)
def test_miners_of_the_public_code_with_criteria_of_both(device, registered, opt, monkeypatch):
    for miner in (OnTheCpu, OwnMiner):
        monkeypatch.setitem(batch_mining.BATCHMINERS, 'own', type('own', (), {'BatchMiner': miner}))
        for loss in ('triplet', 'margin', 'contrastive', 'quadruplet', 'snr', 'dr_triplet'):
            assert np.isfinite(value(opt, device, loss=loss, batch_mining='own'))
    monkeypatch.setitem(batch_mining.BATCHMINERS, 'own', type('own', (), {'BatchMiner': OnTheCpu}))
    registered(TRIPLES.replace('{convert}', 'labels'))
    every = value(opt, device, loss='triplet', batch_mining='all')
    for loss in ('triplet', 'own'):
        assert value(opt, device, loss=loss, batch_mining='own') == pytest.approx(every, rel=1e-5)
    assert value(opt, device, loss='own', batch_mining='own', dr_weight=0.5) != pytest.approx(every, rel=1e-3)

    for name, miner, text in (('npair', Lists, NPAIR), ('lifted', AllLists, LIFTED)):
        monkeypatch.setitem(batch_mining.BATCHMINERS, name, type('own', (), {'BatchMiner': miner}))
        registered(text)
        flags = {'batch_mining': name, 'loss_npair_l2': 0, 'loss_lifted_l2': 0}
        ours, theirs = (value(opt, device, loss=loss, **flags) for loss in (name, 'own'))
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize('result, expected', [
    ('torch.tensor(0.)', 0), ('batch[:1, 0] ** 2 * 0 + 3', 3), ('batch.detach().square().sum()', len(BATCH)),
    ('0', 'int; expected a tensor of one number'), ('(batch.sum(), {})', 'tuple of 2, the first Tensor'),
    ('batch.sum(dim=1)', r'Tensor of float32 \[12\]'), ('None', 'None')])
def test_the_result_of_a_criterion_gets_a_graph_or_is_refused(result, expected, registered, opt):
    registered(RESULT.replace('{result}', result))
    for loss, weights in (('own', []), ('own+softmax', [1, 0])):
        flags = {'loss': loss, 'batch_mining': 'none', 'loss_weights': weights, 'n_classes': 4}
        if isinstance(expected, str):
            with pytest.raises(UserError, match=rf'--loss own: its forward\(\) returned {expected}'):
                value(opt, **flags)
        else:
            assert value(opt, **flags) == pytest.approx(expected)


def test_a_criterion_with_parameters_and_groups_of_its_own(registered, opt):
    registered(PROXIES)
    criterion = criteria.select(opt(loss='own', batch_mining='none', embed_dim=8), None)
    group, = criterion.parameter_groups()
    assert group['params'] is criterion.proxies and group['lr'] == opt().lr * 10
    assert np.isfinite(value(opt, loss='own', batch_mining='none'))


def test_a_criterion_that_reads_the_epoch_of_the_flags_is_told_where_it_gets_the_epoch(registered, opt):
    registered(PROXIES.replace('opt.lr * 10', 'opt.lr * 0.9 ** opt.epoch'))
    with pytest.raises(UserError, match=r'opt.epoch is read, .* of forward\(..., epoch\) of a loss'):
        criteria.select(opt(loss='own', batch_mining='none'), None)


def test_a_flag_that_is_not_declared_is_named_with_the_line_that_declares_it(registered, opt, quick, run, capsys,
                                                                             tmp_path, monkeypatch):
    sentence = (r"the flag --{0} is read, which parameters.py does not declare; declare it there: "
                r"add\('--{0}', type=float, default=...\)")
    registered(PROXIES.replace('opt.lr * 10', 'opt.lr * opt.loss_own_rate'))
    with pytest.raises(UserError, match=sentence.format('loss_own_rate')):
        criteria.select(opt(loss='own', batch_mining='none'), None)

    def reads(self, opt, *more):
        return opt.data_own_size
    for package, registry, name, flag, more in (
            (batch_mining, batch_mining.BATCHMINERS, 'BatchMiner', 'batch_mining', ()),
            (datasampler, datasampler.SAMPLERS, 'Sampler', 'data_sampler', (images_of([4, 4]),)),
            (architectures, architectures.ARCHITECTURES, 'Network', 'arch', ())):
        monkeypatch.setitem(registry, 'own', type('own', (), {name: type(name, (), {'__init__': reads})}))
        build = package.select_backbone if package is architectures else package.select
        with pytest.raises(UserError, match='--data_own_size is read, which parameters.py does not declare'):
            build(opt(**{flag: 'own'}), *more)

    def by_loss(self, opt):
        self.margin = vars(opt)[f'loss_{opt.loss}_margin']                   # the public semi-hard miner does this
    monkeypatch.setitem(batch_mining.BATCHMINERS, 'own', type('own', (), {'BatchMiner': type('', (), {
        '__init__': by_loss})}))
    with pytest.raises(UserError, match=sentence.format('loss_own_margin')):
        batch_mining.select(opt(loss='own', batch_mining='own'))
    assert batch_mining.select(opt(loss='triplet', batch_mining='own')).margin == 0.2
    registered(PROXIES.replace('own = torch.stack', 'self.par.loss_own_late; own = torch.stack'))
    assert run(*quick, '--loss', 'own', '--batch_mining', 'none') == 2
    assert re.search(sentence.format('loss_own_late'), capsys.readouterr().err)
    assert not (tmp_path / 'runs' / 'folder' / 'quick_s1').exists()
    for loss in ('ldam', 'dynamic_arcface'):
        with warnings.catch_warnings(action='error'):
            criteria.select(opt(loss=loss, batch_mining='none', class_counts=torch.ones(10)), None)
        program = opt(loss=loss, batch_mining='none')              # of another program, which counts no images
        del program.class_counts
        with pytest.raises(UserError, match=r'opt.class_counts \(number of images per training class\) is read, which '
                                            'main.py sets before it builds the criterion'):
            criteria.select(program, None)
    registered(PROXIES.replace('opt.lr * 10', 'opt.lr * torch.no_such_thing'))
    with pytest.raises(AttributeError, match='no_such_thing'):                   # not a flag: it keeps its traceback
        criteria.select(opt(loss='own', batch_mining='none'), None)


def test_a_criterion_may_select_a_miner_by_its_name(opt):
    flags = opt(loss='triplet')
    triplets = batchminer.select('all', flags)(BATCH, LABELS.numpy())
    assert sorted(triplets) == sorted(OnTheCpu(None)(BATCH, LABELS))
    anchors, positives, negatives = batchminer.select('lifted', flags)(BATCH, LABELS)
    assert anchors == [*range(12)] and positives[3].tolist() == [4, 5] and len(negatives[3]) == 9


@pytest.mark.parametrize('folder, name, text', [
    ('batch_mining', 'distance', f'import batchminer\n{MINER}'), ('criteria', 'triplet', TRIPLES)])
def test_a_file_under_the_name_of_one_of_this_program_is_refused(folder, name, text, tmp_path):
    """In a copy of the code, as after `cp`."""
    copied(tmp_path / 'code')
    (tmp_path / 'code' / folder / f'{name}.py').write_text(text.replace('{convert}', 'labels'))
    done = subprocess.run([sys.executable, 'main.py', '--n_epochs', '1'], cwd=tmp_path / 'code', capture_output=True,
                          text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f'main.py: error: {folder}/{name}.py: this file of another program has taken the place of the file that '
        f'declares the flags of {name}. Bring that one back, call yours public_{name}.py, and add '
        f"'public_{name}': public_{name} to the registry in {folder}/__init__.py\n")
