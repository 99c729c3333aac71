"""Searches of seconds: a stub in place of main.py, and flags for a small data set."""
import pytest

from launching import process
from tests.tuning.stub import STUB, search_flags, with_stub
from tuning import folds, report


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """
    stub(pace) makes the runs of a search in this process those of STUB, without plots; returns its folder.

    pace: seconds per epoch, a number or an expression of the run's `flags`.
    """
    def make(pace=0, has_plots=False):
        (tmp_path / 'main.py').write_text(STUB.replace('PACE', str(pace)))
        monkeypatch.setattr(process, 'MAIN', process.MAIN)
        monkeypatch.setattr(process, 'start', process.start)
        monkeypatch.setattr(folds, 'POLL', 0.03)
        if not has_plots:
            monkeypatch.setattr(report, 'plot', lambda *_: None)
        with_stub(tmp_path)
        return tmp_path
    return make


@pytest.fixture
def flags(patterns, tmp_path):
    """Of a search over two folds of `patterns`."""
    return search_flags(patterns, tmp_path)
