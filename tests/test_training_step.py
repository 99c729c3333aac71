"""The training step: in pieces, by several processes, in mixed precision, compiled; compared with the plain one."""
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.shared_batches import LOSSES, TRAINED

ROOT = Path(__file__).parents[1]
WAYS = ['in pieces', '2 processes', '3 processes']


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """{way: [what each process wrote]} of tests.shared_batches."""
    folder = tmp_path_factory.mktemp('shared')
    children = [subprocess.Popen([sys.executable, '-m', 'tests.shared_batches', str(rank), str(folder)], cwd=ROOT,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for rank in range(3)]
    while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
        time.sleep(0.1)
    failed = [child for child in children if child.poll()]
    for child in children:
        child.kill()
    errors = [child.communicate()[1] for child in children]
    assert not failed, '\n'.join(errors)
    return {way: [torch.load(file) for file in sorted(folder.glob(f'{way}_*.pt'))]
            for way in ('alone', *WAYS, 'dropout')}


def assert_near(one, other, tolerance):
    """Tensors of equal names, whose elements differ by at most tolerance times the largest of each tensor."""
    assert one.keys() == other.keys() and one
    for name, value in one.items():
        assert value.dtype == other[name].dtype and value.shape == other[name].shape
        if value.numel():
            largest, difference = value.double().abs().max(), (value.double() - other[name].double()).abs().max()
            assert difference <= tolerance * largest, (name, float(difference), float(largest))


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('case', TRAINED)
def test_after_fifty_steps_in_float64_all_is_equal(case, way, trained):
    plain, shared = trained['alone'][0][case], trained[way][0][case]
    assert len(plain['losses']['losses']) == 50 and not torch.equal(*plain['losses']['losses'][[0, -1]])
    for part in ('network', 'losses', 'criterion') if plain['criterion'] else ('network', 'losses'):
        assert_near(plain[part], shared[part], 1e-6)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('loss', LOSSES)
def test_the_gradients_of_one_step_in_float32(loss, way, trained):
    plain, shared = (trained[name][0][f'{loss} in float32'] for name in ('alone', way))
    assert_near(plain['gradients'], shared['gradients'], 1e-4)
    assert plain['logs'][0]['train_grad_norm'] == pytest.approx(shared['logs'][0]['train_grad_norm'], rel=1e-4)


@pytest.mark.parametrize('way', WAYS[1:])
def test_all_processes_have_the_same_bits(way, trained):
    first, *others = trained[way]
    assert len(others) == int(way[0]) - 1
    for other in others:
        assert first.keys() == other.keys()
        for case, results in first.items():
            for name, value in results['network'].items():
                assert torch.equal(value, other[case]['network'][name]), (case, name)
            assert torch.equal(results['losses']['losses'], other[case]['losses']['losses'])
