"""hubconf.py: methods, metrics and networks in a program that knows nothing else of this one."""
import contextlib
import copy
import functools
import inspect
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import batch_mining
import configuration
import criteria
import datasampler
import evaluation
import parameters
import retrieval
from records import checkpoint
from retrieval import export
from tests.criteria import cases
from tests.helpers import ROOT, export_here, folder_of, images_of, manual_seed, sampler_of
from utilities.mined import Miner

ENTRIES = ['criterion', 'metrics', 'miner', 'network', 'sampler']
MINERS = [name for name, module in batch_mining.BATCHMINERS.items() if module]
load = functools.partial(torch.hub.load, str(ROOT), source='local')
SIZES = {'n_classes': 4, 'embed_dim': 4, 'n_features': 4, 'n_maps': 4, 'lr': .01,
         'superclasses': [[label // 2] for label in range(4)], 'class_counts': [16, 4, 1, 9]}
WITH_MINERS = [(loss, miner) for loss, module in criteria.CRITERIA.items() for miner in (
    [None] if not module.REQUIRES_BATCHMINER else module.ALLOWED_MINING_OPS or (
        MINERS if loss == 'triplet' else ['distance']))]


def batch_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(12, 4, generator=generator)
    return torch.nn.functional.normalize(batch, dim=1).requires_grad_(), torch.arange(12) % 4


@pytest.mark.parametrize('loss, miner', WITH_MINERS)
def test_a_loss_is_the_programs(loss, miner, opt):
    small = {f'loss_{loss}_{flag}': value for flag, value in cases.SMALL.get(loss, {}).items()}
    found = load('criterion', loss, miner=miner, **SIZES, **small)
    rate = {f'loss_{loss}_lr': SIZES['lr']} if f'loss_{loss}_lr' in opt() else {}
    own = opt(loss=loss, batch_mining=miner or 'none', **SIZES, **small, **rate)
    wanted = criteria.select(own, batch_mining.select(own))
    wanted.load_state_dict(found.state_dict())
    batch, labels = batch_of()
    values = [cases.fast(criterion, batch, labels) for criterion in (found, wanted)]
    assert values[0].equal(values[1]) and values[0] > 0
    for one, other in zip(*(cases.gradients(*pair) for pair in zip(
            values, [batch] * 2, (found, wanted), strict=True)), strict=True):
        assert one.equal(other)
    groups = [[(len(group['params']), group.get('lr')) for group in criterion.parameter_groups()]
              for criterion in (found, copy.deepcopy(found), wanted)]
    assert groups[0] == groups[1] == groups[2]


def test_losses_inside_a_loss_have_a_miner_and_flags(opt):
    flags = {'loss_s2sd_source': 'triplet', 'loss_s2sd_target': 'margin', 'loss_s2sd_target_dims': [3],
             'loss_triplet_margin': .7}
    found = load('criterion', 's2sd', miner='semihard', **flags, **SIZES)
    own = opt(loss='s2sd', batch_mining='semihard', **SIZES, **flags)
    wanted = criteria.select(own, batch_mining.select(own))
    wanted.load_state_dict(found.state_dict())
    assert cases.fast(found, *batch_of()).equal(cases.fast(wanted, *batch_of()))
    assert found.source.batchminer.batchminer.margin == .7


@pytest.mark.parametrize('name', MINERS)
@pytest.mark.parametrize('masks', [False, True])
def test_a_miner_is_the_programs(name, masks, opt):
    own = Miner(batch_mining.select(opt(loss='supcon', batch_mining=name)), name, takes_masks=masks)   # no margin
    mined = []
    for one in (load('miner', name, masks=masks), own):
        manual_seed(0)
        mined.append(one(*batch_of()))
    none = load('miner', name, masks=masks)(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    if isinstance(mined[0], tuple):
        assert isinstance(none, tuple)
        assert masks and all(one.equal(other) for one, other in zip(*mined, strict=True))
    else:
        assert mined[0].equal(mined[1]) and mined[0].shape == (len(mined[0]), 3) != (0, 3) == none.shape


@pytest.mark.parametrize('name', datasampler.SAMPLERS)
def test_a_sampler_is_the_programs(name, opt):
    images, embeddings = images_of([6, 3, 9] * 4), torch.randn(72, 8)
    flags = {'bs': 12, 'samples_per_class': 3, 'seed': 5} if name not in ('full_random', 'image_random') else {
        'bs': 12, 'seed': 5}
    further = {'embeddings': embeddings} if 'batchmatch' in name or 'coreset' in name else {
        'superclasses': images.superclasses} if name == 'hierarchical' else {}
    found = load('sampler', name, [label for _, label in images.image_list], **flags, **further)
    wanted = sampler_of(opt(data_sampler=name, embed_dim=8, **flags), images, embeddings)
    epochs = []
    for epoch in (1, 2):
        for sampler in (found, wanted):
            sampler.start_epoch(epoch)
        epochs.append(list(found))
        assert epochs[-1] == list(wanted)
    assert epochs[0] != epochs[1] and len(found) == len(epochs[0]) >= 72 // 12


def test_the_metrics_are_the_programs_and_leave_the_callers_packages_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, 'records', 'of yours')
    names = ['e_recall@1', 'c_recall@2', 'nmi', 'h_ap', 'dists@intra', 'rho_spectrum@1', 'tpr@0.1']
    before = {*sys.modules}
    measure = load('metrics', names)
    assert sys.modules['evaluation'] is evaluation and sys.modules['records'] == 'of yours'
    assert all(name.startswith('hub_') for name in {*sys.modules} - before)
    embeddings, labels = torch.randn(40, 4, requires_grad=True), torch.arange(40) % 5
    wanted = evaluation.compute(names, embeddings.detach(), labels.numpy())
    assert measure(embeddings, labels + 7) == wanted
    is_query = [number < 10 for number in range(40)]
    wanted = evaluation.compute(['map_at_r'], embeddings.detach(), labels.numpy(), torch.tensor(is_query).numpy())
    assert load('metrics', ['map_at_r'])(embeddings.tolist(), labels.tolist(), is_query) == wanted
    with pytest.raises(ValueError, match=r'not \[40, 4\] and \[40, 1\]'):
        measure(embeddings, labels[:, None])
    with pytest.raises(ValueError, match='not finite'):
        measure(embeddings / 0, labels)


def of_page(*titles):
    """Runs the code of docs/own_loop.md before its first heading and below these, from one seed; returns its names."""
    manual_seed(0)
    names, (head, *sections) = {}, re.split(r'\n## ', (ROOT / 'docs' / 'own_loop.md').read_text())
    texts = dict(section.split('\n', 1) for section in sections)
    for text in (head, *(texts[title] for title in titles)):
        for code in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
            exec(code.replace('path/to/this/checkout', str(ROOT)), names)
    return names


def test_the_loop_the_sampler_the_metrics_and_the_miner_of_the_page_run(capsys):
    names = of_page('A plain loop', 'A sampler', 'The metrics', 'A miner')
    assert 'tensor([4, 4, 4, 4, 4, 4, 4, 4, 4, 4])' in capsys.readouterr().out
    assert names['measure'](names['embeddings'], names['data'].tensors[1])['e_recall@1'] > .2


def test_the_files_that_the_page_copies_are_used_where_nothing_else_of_this_program_is(tmp_path):
    page = (ROOT / 'docs' / 'own_loop.md').read_text().replace('path/to/this/checkout', str(ROOT))
    loop, section = (re.search(rf'\n## {title}\n(.*?)\n## ', page, re.DOTALL)[1]
                     for title in ('A plain loop', 'A file copied alone'))
    subprocess.run(['bash', '-c', re.search(r'```bash\n(.*?)```', section, re.DOTALL)[1]], cwd=tmp_path, check=True)
    data, _ = re.findall(r'```python\n(.*?)```', loop, re.DOTALL)
    parts = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    code = '\n'.join([data, 'network.to(DEVICE)', 'images, labels = next(iter(loader))',
                      *(f'{part}\nloss.backward()' for part in parts),
                      'optimizer.step()', 'print(loss.item(), semihard.__file__)'])
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, capture_output=True, text=True)
    value, file = done.stdout.split()
    assert float(value) > 0 and file == str(tmp_path / 'semihard.py')


@pytest.mark.parametrize('library', ['Lightning', 'accelerate', 'pytorch-metric-learning'])
def test_the_loops_of_libraries_of_the_page_train(library, tmp_path, monkeypatch):
    pytest.importorskip(library.lower().replace('-', '_'), reason=f'the package {library.lower()} is not installed')
    monkeypatch.chdir(tmp_path)                                                       # where Lightning may write
    before, after = of_page('A plain loop'), of_page('A plain loop', library)
    weights = [names['network'].state_dict()['1.weight'] for names in (before, after)]
    assert not weights[0].equal(weights[1])


EMBEDDINGS = torch.tensor([[0.], [1], [3], [9]]), torch.tensor([0, 0, 0, 1])


# In place of losses of pytorch-metric-learning

@pytest.fixture
def pml():
    """The parts of pytorch-metric-learning."""
    for part in ('distances', 'losses', 'miners', 'trainers'):
        pytest.importorskip(f'pytorch_metric_learning.{part}', reason='pytorch-metric-learning is not installed')
    return sys.modules['pytorch_metric_learning']


TRIPLET = 'triplet', {'power': 1., 'active_only': True, 'margin': .2}, 'TripletMarginLoss', {'margin': .2}
MARGIN = 'margin', {'beta_constant': True}, 'MarginLoss', {}
# without TripletMarginMiner, since they count a pair once for each of its triplets
CONTRASTIVE = 'contrastive', {'active_only': True, 'neg_margin': 1.2}, 'ContrastiveLoss', {'neg_margin': 1.2}


@pytest.mark.parametrize('loss, flags, theirs, arguments, miner', [
    *((*loss, 'MultiSimilarityMiner') for loss in (TRIPLET, MARGIN, CONTRASTIVE)),
    *((*loss, 'BatchHardMiner') for loss in (TRIPLET, MARGIN, CONTRASTIVE)),
    *((*loss, 'TripletMarginMiner') for loss in (TRIPLET, MARGIN))])
def test_a_loss_takes_the_tuples_of_their_miners(loss, flags, theirs, arguments, miner, pml):
    distance = pml.distances.LpDistance(normalize_embeddings=False)
    theirs, miner = vars(pml.losses)[theirs](distance=distance, **arguments), vars(pml.miners)[miner]()
    found, built_with_it = (load('criterion', loss, miner=given, n_classes=4, **flags) for given in ('all', miner))
    batch, labels = batch_of()
    tuples = miner(batch, labels)
    wanted = theirs(batch, labels, tuples)
    gradient, = torch.autograd.grad(wanted, batch)
    for value in (found(batch, labels, tuples), found(batch=batch, labels=labels.short(), indices_tuple=tuples),
                  built_with_it(batch, labels), copy.deepcopy(found)(batch, labels.to(torch.uint8), tuples)):
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(torch.autograd.grad(value, batch)[0], gradient)
    assert found(batch, labels).equal(load('criterion', loss, miner='all', n_classes=4, **flags)(batch, labels, None))


@pytest.mark.parametrize('loss, flags, theirs, arguments', [TRIPLET, MARGIN, CONTRASTIVE])
def test_pairs_that_are_listed_twice_count_twice(loss, flags, theirs, arguments, pml):
    distance = pml.distances.LpDistance(normalize_embeddings=False)
    theirs = vars(pml.losses)[theirs](distance=distance, **arguments)
    found = load('criterion', loss, miner='all', n_classes=4, **flags)
    batch, labels = batch_of()
    pairs = [[0, 0, 0, 1, 5], [4, 4, 8, 5, 9], [0, 0, 1, 5, 5, 5], [1, 1, 2, 3, 6, 7]]
    wanted = theirs(batch, labels, tuple(map(torch.tensor, pairs)))
    gradient, = torch.autograd.grad(wanted, batch)
    for kind in (torch.tensor, np.array, list):
        value = found(batch, labels, tuple(map(kind, pairs)))
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(torch.autograd.grad(value, batch)[0], gradient)
    if loss == 'contrastive':
        value = load('criterion', loss, miner='all')(*EMBEDDINGS, ([0, 0, 0], [1, 1, 2], [3], [0]))
        assert value.item() == pytest.approx((1 + 1 + 3) / 3)


def test_references_take_the_place_of_the_batch(pml):
    theirs = pml.losses.ContrastiveLoss(distance=pml.distances.LpDistance(normalize_embeddings=False), neg_margin=1.2)
    found = load('criterion', 'contrastive', miner='all', active_only=True, neg_margin=1.2)
    (batch, labels), (references, others) = batch_of(), batch_of(1)
    others = others.flip(0)[:9]
    references = references[:9]
    wanted = theirs(batch, labels, ref_emb=references, ref_labels=others)
    value = found(batch, labels, ref_emb=references, ref_labels=others)
    torch.testing.assert_close(value, wanted)
    assert found(batch, labels, None, references, others).equal(value)
    assert not torch.isclose(value, found(batch, labels))


OF_REFERENCES = {'contrastive': {'miner': 'all'}, 'circle': {}, 'multisimilarity': {}, 'ntxent': {}, 'supcon': {}}


@pytest.mark.parametrize('loss, settings', OF_REFERENCES.items())
def test_every_loss_of_references_takes_others(loss, settings):
    """As if each sample stood among the references, too, where a loss leaves it out."""
    found, (batch, labels), (references, others) = load('criterion', loss, **settings), batch_of(), batch_of(1)
    for i in range(12):
        own, label = batch[i:i + 1], labels[i:i + 1]
        wanted = found(own, label, references=torch.cat([references, own]), own=torch.tensor([12]),
                       reference_labels=torch.cat([others, label]))
        torch.testing.assert_close(found(own, label, ref_emb=references, ref_labels=others), wanted)
        assert wanted > 0
    found(batch, labels, ref_emb=references, ref_labels=others).backward()
    assert batch.grad.isfinite().all()
    none = found(batch, labels, ref_emb=references[:0], ref_labels=others[:0])
    assert none == 0 and none.requires_grad


@pytest.mark.parametrize('named, error, text', [
    ({'referencs': 1}, TypeError, "'contrastive': unknown referencs; it takes batch, labels, indices_tuple, ref_emb, "),
    ({'ref_emb': EMBEDDINGS[0]}, ValueError, 'give ref_emb and ref_labels together'),
    ({'ref_emb': EMBEDDINGS[0], 'ref_labels': EMBEDDINGS[1][:3]}, ValueError, r'not \[4, 1\] and \[3\]'),
    ({'ref_emb': torch.ones(4, 2), 'ref_labels': EMBEDDINGS[1]}, ValueError, r'embeddings \[B, 1\]'),
    ({'indices_tuple': ([0], [1], [0], [3]), 'ref_emb': EMBEDDINGS[0], 'ref_labels': EMBEDDINGS[1]}, ValueError,
     'give indices_tuple or ref_emb, not both'),
    ({'labels': None}, TypeError, r'expected labels \[B\], a tensor, not None'),
    ({'labels': [0, 0, 0, 1]}, TypeError, r'expected labels \[B\], a tensor, not list'),
    ({'batch': [[0.], [1], [3], [9]]}, TypeError, r'expected embeddings \[B, D\], a tensor, not list'),
    ({'batch': EMBEDDINGS[0].long()}, TypeError, 'embeddings of a floating-point type, not torch.int64'),
    *(({'indices_tuple': wrong}, ValueError, 'expected three or four tensors of indices') for wrong in (
        ([0, 1], [1], [3, 3]), ([0, 1], [1, 0], [3, 3], [0]), ([0], [1], [4]), ([0], [1], [-1]), ([.5], [1.], [3.]),
        ([0], [1]), ([0, 1, 3], [1, 0, 3], [0, 2, 3], [0, 1, 3], [0, 1, 3])))])
def test_wrong_calls_are_named(named, error, text):
    found = load('criterion', 'contrastive', miner='all')
    with pytest.raises(error, match=text):
        found(**{'batch': EMBEDDINGS[0], 'labels': EMBEDDINGS[1]} | named)


@pytest.mark.parametrize('kind', [torch.tensor, np.array, list])
def test_columns_of_three_indices_are_columns(kind):
    points, labels = torch.tensor([0, 1, 3, 4.5, 9, 9.2])[:, None], torch.tensor([0, 0, 1, 1, 2, 2])
    columns = [[0, 1, 2], [1, 0, 3], [2, 4, 5]]
    found = load('criterion', 'triplet', miner='all', margin=100.)(points, labels, tuple(map(kind, columns)))
    terms = [(points[a] - points[p]) ** 2 - (points[a] - points[n]) ** 2 + 100
             for a, p, n in zip(*columns, strict=True)]
    assert found.item() == pytest.approx(sum(terms).item() / 3, abs=1e-4) == pytest.approx(64.27, abs=1e-2)


@pytest.mark.parametrize('loss, miner', [('lifted', 'lifted'), ('npair', 'npair'), ('angular', 'npair')])
def test_losses_of_pairs_refuse_triplets_by_a_sentence(loss, miner):
    found, (batch, labels) = load('criterion', loss, miner=miner), batch_of()
    with pytest.raises(ValueError, match=f"'{loss}' takes pairs, not triplets: give \\(anchors, positives, anchors"):
        found(batch, labels, ([0, 1], [4, 5], [1, 2]))


def test_super_classes_may_be_a_tensor():
    labels = torch.arange(40) % 4
    found = [list(load('sampler', 'hierarchical', labels, superclasses=given, bs=8))
             for given in ([0, 0, 1, 1], torch.tensor([0, 0, 1, 1]), np.array([0, 0, 1, 1]))]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize('is_query', [[True] * 5, [True] * 3, [0, 3], [[True]] * 4, [0, 2, 1, 1]])
def test_queries_of_another_form_are_refused_by_metrics(is_query):
    measure = load('metrics', ['e_recall@1', 'map_at_r'])
    for given in (is_query, torch.tensor(is_query), np.array(is_query)):
        with pytest.raises(ValueError, match='expected is_query, 4 booleans, not '):
            measure(*EMBEDDINGS, given)
    assert measure(*EMBEDDINGS, [1, 0, 0, 0]) == measure(*EMBEDDINGS, [True, False, False, False])


@pytest.mark.parametrize('theirs, ours', [
    ('mean_average_precision_at_r', 'map_at_r'), ('mean_average_precision', 'mAP'), ('NMI', 'nmi'), ('AMI', 'ami')])
def test_their_names_of_metrics_are_known(theirs, ours):
    with pytest.raises(ValueError, match=f'{theirs}: its name here is {ours}$'):
        load('metrics', [theirs])


@pytest.mark.parametrize('loss, miner', WITH_MINERS)
def test_what_every_loss_takes_and_refuses(loss, miner):
    """Labels of any integer type; no samples, which give 0 with a graph; tuples of a miner; references."""
    small = {f'loss_{loss}_{flag}': value for flag, value in cases.SMALL.get(loss, {}).items()}
    found = load('criterion', loss, miner=miner, **SIZES, **small).eval()             # the centres of `center` stay
    batch, labels = batch_of()
    wanted = cases.fast(found, batch, labels)
    for kind in (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32):
        assert cases.fast(found, batch, labels.to(kind)).equal(wanted)
    none = torch.zeros(0, 4, requires_grad=True)
    for criterion in (found, copy.deepcopy(found)):
        value = criterion(none, torch.zeros(0, dtype=torch.int64))
        value.backward()
        assert value.item() == 0 and none.grad.shape == (0, 4)
    assert ('references' in found.takes) == (loss in OF_REFERENCES)
    if loss not in OF_REFERENCES:
        with pytest.raises(ValueError, match=f"'{loss}' compares a batch with itself only: leave out ref_emb"):
            found(batch, labels, ref_emb=batch, ref_labels=labels)
    tuples = load('miner', 'lifted', masks=miner in ('npair', 'lifted'))(batch, labels)
    if miner is None:
        with pytest.raises(ValueError, match=f"criterion '{loss}' takes no tuples of a miner: leave out indices_tuple"):
            cases.fast(found, batch, labels, indices_tuple=tuples)
        return
    other = load('criterion', loss, miner=lambda *_: tuples, **SIZES, **small)
    other.load_state_dict(found.state_dict())
    assert cases.fast(found, batch, labels, indices_tuple=tuples).equal(cases.fast(other, batch, labels))
    assert cases.fast(found, batch, labels).equal(wanted)
    for wrong, what in ((batch, r'Tensor of float32 \[12, 4\]'), (tuple(labels for _ in range(5)), 'tuple of 5, the '),
                        ([labels[:3], labels[:2], labels], 'list of 3')):
        with pytest.raises(ValueError, match=f'indices_tuple: {what}.*; expected three or four tensors of indices'):
            found(batch, labels, wrong)


@pytest.mark.parametrize('kind', [torch.uint8, torch.int16, torch.int32, torch.uint32])
def test_miners_samplers_and_metrics_take_labels_of_any_integer_type(kind):
    batch, labels = batch_of()
    for name in MINERS:
        miner, mined = load('miner', name), []
        for given in (labels, labels.to(kind)):
            manual_seed(0)
            mined.append(miner(batch, given))
        assert mined[0].equal(mined[1])
        with pytest.raises(ValueError, match=r'not \[12, 4\] and \[12, 1\]'):
            miner(batch, labels[:, None])
    measure = load('metrics', ['e_recall@1', 'nmi'])
    assert measure(batch, labels.to(kind)) == measure(batch, labels)
    samplers = [list(load('sampler', 'class_random', given, bs=4)) for given in (labels, labels.to(kind))]
    assert samplers[0] == samplers[1]


def test_labels_that_are_nan_or_of_another_shape_are_refused_by_metrics_and_samplers():
    batch, labels = batch_of()
    missing = labels.double().where(torch.arange(12) > 1, torch.nan)
    assert load('metrics', 'nmi')(batch, labels.double()) == load('metrics', ['nmi'])(batch, labels)
    for given in (missing, missing.numpy(), missing.tolist()):
        with pytest.raises(ValueError, match='2 of the 12 labels are NaN; leave these images out'):
            load('metrics', ['e_recall@1'])(batch, given)
        with pytest.raises(ValueError, match='2 of the 12 labels are NaN'):
            load('sampler', 'class_random', given, bs=4)
    with pytest.raises(ValueError, match=r'expected labels \[N\], not \[12, 1\]'):
        load('sampler', 'class_random', labels[:, None], bs=4)


@pytest.mark.parametrize('arguments, error, text', [
    ((['triplet'], {}), ValueError, "criterion 'triplet': miner None; choose from .*random, all"),
    ((['triplet'], {'miner': 'harder'}), ValueError, "miner 'harder': unknown; choose from .*random"),
    ((['softmaxx'], {}), ValueError, "criterion 'softmaxx': unknown; choose from .*angular"),
    ((['supcon'], {'miner': 'hard'}), ValueError, "criterion 'supcon' takes no miner"),
    ((['s2sd'], {'loss_s2sd_source': 's2sd'}), ValueError, "criterion 's2sd' does not contain itself"),
    ((['supcon'], {'temp': 1}), TypeError, "criterion 'supcon': unknown temp; it takes temperature, n_classes"),
    ((['triplet'], {'miner': 'distance', 'miner_hard': 1}), TypeError,
     'unknown miner_hard; it takes margin, power, active_only, miner_distance_lower_cutoff'),
    ((['proxyanchor'], {}), TypeError, r"criterion 'proxyanchor': give n_classes \(number of classes\)"),
    ((['s2sd'], {}), TypeError, "criterion 's2sd': give n_features"),
    ((['dynamic_arcface'], {**SIZES, 'class_counts': [16, 4, 1]}), ValueError,
     r"criterion 'dynamic_arcface': class_counts of shape \[3\]: expected number of training images of each class"),
    ((['happier'], {**SIZES, 'superclasses': [0, 0, 1, 1]}), ValueError, r'superclasses of shape \[4\]: expected the '),
    ((['proxyanchor'], {'margin': 'x'}), ValueError, "criterion 'proxyanchor': margin='x': expected a number$"),
    ((['npair'], {'miner': 'npair', 'negatives': 'few'}), ValueError, "negatives='few': expected all or pairs"),
    ((['recallatk'], {'k': 1}), ValueError, 'k=1: expected a list, each a whole number of at least 1'),
    ((['triplet'], {'miner': 'distance', 'miner_distance_lower_cutoff': 3}), ValueError,
     'miner_distance_lower_cutoff=3: expected a number of at least 0 and at most 2'),
    ((['class_randm', [0, 1]], {}), ValueError, "sampler 'class_randm': unknown; choose from .*class_random"),
    ((['class_random', [0, 1]], {'lambda': 1}), TypeError, "sampler 'class_random': unknown lambda; it takes cover"),
    ((['class_random', [0, 1]], {'bs': 3}), ValueError, '--bs 3 is not divisible by --samples_per_class 2'),
    ((['d2_coreset', [0, 1]], {'bs': 2}), TypeError, "sampler 'd2_coreset' needs embeddings"),
    ((['balanced', [0, 1]], {'superclasses': [0, 0]}), TypeError, "sampler 'balanced' takes no superclasses"),
    ((['balanced', []], {}), ValueError, r'sampler: expected labels \[N\] of one image or more'),
    ((['hierarchical', [0, 0, 1, 1]], {'bs': 2, 'superclasses': [0]}), ValueError,
     'sampler: expected 2 superclasses, not 1'),
    ((['d2_coreset', [0, 0, 1, 1]], {'bs': 2, 'embeddings': torch.rand(5, 3)}), ValueError,
     'sampler: expected 4 embeddings, not 5'),
    ((['recall@1'], {}), ValueError, 'recall@1: unknown; choose from .*e_recall')])
def test_wrong_settings_are_named(arguments, error, text):
    names, settings = arguments
    entry = 'metrics' if names == ['recall@1'] else 'sampler' if text.startswith(('sampler', '--bs')) else 'criterion'
    with pytest.raises(error, match=text):
        load(entry, *([names] if entry == 'metrics' else names), **settings)


@pytest.mark.parametrize('loss, miner', [('margin', 'all'), ('s2sd', None)])
def test_wrong_batches_are_named(loss, miner):
    found, (batch, labels) = load('criterion', loss, miner=miner, **SIZES), batch_of()
    for wrong, error, text in [((batch, labels[:, None]), ValueError, r'not \[12, 4\] and \[12, 1\]'),
                               ((batch[:, :3], labels), ValueError, r'embeddings \[B, 4\], .* not \[12, 3\]'),
                               ((batch[0], labels[:1]), ValueError, r'not \[4\] and \[1\]'),
                               ((batch, labels.float()), TypeError, 'integer type, not torch.float32'),
                               ((batch, labels.to('meta')), ValueError, 'on cpu and the labels on meta')]:
        with pytest.raises(error, match=text):
            found(*wrong)
    for shift, text in ((1, '1 to 4'), (-1, '-1 to 2')):
        with pytest.raises(ValueError, match=f'from 0 to 3, not {text}'):
            found(batch=batch, labels=labels + shift)


@pytest.mark.parametrize('loss', ['contextual', 'dcl', 'dr_multisimilarity', 'liftedstructure', 'pfml',
                                  'snr_contrastive', 'tcm'])
def test_functions_that_would_broadcast_labels_refuse_them(loss):
    """The pairs of labels [B, 1] would be [B, 1, B] or, with the labels of others, of wrong samples."""
    function, (batch, labels) = getattr(criteria.CRITERIA[loss], f'{loss}_loss'), batch_of()
    with pytest.raises(ValueError, match=r'labels \[B\] for embeddings \[B, D\], not \[12, 1\] for \[12, 4\]'):
        function(batch, labels[:, None], *[torch.randn(4, 2, 4)] * (loss == 'pfml'))


@pytest.mark.parametrize('loss', ['antico', 'proxyanchor', 'oproxy', 'nir', 'pfml'])
@pytest.mark.parametrize('shift', [-1, 1])
def test_functions_that_compare_labels_with_proxies_refuse_others(loss, shift):
    """Without a proxy, a sample would only be pushed away; below 0, it would be of a class counted from the end."""
    function, (batch, labels) = getattr(criteria.CRITERIA[loss], f'{loss}_loss'), batch_of()
    with pytest.raises(ValueError, match='expected labels from 0 to 3, not '):
        function(batch, labels + shift, torch.randn(4, 2, 4)[:, slice(2) if loss == 'pfml' else 0],
                 *[None] * (loss == 'nir'))


FRESH = """
import sys
sys.modules['numpy'] = None
import torch
from torch.utils._python_dispatch import TorchDispatchMode
before = {*sys.modules}
settings = dict(source='local', trust_repo=True)
criterion = torch.hub.load(sys.argv[1], 'criterion', 'margin', miner='distance', n_classes=3, **settings)
torch.hub.load(sys.argv[1], 'criterion', 's2sd', n_features=4, embed_dim=4, **settings)
criterion(torch.eye(6), torch.arange(6) // 2).backward()
torch.hub.load(sys.argv[1], 'sampler', 'balanced', torch.arange(6) // 2, bs=4, **settings)
print({name.split('.')[0] for name in {*sys.modules} - before if getattr(sys.modules[name], '__file__', None)
       and sys.modules[name].__file__.startswith(sys.argv[1])} - {'yours'})
import datasets, evaluation, utilities.errors
print(datasets.WHOSE, evaluation.WHOSE, utilities.errors.WHOSE)
"""


def test_a_fresh_process_keeps_its_own_packages_and_needs_torch_only(tmp_path):
    for name in ('datasets', 'evaluation', 'utilities/errors'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f'{name}.py').write_text("WHOSE = 'yours'\n")
    (tmp_path / 'script.py').write_text(FRESH)
    done = subprocess.run([sys.executable, 'script.py', str(ROOT)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported, whose = done.stdout.splitlines()
    private = re.sub(r'\W', '_', str(ROOT))
    folders = ('criteria', 'batch_mining', 'datasampler', 'flags', 'utilities')
    assert eval(imported) == {f'hub_{private}_{folder}' for folder in folders}
    assert whose == 'yours yours yours'


def test_a_network_of_an_exported_run(quick, run, tmp_path, monkeypatch):
    assert run(*quick, '--n_epochs', '0') == 0
    folder, (images,) = folder_of(tmp_path), torch.randint(0, 256, (1, 3, 3, 16, 16), dtype=torch.uint8)
    export_here(monkeypatch)
    export.write(configuration.parse(['--evaluate', str(folder)]), folder, tmp_path / 'hub', hub=True)
    found = load('network', tmp_path / 'hub')
    network, _ = retrieval.load(folder, 'cpu')
    torch.testing.assert_close(found(images), network(images), rtol=1e-5, atol=1e-5)
    assert found.description['network'] == network.id and not found(images).requires_grad
    for given in (images.float(), images / 255, images.numpy()):
        with pytest.raises(ValueError, match=r'expected uint8 RGB .*, a tensor, not .*round..\.byte.. makes them'):
            found(given)
    elsewhere = load('network', tmp_path / 'hub', device='meta')(images.to('meta'))      # for want of a GPU
    assert elsewhere.device.type == 'meta' and elsewhere.shape == found(images).shape
    with pytest.raises(ValueError, match='nothing: it cannot be loaded: what it says$'):
        load('network', tmp_path / 'nothing')
    with pytest.raises(ValueError, match='device cuda: .onnx files compute on the CPU'):
        load('network', 'network.onnx', device='cuda')
    assert checkpoint.find(folder).exists()


class Code:
    """Pickled, it is a command that writes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


class Precisions(TorchDispatchMode):
    """In the block: the precisions of convolutions on GPUs, when operations are computed."""

    def __init__(self):
        super().__init__()
        self.of_convolutions = set()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        self.of_convolutions.add(torch.backends.cudnn.conv.fp32_precision)
        return operation(*arguments, **named or {})


def test_a_pt2_file_is_loaded_only_with_trust_since_it_can_hold_code(tmp_path):
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    program = torch.export.export(torch.nn.Flatten(), (images,))
    torch.export.save(program, tmp_path / 'own.pt2', extra_files={'description.json': '{"input": "some"}'})
    code = io.BytesIO()
    torch.save(Code(tmp_path / 'it_ran'), code)
    with zipfile.ZipFile(tmp_path / 'own.pt2') as own, zipfile.ZipFile(tmp_path / 'foreign.pt2', 'w') as foreign:
        for name in own.namelist():
            foreign.writestr(name, code.getvalue() if 'sample_inputs' in name else own.read(name))
    for name in ('own', 'foreign'):
        with pytest.raises(ValueError, match='can run any code where it is loaded, .* trust=True if the'):
            load('network', tmp_path / f'{name}.pt2')
    assert not (tmp_path / 'it_ran').exists()
    network = load('network', tmp_path / 'own.pt2', trust=True)
    assert network.description == {'input': 'some'}
    before = torch.backends.cudnn.conv.fp32_precision
    with Precisions() as found:
        network(images)
    assert found.of_convolutions == {'none'} and torch.backends.cudnn.conv.fp32_precision == before == 'tf32'
    with contextlib.suppress(Exception):
        load('network', tmp_path / 'foreign.pt2', trust=True)
    assert (tmp_path / 'it_ran').exists()                    # so that the file is what it is meant to be


def test_an_onnx_file_is_loaded(tmp_path):
    onnx, _ = pytest.importorskip('onnx'), pytest.importorskip('onnxruntime')
    info = functools.partial(onnx.helper.make_tensor_value_info)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node('Cast', ['images'], ['embeddings'], to=onnx.TensorProto.FLOAT)], 'cast',
        [info('images', onnx.TensorProto.UINT8, ['batch', 3, 2, 2])],
        [info('embeddings', onnx.TensorProto.FLOAT, ['batch', 3, 2, 2])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 18)], ir_version=10)
    model.metadata_props.add(key='description.json', value='{"input": "some"}')
    onnx.save(model, tmp_path / 'network.onnx')
    found = load('network', tmp_path / 'network.onnx')
    images = torch.randint(0, 256, (2, 3, 2, 2), dtype=torch.uint8)
    assert found(images).equal(images.float()) and found.description == {'input': 'some'}


def test_the_functions_have_documented_arguments():
    module = torch.hub._import_module('hubconf', str(ROOT / 'hubconf.py'))
    assert module.dependencies == ['torch']
    parser = parameters.build()
    assert all(values['default'] == parser.get_default(flag) for flag, values in module._RUN.items()
               if 'default' in values)
    for entry in ENTRIES:
        function = getattr(module, entry)
        assert all(f'{name}:' in function.__doc__ for name in inspect.signature(function).parameters)
    assert [name for name in dir(module) if name[0] != '_' and callable(getattr(module, name))] == ENTRIES
    # which is what torch.hub.list gives
