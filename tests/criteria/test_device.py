"""What the losses make the host wait for, on fake tensors of a GPU; and, where there is one, on the GPU."""
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import batch_mining
import criteria
from benchmarks.gpu import synchronisations
from records.trace import Trace
from tests import host_waits
from tests.criteria import cases
from tests.helpers import ROOT
from tests.host_waits import CONVERSION, COPY, LOSSES, LOSSES_OF_MASKS, MINERS, NUMBER, SHAPE

N_CLASSES = 5


def miners_of(loss):
    """A loss waits alike for masks of any miner, and for triplets of any."""
    module = criteria.CRITERIA[loss]
    return (module.ALLOWED_MINING_OPS or ['all', 'distance']) if module.REQUIRES_BATCHMINER else ['none']


PAIRS = [(loss, miner) for loss in criteria.CRITERIA for miner in miners_of(loss)]


def gives_masks(miner):
    return getattr(batch_mining.BATCHMINERS[miner], 'RETURNS', '') == 'masks'


def listed(loss, miner):
    """What a call of the loss with this miner waits for, from the lists."""
    found = [*MINERS.get(miner, {})]
    if gives_masks(miner) and not cases.takes_masks(loss):
        found += CONVERSION
    elif gives_masks(miner):
        found += LOSSES_OF_MASKS.get(loss, {})
    return [*found, *LOSSES.get(loss, {})]


def build(opt, device='cuda', **flags):
    namespace = opt(n_classes=N_CLASSES, embed_dim=4, n_features=4, bs=8, **flags)
    with torch.device(device):
        return criteria.select(namespace, batch_mining.select(namespace))


def found_in(criterion, waits):
    """What the second of two equal steps waits for; the log goes to a trace, as in training."""
    batch, labels = host_waits.batch_on('cuda')
    with torch.device('cuda'):
        layer = torch.nn.Linear(4, 4)
    trace = Trace(epoch=1)
    for _ in range(2):                                     # what is copied at the first call does not count
        waits.found.clear()
        loss = criterion(batch=batch, labels=labels, batch_features=batch, f_embed=layer)
        trace.add(loss=loss, grad_norm=loss.detach(), **getattr(criterion, 'log', {}))
    assert loss.device == batch.device and loss.shape == ()
    return waits.found


@pytest.mark.parametrize('loss, miner', PAIRS)
def test_a_loss_works_on_its_device_and_makes_the_host_wait_only_as_listed(loss, miner, opt):
    with host_waits.fake_gpu() as waits:
        assert found_in(build(opt, loss=loss, batch_mining=miner), waits) == listed(loss, miner)


@pytest.mark.parametrize('loss, miner', [
    (loss, miner) for loss, miner in PAIRS
    if miner == miners_of(loss)[0] or cases.takes_masks(loss)])
def test_the_gradient_makes_the_host_wait_for_nothing(loss, miner, opt):
    """On fake tensors of the CPU, since a gradient on a GPU needs a real one: reading data is an error there too."""
    with FakeTensorMode():
        batch, labels = host_waits.batch_on('cpu')
        with host_waits.Waits():
            value = build(opt, 'cpu', loss=loss, batch_mining=miner)(
                batch=batch, labels=labels, batch_features=batch)
        value.backward()
    assert batch.grad.shape == batch.shape


WRAPPED = [
    *(({'loss': loss, 'batch_mining': miners_of(loss)[-1], 'xbm_size': 12, 'xbm_start': 0},
       listed(loss, miners_of(loss)[-1])) for loss in cases.naming('references')),
    # direction regularisation lists masks that the loss takes as triplets
    ({'loss': 'triplet', 'batch_mining': 'all', 'dr_weight': .3}, [SHAPE, *CONVERSION]),
    ({'loss': 'triplet', 'batch_mining': 'distance', 'dr_weight': .3}, [SHAPE]),
    ({'loss': 'snr', 'batch_mining': 'all', 'dr_weight': .3}, CONVERSION),
    ({'loss': 'contrastive', 'batch_mining': 'all', 'cascade': [1], 'cascade_fractions': [.5]}, []),
    ({'loss': 'triplet', 'batch_mining': 'all', 'cascade': [1], 'cascade_fractions': [.5]}, CONVERSION),
    ({'loss': 'margin', 'batch_mining': 'distance', 'cascade': [1], 'cascade_fractions': [.5]}, [SHAPE]),
    ({'loss': 'triplet', 'batch_mining': 'semihard', 'daml': True, 'daml_layers': [5]}, [SHAPE]),
    ({'loss': 'margin+roadmap+triplet+softmax', 'batch_mining': 'distance+none+all+none'}, [SHAPE, NUMBER, SHAPE]),
]


@pytest.mark.parametrize('flags, expected', WRAPPED, ids=str)
def test_wrappers_and_sums_add_no_wait_but_that_for_triplets(flags, expected, opt):
    with host_waits.fake_gpu() as waits:
        assert found_in(build(opt, **flags), waits) == expected


def test_a_trace_waits_once_for_each_name_in_50_steps(opt):
    with host_waits.fake_gpu() as waits:
        trace, loss = Trace(epoch=1), torch.ones((), device='cuda')
        for _ in range(Trace.COPY_EVERY - 1):
            trace.add(loss=loss, grad_norm=loss, tuples=7)
        assert not waits.found
        trace.add(loss=loss, grad_norm=loss, tuples=7)
    assert waits.found == [COPY, COPY]                      # `tuples` is on the host already


def test_the_lists_are_those_of_the_documentation():
    page = (ROOT / 'docs' / 'development.md').read_text()
    section = re.search(r'## What a training step waits for\n(.*?)\n## ', page, re.DOTALL)[1]
    assert {*re.findall(r'`(\w+)`', ' '.join(line.split('|')[1] for line in section.split('\n') if line[:3] == '| `'))
            } == {*MINERS, *LOSSES, *LOSSES_OF_MASKS}


@pytest.mark.gpu('cuda')
@pytest.mark.parametrize('loss, miner', PAIRS)
def test_on_a_gpu_a_step_synchronises_no_more_often_than_listed(loss, miner, opt):
    criterion = build(opt, loss=loss, batch_mining=miner)
    batch = torch.nn.functional.normalize(torch.randn(16, 4, device='cuda'), dim=1).requires_grad_()
    labels = torch.arange(4, device='cuda').repeat_interleave(4, output_size=16)
    for _ in range(2):                                     # what is set up at the first step does not count
        with synchronisations() as found:
            criterion(batch=batch, labels=labels, batch_features=batch, f_embed=None).backward()
    assert len(found) <= len(listed(loss, miner)), found
