"""The table of benchmarks.evaluation, of a few images."""
import sys

import pytest

from benchmarks import evaluation as benchmark


@pytest.mark.skipif(sys.platform != 'linux', reason='the benchmark reads the memory of its process from /proc')
def test_a_row_for_each_size(monkeypatch, capsys):
    pytest.importorskip('faiss')
    pytest.importorskip('pytorch_metric_learning')
    monkeypatch.setattr(benchmark, 'SIZES', {'CUB': (70, 20, 5, 0), 'SOP': (200, 40, 12, 100)})
    rounds = benchmark.interleaved
    monkeypatch.setattr(benchmark, 'interleaved', lambda contenders, _: rounds(contenders, 1))
    monkeypatch.setattr(sys, 'argv', ['evaluation', '--sizes', 'CUB', 'SOP', '--dims', '8'])
    benchmark.main()
    rows = [line.split(' | ')[0] for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert rows[1:] == ['| CUB x 8', '| SOP x 8']
