"""The tables of benchmarks.evaluation, of a few images."""
import sys

import pytest

benchmark = pytest.importorskip('benchmarks.evaluation')        # needs faiss
ROWS = {'ranking': '| CUB x 8 |', 'sweep': '| 300 |', 'rest': 'k-means here', 'scaling': '      700      100  ',
        'recent': '| CUB x 128 | mAP |'}


@pytest.mark.skipif(sys.platform != 'linux', reason='the benchmark reads the memory of its process from /proc')
@pytest.mark.parametrize('table', ROWS)
def test_each_table_is_printed(table, monkeypatch, capsys):
    if table == 'ranking':
        pytest.importorskip('pytorch_metric_learning')
    monkeypatch.setattr(benchmark, 'SIZES', {'CUB': (70, 20, 5, 0), 'SOP': (200, 40, 12, 100)})
    monkeypatch.setattr(benchmark, 'SCALES', [(300, 55, 0), (700, 100, 100)])
    monkeypatch.setattr(benchmark, 'POSITIVES', (7, 300))
    monkeypatch.setattr(benchmark, 'RECALLS', (0.6,))
    monkeypatch.setattr(sys, 'argv', ['evaluation', table, '--sizes', 'CUB', 'SOP', '--dims', '8', '--images', '650'])
    benchmark.main()
    assert ROWS[table] in capsys.readouterr().out
