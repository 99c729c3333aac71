"""The marked places of the pages."""
import re

import pytest

from studies import __main__ as program
from studies import pages
from tests.helpers import ROOT
from utilities.errors import UserError


def test_the_tables_of_the_pages_are_those_of_the_committed_rows(tmp_path, capsys):
    for name in program.PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = re.sub(r'(<!-- table [^\n]+ -->\n).*?(<!-- end -->)', r'\1\2', (ROOT / name).read_text(), flags=re.S)
        (tmp_path / name).write_text(text)
    (tmp_path / program.PICTURE).parent.mkdir()
    program.main(tmp_path)
    for name in program.PAGES:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_a_place_without_a_table_is_an_error():
    with pytest.raises(UserError, match='there is no table b; the tables are a'):
        pages.fill('<!-- table b -->\n<!-- end -->', {'a': 'x'})
    filled = pages.fill('<!-- table a -->\nold\n<!-- end -->\n', {'a': 'x'})
    assert filled == '<!-- table a -->\n\nx\n\n<!-- end -->\n'
