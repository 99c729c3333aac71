"""What the miners make the host wait for, on fake tensors of a GPU."""
import pytest

import batch_mining
from tests import host_waits
from tests.helpers import published

NAMES = [name for name, module in batch_mining.BATCHMINERS.items() if module]


@pytest.mark.parametrize('name', NAMES)
def test_a_miner_works_on_its_device_and_makes_the_host_wait_only_as_listed(name, opt):
    with host_waits.fake_gpu() as waits:
        miner = batch_mining.select(opt(batch_mining=name, loss='triplet'))
        batch, labels = host_waits.batch_on('cuda')
        miner(batch, labels)                               # what is copied at the first call does not count
        waits.found.clear()
        mined = miner(batch, labels)
    assert name not in published(batch_mining.BATCHMINERS) or waits.found == [*host_waits.MINERS.get(name, {})]
    assert all(part.is_cuda for part in host_waits.tensors(mined)) and host_waits.tensors(mined)


def test_the_list_has_names_of_the_registry():
    assert {*host_waits.MINERS} <= {*NAMES}
