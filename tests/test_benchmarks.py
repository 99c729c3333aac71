"""The table of the benchmarks; the dry runs of benchmarks.gpu and million; the comparison of first steps."""
import gc
import re
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import Row, __main__, equality, figures, gpu, million
from evaluation.ranking import counting
from tests import host_waits
from utilities import errors, stopping

ROWS = [Row('fast; slow', 1.0, 4.0, .5), Row('slow; fast', 3.0, 2.0, 1.1)]


def cells(text):
    """The cells of the rows of tables, without the head of the first one."""
    return [[cell.strip() for cell in line[1:-1].split('|')] for line in text.splitlines()
            if line.startswith('| ') and not line.startswith('| ---')][1:]


def test_the_table_has_ratios_and_whether_they_meet_the_targets(capsys, monkeypatch):
    monkeypatch.setattr('benchmarks.step.short', lambda: ROWS)
    assert not __main__.main(['step'])
    assert cells(capsys.readouterr().out) == [
        ['fast; slow', '1', '4', '0.25', '0.50', 'yes'], ['slow; fast', '3', '2', '1.50', '1.10', 'no']]


def test_the_machine_is_named_with_the_settings_of_its_kernels(monkeypatch):
    monkeypatch.setenv('OPENBLAS_CORETYPE', 'Haswell')
    monkeypatch.delenv('ATEN_CPU_CAPABILITY', raising=False)
    told = figures.machine(threads=1)
    assert 'threads: 1; Python 3' in told and f'torch {torch.__version__[:3]}' in told
    assert told.endswith('; OPENBLAS_CORETYPE=Haswell')


def test_the_gpu_benchmark_runs_every_part_on_the_cpu(monkeypatch, capfd):
    """With one process instead of two, which takes seconds; without the compiler, which takes a minute, and faiss."""
    monkeypatch.setattr(torch, 'compile', lambda model, **options: model)
    monkeypatch.setattr(torch.multiprocessing, 'spawn', lambda work, arguments, n: work(0, *arguments))
    monkeypatch.setattr(gpu, 'N_PROCESSES', 1)
    monkeypatch.setitem(sys.modules, 'faiss', None)
    monkeypatch.setattr(gc, 'collect', lambda: 0)              # a second in a process of many tests
    monkeypatch.setattr(gpu.step, 'ROUNDS', 2)
    monkeypatch.setattr(stopping, 'install', lambda: None)
    gpu.main(['--device', 'cpu', '--quick'])
    out, err = capfd.readouterr()
    found = cells(out)
    assert all(float(ours) > 0 and float(peer) > 0 for _, ours, peer, *_ in found) and len(found) == 14
    assert all(f's] {part}' in err for part in gpu.PARTS)
    assert 'faiss is not installed: ranking is not compared with faiss' in err


def test_a_part_that_fails_leaves_the_others_and_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(stopping, 'install', lambda: None)
    monkeypatch.setattr(gpu, 'PARTS', {'bad': lambda run: iter([1 / 0]), 'good': lambda run: ROWS})
    arguments = ['--device', 'cpu', '--quick']
    assert errors.exit_code('benchmarks.gpu', lambda: gpu.main(arguments)) == 1
    out, err = capsys.readouterr()
    assert 'fast; slow' in out and 'ZeroDivisionError' in err and 'bad: not complete' in err


def test_other_metrics_on_the_gpu_than_on_the_cpu_are_a_failure(monkeypatch):
    compute = gpu.evaluation.compute
    monkeypatch.setattr(gpu.evaluation, 'compute', lambda *given, **options: {
        name: value + ('backend' in options) for name, value in compute(*given, **options).items()})
    run = gpu.prepare(gpu.argparse.Namespace(device='cpu', quick=True))
    with pytest.raises(errors.RunFailed, match='precision_at_1 is .* on the GPU'):
        list(gpu.ranking(run))


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_a_sentence_says_so(capsys):
    assert errors.exit_code('benchmarks.gpu', lambda: gpu.main([])) == 2
    assert 'there is no NVIDIA GPU here' in capsys.readouterr().err


def test_the_waits_of_the_gpu_benchmark_are_those_that_the_tests_list():
    assert gpu.WAITS == {(loss, miner): len(host_waits.MINERS.get(miner, {})) + len(host_waits.LOSSES.get(loss, {}))
                         for loss, miner in gpu.WAITS}


@pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='reads the memory of its process from /proc')
def test_a_million_in_small(monkeypatch, capsys):
    monkeypatch.setattr(stopping, 'install', lambda: None)
    million.main(['--images', '2000', '--dim', '8', '--threads', '1', '--queries', '500'])
    out = capsys.readouterr().out
    assert re.match(r'2,000 images of 8 dimensions, 500 queries, 1 threads: .* GB at the peak', out)
    assert .3 < float(re.search(r'e_recall@1 ([\d.]+)', out)[1]) < .8


def test_ctrl_c_ends_ranking_within_a_tile(monkeypatch):
    """A strip of queries takes seconds with a million images: the loop over its tiles checks for requests to stop."""
    points, labels, _ = million.embeddings(5000, 500, 20, 0, 8, .5)
    products = []

    def product(queries, gallery, compute=counting.product):
        products.append(queries)
        stopping.requested = len(products) == 12               # 10 are of the strips and their samples
        return compute(queries, gallery)

    monkeypatch.setattr(counting, 'product', product)
    monkeypatch.setattr(stopping, 'requested', False)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        million.evaluation.compute(million.METRICS, points, labels, backend='count')
    assert len(products) == 12


@pytest.mark.parametrize('name', ['triplet, given', 'multisimilarity', 'cosface', 'subcenter_arcface', 'margin, given'])
def test_the_first_step_is_the_librarys(name):
    pytest.importorskip('pytorch_metric_learning')
    value, *found = equality.differences(name)
    assert value and max(found) <= 1e-6


def test_the_comparison_of_first_steps_finds_another_loss(monkeypatch, capsys):
    pytest.importorskip('pytorch_metric_learning')
    monkeypatch.setitem(equality.CASES['ntxent'].flags, 'loss_ntxent_temperature', 0.08)
    monkeypatch.setattr(sys, 'argv', ['equality', '--losses', 'ntxent', 'softmax'])
    equality.main()
    out = capsys.readouterr().out
    assert [row[0::4] for row in cells(out)] == [['ntxent', 'no'], ['softmax', 'yes']]
    assert f'threads: {torch.get_num_threads()}' in out.splitlines()[0]
