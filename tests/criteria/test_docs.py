"""docs/losses.md names every loss, with its source, miners and flags."""
import re

import parameters
from flags import command_line, method_flags
from tests.criteria.cases import PUBLISHED
from tests.helpers import ROOT

TEXT = (ROOT / 'docs' / 'losses.md').read_text()
ROWS = {row.split(' | ')[0].removeprefix('| '): row for row in TEXT.partition('## Where public')[0].splitlines()
        if row.startswith('| ')}


def test_the_table_has_a_row_for_every_loss_with_its_miner():
    assert set(PUBLISHED) <= set(ROWS)
    for name, module in PUBLISHED.items():
        allowed = ', '.join(module.ALLOWED_MINING_OPS or ['any']) if module.REQUIRES_BATCHMINER else 'none'
        source, *miner = (cell.strip() for cell in ROWS[name].strip('| ').split(' | ')[1:])
        assert (miner or ['none']) == [allowed] and 'http' in source


def test_the_units_of_the_margins_name_every_loss_that_has_one():
    section = TEXT.split('## Units of the margins')[1].split('\n## ')[0].replace('\n  ', ' ')
    stated = {loss: unit for unit, losses in re.findall(r'^- ([\w^ ]+)[^\n]*?: ([\w, ]+)$', section, re.MULTILINE)
              for loss in losses.split(', ')}
    with_margin = {loss for loss, module in PUBLISHED.items()
                   if any('margin' in name for name in method_flags.declared(module, ''))}
    assert stated.keys() == with_margin


def test_it_names_no_flag_that_is_not_there():
    flags = set(re.findall(r'--((?:loss|xbm|dr|miner)_\w+)', TEXT))
    assert flags <= set(command_line.known_flags(parameters.build()))
