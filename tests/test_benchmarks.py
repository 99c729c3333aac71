"""The parts of benchmarks.gpu and their table; the ranked embeddings."""
import argparse
import contextlib
import gc
import io
import json
import os
import re
import runpy
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import batch_mining
import evaluation
from benchmarks import bare_loop, figures, gpu, loading, losses, mining, scale
from benchmarks.embeddings import embeddings
from benchmarks.figures import Row
from evaluation.ranking import counting
from tests import host_waits
from tests.helpers import ROOT, executed, executing, table_rows, wait_for
from utilities import errors, stopping
from utilities.errors import RunFailed, UserError

ROWS = [Row('fast; slow', 1.0, 4.0, .5), Row('slow; fast', 3.0, 2.0, 1.1)]


@pytest.fixture
def measured(monkeypatch):
    """measured({benchmark: its Rows, or an error that follows the first row}): what benchmarks then measure."""
    def rows_of(command, seconds, found):
        rows = found[command[-1]]
        yield from ROWS[:1] if isinstance(rows, Exception) else rows
        if isinstance(rows, Exception):
            raise rows

    def make(found):
        monkeypatch.setattr(stopping, 'install', lambda: None)
        monkeypatch.setattr(figures, 'rows_of', lambda command, seconds: rows_of(command, seconds, found))
    return make


def test_a_benchmark_that_fails_leaves_the_others_and_ends_with_1(measured, capsys):
    """Its rows until then count; the table says which targets are met."""
    measured({'step': RunFailed('ended after 90 s'), 'ranking': UserError('no'), 'clusters': ROWS})
    arguments = ['--device', 'cpu', '--quick', 'step', 'ranking', 'clusters']
    assert errors.exit_code('benchmarks.gpu', lambda: gpu.main(arguments)) == 1
    out, err = capsys.readouterr()
    met = ['fast; slow', '1', '4', '0.25', '0.50', 'yes']
    assert table_rows(out) == [met, met, met, ['slow; fast', '3', '2', '1.50', '1.10', 'no']]
    assert 'ended after 90 s' in err and 'not measured' in err and 'the run failed: gpu step: not complete' in err


@pytest.fixture
def in_process(monkeypatch, run, tmp_path):
    """
    What parts of benchmarks.gpu start, in this process; without the compiler, which takes a minute, faiss, and a torch
    that looks for a GPU.
    """
    def launched(command, **options):
        for line in Path(command[2]).read_text().splitlines():
            assert run(*shlex.split(line)[2:], '--device', 'cpu') == 0

    def bare_loop_here(flags):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            bare_loop.main(flags)
        return json.loads(out.getvalue())

    (tmp_path / 'torch.py').write_text('import argparse\n'
                                       'cuda, __version__ = argparse.Namespace(is_available=lambda: False), 2')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    monkeypatch.setattr(gpu.subprocess, 'run', launched)
    monkeypatch.setattr(gpu.step, 'bare_loop', bare_loop_here)
    monkeypatch.setattr(gpu.step, 'ROUNDS', 2)
    monkeypatch.setattr(torch, 'compile', lambda model, **options: model)
    monkeypatch.setattr(torch.multiprocessing, 'spawn', lambda work, arguments, n: work(0, *arguments))
    monkeypatch.setattr(gpu, 'N_PROCESSES', 1)
    monkeypatch.setitem(sys.modules, 'faiss', None)
    monkeypatch.setattr(gc, 'collect', lambda: 0)              # a second in a process of many tests


def test_the_gpu_benchmark_has_rows_of_every_part_on_the_cpu(in_process, monkeypatch, capfd):
    """In the order of their worth."""
    def rows_of(command, seconds):
        return gpu.PARTS[command[-1]][0](gpu.prepare(argparse.Namespace(device='cpu', quick=True)))

    monkeypatch.setattr(stopping, 'install', lambda: None)
    monkeypatch.setattr(figures, 'rows_of', rows_of)
    gpu.main(['--device', 'cpu', '--quick'])
    out, err = capfd.readouterr()
    _, *parts = re.split(r'^\[\d+ s\] gpu (\w+)\n', err, flags=re.MULTILINE)
    printed = dict(zip(parts[::2], parts[1::2], strict=True))
    assert [*printed] == ['tests', 'step', 'ranking', 'waits', 'bfloat16', 'runs', 'clusters', 'processes', 'compile']
    rows = table_rows(out[out.index('| job'):])
    assert all(float(ours) > 0 and float(peer) > 0 for _, ours, peer, *_ in rows)
    for part, text in printed.items():
        assert any(' | '.join(row) in text for row in rows), part
    assert 'make test-gpu: skipped: it needs an NVIDIA GPU, and PyTorch 2 finds none' in printed['tests']
    assert 'ranking is not compared with faiss' in printed['ranking']


def test_the_bare_loop_sets_nothing_of_torchs(in_process):
    def settings():
        return (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark,
                torch.are_deterministic_algorithms_enabled(), torch.get_num_threads())
    before = settings()
    seconds, memory = gpu.step.bare_loop(['--device', 'cpu', '--bs', '8'])
    assert settings() == before and seconds > 0 and memory > 0


# Prints a row, and starts a process that would go on; argv[1]: what follows.
PART = """
import json, subprocess, sys
print(json.dumps(['a; b', 1, 2, 3]), flush=True)
child = subprocess.Popen(['sleep', '600'])
print(json.dumps(['child; pid', child.pid, 1, 1]), flush=True)
exec(sys.argv[1])
"""


@pytest.mark.parametrize('then, error, sentence', [
    ('pass', None, None), ('sys.exit(2)', UserError, 'exit code 2'), ('sys.exit(1)', RunFailed, 'exit code 1'),
    ('child.wait()', RunFailed, 'ended after 60 s')])
def test_a_benchmark_ends_at_its_limit_with_all_it_has_started(then, error, sentence, monkeypatch):
    """The last one would go on; a minute has passed for it as soon as its two rows are there."""
    rows, passing = [], then == 'child.wait()'
    monkeypatch.setattr(figures, 'time', argparse.Namespace(monotonic=lambda: 30 * len(rows) if passing else 0))
    with pytest.raises(error, match=sentence) if error else contextlib.nullcontext():
        for row in figures.rows_of([sys.executable, '-c', PART, then], 60):
            rows.append(row)
    assert rows[0] == Row('a; b', 1, 2, 3)
    wait_for(lambda: not is_alive(rows[1].ours))


def is_alive(process):
    """Whether there is a process of this number that has not ended, also if nobody has waited for it."""
    status = Path(f'/proc/{process}/stat')
    return status.exists() and status.read_text().split(') ')[1][0] != 'Z'


def test_sigterm_to_all_processes_ends_the_benchmark_while_a_part_compiles(tmp_path):
    """A program that does not answer takes the place of the part's process."""
    part = tmp_path / 'part'
    part.write_text(f"#!/bin/sh\ntrap '' TERM INT\necho $$ > {tmp_path}/begun\nexec sleep 600\n")
    part.chmod(0o755)
    code = ("import sys; from benchmarks import gpu; sys.executable = sys.argv.pop(1)\n"
            "sys.exit(gpu.errors.exit_code('benchmarks.gpu', lambda: gpu.main(sys.argv[1:])))")
    process, _, errors = executing(tmp_path, code, part, '--device', 'cpu', '--quick', 'compile')
    wait_for(lambda: (tmp_path / 'begun').exists() and (tmp_path / 'begun').read_text())
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == 130, errors.read_text()
    wait_for(lambda: not is_alive(int((tmp_path / 'begun').read_text())))


def test_compiling_that_takes_too_long_ends_with_a_row_that_says_so(tmp_path):
    code = ("import time\nfrom benchmarks import gpu\ngpu.COMPILING = 0.1\n"
            "gpu.torch.compile = lambda *given, **options: time.sleep(60)\n"
            "gpu.main(['--device', 'cpu', '--quick', 'compile', '--rows'])")
    exit_code, out, errors = executed(tmp_path, code, seconds=50)
    assert exit_code == 0, errors
    row = Row(*json.loads(out.splitlines()[-1]))
    assert 'not done when ended' in row.job and row.ours / row.peer > row.target


def test_other_metrics_on_the_gpu_than_on_the_cpu_are_a_failure(monkeypatch):
    compute = gpu.evaluation.compute
    monkeypatch.setattr(gpu.evaluation, 'compute', lambda *given, **options: {
        name: value + ('backend' in options) for name, value in compute(*given, **options).items()})
    run = gpu.prepare(argparse.Namespace(device='cpu', quick=True))
    with pytest.raises(errors.RunFailed, match='precision_at_1 is .* on the GPU'):
        list(gpu.ranking(run))


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_a_sentence_says_so(capsys):
    assert errors.exit_code('benchmarks.gpu', lambda: gpu.main([])) == 2
    assert 'there is no NVIDIA GPU here' in capsys.readouterr().err


def test_the_waits_of_the_gpu_benchmark_are_those_that_the_tests_list():
    assert gpu.WAITS == {(loss, miner): len(host_waits.MINERS.get(miner, {})) + len(host_waits.LOSSES.get(loss, {}))
                         for loss, miner in gpu.WAITS}


@pytest.mark.parametrize('benchmark, small, names', [
    (loading, {'KINDS': {'photos': (2, 1, 240)}, 'ROUNDS': 1},
     ['Pillow, v2', 'Pillow, timm', 'torchvision, v2', 'ours']),
    (losses, {'SIZES': {12: 2}, 'DIMS': [8], 'CASES': {name: losses.CASES[name] for name in ('snr, given', 's2sd')},
              'REPEATS': 1}, ['snr, given', 's2sd']),
    (mining, {'SHAPES': [(6, 2)], 'DIMENSIONS': [8], 'REPEATS': 1}, [*batch_mining.BATCHMINERS.keys() - {'none'}])],
    ids=lambda value: getattr(value, '__name__', ''))
def test_a_benchmark_on_the_cpu_has_a_row_of_each_competitor(benchmark, small, names, monkeypatch, capsys):
    pytest.importorskip('pytorch_metric_learning')
    monkeypatch.setattr('sys.argv', ['benchmark'])
    monkeypatch.setattr(torch, 'set_num_threads', lambda n: None)
    for name, value in small.items():
        monkeypatch.setattr(benchmark, name, value)
    benchmark.main()
    rows = table_rows(capsys.readouterr().out)
    assert sorted(row[0] for row in rows) == sorted(names)
    for row in rows:
        numbers = [float(cell) for cell in row[1:] if re.fullmatch(r'[\d.]+', cell)]
        assert len(numbers) >= 3 and min(numbers) >= 0, row


def test_the_estimates_of_a_study_are_those_of_the_page(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['scale'])
    scale.main()
    out, page = capsys.readouterr().out, (ROOT / 'benchmarks' / 'README.md').read_text()
    hours, days = next(row for row in table_rows(out) if row[:3] == ['1', '1', '1'])[3:5]
    assert f'{hours}\nGPU-hours, which are {days} days on one GPU' in page
    assert f'{re.search(r"[0-9]+ images/s", out)[0]}\nneeds' in page




def test_the_embeddings_have_the_recall():
    points, labels, is_query = embeddings(1500, 60, 30, 500, 64)
    nearest = torch.cdist(points[is_query], points[~is_query]).argmin(dim=1)
    assert abs(np.mean(labels[~is_query][nearest] == labels[is_query]) - .53) < .02
    assert torch.allclose(points.norm(dim=1), torch.ones(1500))


def test_ctrl_c_ends_ranking_within_a_tile(monkeypatch):
    """A strip of queries takes seconds with a million images: the loop over its tiles checks for requests to stop."""
    points, labels, _ = embeddings(5000, 500, 20, 0, 8)
    products, strips = [], []

    def product(queries, gallery, compute=counting.product):
        if strips:                                             # those before are of the strips and their samples
            products.append(queries)
        stopping.requested = len(products) == 2
        return compute(queries, gallery)

    def count_strip(counter, number, count=counting.Counting.count_strip):
        strips.append(number)
        return count(counter, number)

    monkeypatch.setattr(counting, 'product', product)
    monkeypatch.setattr(counting.Counting, 'count_strip', count_strip)
    monkeypatch.setattr(stopping, 'requested', False)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        evaluation.compute(['e_recall@1', 'map_at_r'], points, labels, backend='count')
    assert len(products) == 2 and strips[0] == 0


@pytest.mark.parametrize('module, more', [('losses', ['--losses', 'triplet', '--sizes', '112', '--dims', '8']),
                                          ('mining', [])])
def test_without_the_compared_library_a_sentence_says_so(module, more, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'pytorch_metric_learning', None)
    monkeypatch.setattr(sys, 'argv', [module, *more])
    monkeypatch.delitem(sys.modules, f'benchmarks.{module}', raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f'benchmarks.{module}', run_name='__main__')
    assert end.value.code == 2 and f'benchmarks.{module}: error: the comparison of' in capsys.readouterr().err


def test_losses_without_counterparts_need_no_library(monkeypatch, capsys):
    monkeypatch.setattr(losses.run_folder, 'versions', lambda: {'torch': '2', 'processor': 'P'})
    monkeypatch.setattr(losses, 'median_times', lambda functions, *_: dict.fromkeys(functions, 1.))
    monkeypatch.setattr(losses, 'peak_memory', lambda function: 1)
    monkeypatch.setattr(sys, 'argv', ['losses', '--losses', 'proxynca', '--sizes', '112', '--dims', '8'])
    losses.main()
    assert 'pytorch-metric-learning not installed' in capsys.readouterr().out
    monkeypatch.setattr(sys, 'argv', ['losses', '--losses', 'center'])
    with pytest.raises(SystemExit):
        losses.main()
    assert "invalid choice: 'center'" in capsys.readouterr().err
