"""docs/losses.md, the pages of the losses and the study name every loss, with its source, miners and flags."""
import re
from pathlib import Path

import parameters
from docs import method_pages
from launching import script
from tests.criteria.cases import PUBLISHED
from utilities import command_line

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / 'docs' / 'losses.md').read_text()
ROWS = {row.split(']')[0].removeprefix('| ['): row for row in TEXT.partition('## Where public')[0].splitlines()
        if row.startswith('| [')}
OTHERS = {'loss_weights', 'loss_decay', 'loss_optim', 'loss_momentum', 'loss_pml_args', 'loss_pml_lr',
          'loss_torch_args', 'loss_torch_lr'}                                              # of no single loss


def actions():
    flags = {action.dest: action for action in parameters.build()._actions if action.dest.startswith('loss_')}
    return {flag: action for flag, action in flags.items()
            if flag in OTHERS or any(name in PUBLISHED for name in action.facts.of or ())}


def test_the_table_has_a_row_for_every_loss_with_its_miner():
    assert set(PUBLISHED) <= set(ROWS)
    for name, module in PUBLISHED.items():
        allowed = ', '.join(module.ALLOWED_MINING_OPS or ['any']) if module.REQUIRES_BATCHMINER else 'none'
        source, _, miner = (cell.strip() for cell in ROWS[name].strip('| ').split(' | ')[1:])
        assert miner == allowed and ('http' in source)


def test_the_units_of_the_margins_are_those_of_the_files():
    section = TEXT.split('## Units of the margins')[1].split('\n## ')[0].replace('\n  ', ' ')
    stated = {loss: unit for unit, losses in re.findall(r'^- ([\w^ ]+)[^\n]*?: ([\w, ]+)$', section, re.MULTILINE)
              for loss in losses.split(', ')}
    assert {loss: unit.strip() for loss, unit in stated.items()} == {
        loss: module.MARGIN_UNIT for loss, module in PUBLISHED.items() if hasattr(module, 'MARGIN_UNIT')}


def test_the_study_of_the_results_trains_every_loss():
    lines = script.commands(ROOT / 'studies' / 'Study_Runs.sh')
    sums = [words[words.index('--loss') + 1] for words in lines if '--loss' in words]
    assert {name for names in sums for name in names.split('+')} == set(PUBLISHED)


def flags_of(name):
    """{flag: (default, what it takes)} of the table on the page of a loss."""
    rows = [line.strip('| ').split(' | ') for line in method_pages.flags_table('losses', name)[2:]]
    return {row[0].strip('`-'): row[1:3] for row in rows}


PAGES = {name: flags_of(name) for name in PUBLISHED}


def test_each_flag_stands_on_the_page_of_its_loss_with_its_true_default():
    for flag, action in actions().items():
        if flag in OTHERS:
            continue
        (name, (given, _)), = [(name, flags[flag]) for name, flags in PAGES.items() if flag in flags
                               and flag.startswith(f'loss_{name}_')]
        if action.type is command_line.boolean:
            assert given == 'off' and action.default is False
        elif isinstance(action.default, list):
            assert list(map(action.type, given.split())) == action.default
        else:
            assert (action.type or str)(given) == action.default, flag


def test_it_names_no_flag_that_is_not_there():
    flags = set(re.findall(r'--((?:loss|xbm|dr|miner)_\w+)', TEXT))
    assert flags <= set(command_line.known_flags(parameters.build()))


def test_every_loss_is_compared_with_public_code_or_has_nothing_to_say():
    told = [name for name, module in PUBLISHED.items() if '\n\nDiffers: ' in module.__doc__]
    assert len(told) >= 37 and {'triplet', 'margin', 'arcface', 'nir'} <= set(told)


def test_the_ranges_are_those_that_the_flags_take():
    for flag, action in actions().items():
        if flag in OTHERS or action.choices or action.type in (None, command_line.boolean):
            continue
        stated = next(flags[flag][1] for flags in PAGES.values() if flag in flags)
        low = {'above 0': (None, '0'), 'of at least 0': ('0', '-1'), 'of at least 1': ('1', '0'),
               'of at least 2': ('2', '1'), 'of at least 0 and at most 1': ('1', '2'), '': ('-1', None)}[
                   re.sub('^a (whole )?number ?', '', stated)]
        for text, taken in zip(low, (True, False), strict=True):
            if text is not None:
                assert takes(action, text) == taken, flag


def takes(action, text):
    try:
        action.type(text)
    except Exception:
        return False
    return True
