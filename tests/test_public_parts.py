"""Criteria, miners and samplers that are written to the contract of the public code of Roth et al."""
import importlib
import itertools
import uuid

import numpy as np
import pytest
import torch

import batch_mining
import criteria
import datasampler
from batch_mining import npair as npair_miner
from tests.helpers import images_of
from tests.test_main import OwnCriterion, OwnMiner
from utilities.errors import UserError

BATCH = torch.nn.functional.normalize(torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), dim=1)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
UNEVEN = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4])                     # 3 has no positive
DEVICES = ['cpu', pytest.param('cuda', marks=pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA'))]

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
NPAIR_AT_ONCE = IMPORTS + '''
ALLOWED_MINING_OPS = ['npair']

class Criterion(torch.nn.Module):
    def __init__(self, opt, batchminer):
        super().__init__()
        self.batchminer = batchminer

    def forward(self, batch, labels, **kwargs):
        anchors, positives, negatives = self.batchminer(batch, labels)
        anchors, positives, negatives = batch[anchors], batch[positives], batch[negatives]
        exponents = (anchors[:, None] * (negatives - positives[:, None])).sum(dim=2)
        return torch.log(1 + torch.exp(exponents).sum(dim=1)).mean()
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
@pytest.mark.parametrize('text, name', [(NPAIR, 'npair'), (NPAIR_AT_ONCE, 'npair'), (LIFTED, 'lifted')])
def test_a_criterion_of_lists_gives_what_ours_gives(text, name, labels, device, registered, opt):
    if text is NPAIR_AT_ONCE and labels is UNEVEN:
        pytest.skip('it needs as many negatives for each anchor')
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


def test_masks_of_the_miner_npair_survive_as_lists():
    from utilities.combination import lists_of, masks_of
    for labels in (LABELS, UNEVEN, torch.zeros(12).long(), torch.arange(12)):
        masks = npair_miner.npair_tuples(labels)
        anchors, positives, negatives = lists_of(*masks, 'npair')
        assert len(anchors) == len(positives) == len(negatives)
        assert all(torch.equal(*pair) for pair in zip(masks_of(anchors, positives, negatives, BATCH), masks,
                                                      strict=True))


def test_a_criterion_with_parameters_and_groups_of_its_own(registered, opt):
    registered(PROXIES)
    criterion = criteria.select(opt(loss='own', batch_mining='none', embed_dim=8), None)
    group, = criteria.parameter_groups(criterion)
    assert group['params'] is criterion.proxies and group['lr'] == opt().lr * 10
    assert np.isfinite(value(opt, loss='own', batch_mining='none'))


def test_a_criterion_of_triples_without_a_miner_names_the_miners(registered, opt):
    registered(TRIPLES.replace('{convert}', 'labels'))
    with pytest.raises(UserError, match=r'--loss own needs a miner: set --batch_mining \(random, .*random_distance\)'):
        criteria.select(opt(loss='own', batch_mining='none'), None)


def test_a_criterion_that_does_not_import_the_registry_gets_triplets_that_it_can_loop_over(opt, monkeypatch):
    module = type('own', (), {'Criterion': OwnCriterion, 'ALLOWED_MINING_OPS': None, 'REQUIRES_BATCHMINER': True})
    monkeypatch.setitem(criteria.CRITERIA, 'own', module)
    assert np.isfinite(value(opt, loss='own', batch_mining='semihard'))


class Storing(torch.utils.data.Sampler):
    requires_storage = True

    def __init__(self, opt, image_dict, image_list):
        self.requires_storage = True

    def create_storage(self, dataloader, model, device):
        raise AssertionError

    def precompute_indices(self):
        raise AssertionError


@pytest.mark.parametrize('declared', [{}, {'REQUIRES_STORAGE': True}])
def test_a_sampler_with_a_storage_of_its_own_is_refused_with_what_to_change(declared, opt, monkeypatch):
    monkeypatch.setitem(datasampler.SAMPLERS, 'own', type('own', (), {'Sampler': Storing} | declared))
    with pytest.raises(UserError, match=r'--data_sampler own: .*REQUIRES_STORAGE = True .*Storage.*docs/extending.md'):
        datasampler.select(opt(data_sampler='own'), images_of([4, 4, 4]))


