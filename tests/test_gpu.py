"""Which precision a run computes in, and `make test-gpu`; on a GPU, that embeddings do not depend on the precision."""
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import architectures
from architectures.embedding_network import EmbeddingNetwork
from evaluation import verification
from evaluation.embedding import embed_batch
from retrieval import loading, suspects
from tests.helpers import GPU, ROOT, folder_of
from tests.shared_batches import build
from utilities import device

FULL, PYTORCHS = (False, False), (True, False)         # TF32 in convolutions, in products of matrices


def precision():
    return tuple(setting.fp32_precision == 'tf32' for setting in device.SETTINGS[:2])


@pytest.mark.parametrize('flags, expected', [({}, PYTORCHS), ({'tf32': True}, (True, True)), ({'tf32': False}, FULL)])
def test_float32_is_computed_as_in_pytorch_or_as_the_flag_says(flags, expected, opt):
    for before in ((False, False), (True, True)):                              # of an earlier run in this process
        device.set_tf32(*before)
        device.set_arithmetic(opt(**flags))
        assert precision() == expected


@pytest.mark.parametrize('kind, flag, expected', [('cuda', True, True), ('cuda', False, False), ('cpu', False, True)])
def test_arithmetic_is_deterministic_on_the_cpu_and_by_the_flag(kind, flag, expected, opt, monkeypatch):
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', '')
    monkeypatch.delenv('CUBLAS_WORKSPACE_CONFIG')
    for name in ('deterministic', 'benchmark'):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    flags = opt(deterministic=flag)
    flags.device = torch.device(kind)
    device.set_arithmetic(flags)
    assert torch.are_deterministic_algorithms_enabled() == torch.backends.cudnn.deterministic == expected
    assert torch.backends.cudnn.benchmark != expected
    assert os.environ.get('CUBLAS_WORKSPACE_CONFIG') == (':4096:8' if kind == 'cuda' and flag else None)


@pytest.fixture
def computed(monkeypatch):
    """{whether the network is trained: the precisions in which it computes}."""
    found, forward = {True: set(), False: set()}, EmbeddingNetwork.forward

    def noting(network, *arguments, **named):
        found[network.training].add(precision())
        return forward(network, *arguments, **named)
    monkeypatch.setattr(EmbeddingNetwork, 'forward', noting)
    return found


@pytest.mark.parametrize('flags, expected', [('', PYTORCHS), ('--tf32', (True, True)), ('--tf32 false', FULL)])
def test_a_run_trains_in_the_precision_of_its_flag_and_embeds_in_full_float32(flags, expected, computed, quick, run,
                                                                              tmp_path):
    """Also a memory bank; then torch.hub's network and an index, in a program that has chosen TF32."""
    assert run(*quick, *flags.split(), '--data_sampler', 'd2_coreset', '--eval_views', 'flip') == 0
    assert computed == {True: {expected}, False: {FULL}} and precision() == expected
    device.set_tf32(True, True)
    network, _ = loading.load(folder_of(tmp_path), 'cpu')
    network(torch.rand(2, 3, 16, 16))
    assert computed[False] == {FULL} and precision() == (True, True)


def test_a_teacher_and_a_loss_compute_in_full_float32(computed):
    _, built, loader = build('--ema 0.5 --distill ema')
    built.criterion.register_forward_pre_hook(lambda *_: computed[False].add(precision()))
    device.set_tf32(True, True)
    built.step(*next(iter(loader.epoch(1))), 1, 1)
    assert computed == {True: {(True, True)}, False: {FULL}} and precision() == (True, True)


def test_the_precision_is_set_back_after_an_error():
    device.set_tf32(True, True)
    with pytest.raises(ZeroDivisionError), device.full_float32():
        assert precision() == FULL
        raise ZeroDivisionError
    assert precision() == (True, True)


@pytest.mark.gpu
def test_neighbours_and_pairs_are_compared_in_full_float32(monkeypatch):
    found, product = [], torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, '__matmul__', lambda *both: found.append(precision()) or product(*both))
    device.set_tf32(True, True)
    points, labels = torch.rand(40, 4, device=GPU), np.arange(40) // 4
    suspects.find(points, labels)
    n_products = len(found)
    assert verification.Pairs(points, labels).histograms.sum() == 40 * 39
    assert 0 < n_products < len(found) and {*found} == {FULL} and precision() == (True, True)


@pytest.mark.gpu('cuda')
@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason='it has no TF32')
def test_embeddings_of_a_gpu_do_not_depend_on_tf32(opt):
    network = architectures.select(opt(arch='conv4', not_pretrained=True, input_size=64)).cuda().eval()
    images, embeddings, trained = torch.rand(64, 3, 64, 64), [], []
    for tf32 in (False, True):
        device.set_tf32(tf32, tf32)
        embeddings.append(embed_batch(network, images)[0])
        trained.append(network(images.cuda())[0])
    assert torch.equal(*embeddings) and not torch.equal(*trained)
    assert torch.equal(embeddings[0], trained[0])


# Stand-ins for torch and pytest
TORCH = """
import argparse
cuda, __version__ = argparse.Namespace(is_available=lambda: {}), '2.11'
"""


@pytest.mark.parametrize('has_gpu', [False, True])
def test_make_test_gpu_names_what_it_tests_or_why_not(has_gpu, tmp_path):
    (tmp_path / 'torch.py').write_text(TORCH.format(has_gpu))
    (tmp_path / 'pytest.py').write_text('import sys; print(*sys.argv[1:])')
    variables = {'PYTHON': sys.executable, 'PYTHONPATH': str(tmp_path)}
    done = subprocess.run(['bash', ROOT / 'tests' / 'gpu.sh'], env=os.environ | variables, capture_output=True,
                          text=True, check=True)
    if not has_gpu:
        assert done.stdout == ('make test-gpu: skipped: it needs an NVIDIA GPU, and PyTorch 2.11 finds none\n')
        return
    given = done.stdout.split()
    assert {'-m', 'gpu', '-n', '2', 'faulthandler_timeout=60', 'tests/test_gpu.py'} <= {*given}
    assert 'tests/test_training_step.py' in given and 'tests/test_main.py' not in given
