"""The tables of all methods against the rows and scipy; the marked places of the pages."""
import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from records.columns import Column
from records.reading import Run
from reports import final_rows, groups, selection
from studies import __main__ as program
from studies import methods, pages
from utilities.errors import UserError

ROOT = Path(__file__).parents[2]


def table(text):
    """{first cell: {heading: cell}} of the first table of a text."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith('|'))
    cells = []
    for line in lines[first:]:
        if not line.startswith('|'):
            break
        cells.append([cell.strip() for cell in line.split('|')[1:-1]])
    heads, _, *rows = cells
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


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


@pytest.fixture(scope='module')
def study():
    return methods.read()


def test_the_numbers_and_the_flags_of_a_method(study):
    cells = table(methods.table(study))
    with open(methods.ROWS / 'study.csv', newline='') as file:
        rows = [row for row in csv.DictReader(file) if row['group'] == 'Grocery_MS' and row['test_nmi']]
    for head, name in {'R@1': 'test_e_recall@1', 'MAP@R': 'test_map_at_r', 'NMI': 'test_nmi'}.items():
        values = 100 * np.array([float(row[name]) for row in rows])
        half = stats.t.ppf(.975, len(values) - 1) * stats.sem(values)
        assert cells['`multisimilarity`'][head] == f'{values.mean():.1f}±{half:.1f}'
    whole = methods.table(study)
    assert whole.splitlines()[2].startswith(f'| `--loss` and other flags, n = {len(rows)} |')
    omniglot = whole.partition('**Omniglot**')[2]
    five, three = (table(omniglot[omniglot.index(f'| `--loss` and other flags, n = {n} |'):]) for n in (5, 3))
    assert '`multisimilarity`' in five and '`multisimilarity --ema 0.98`' in three
    method = study['Grocery_MS']
    assert 'Datasets/grocery' in method.command and '--device' not in method.command and '/home' not in method.command


def test_the_losses_that_were_tuned_on_folds(study):
    cells = table(methods.tuned_table(study))
    with open(methods.ROWS / 'folds.csv', newline='') as file:
        values = [100 * float(row['concatenated_test_map_at_r']) for row in csv.DictReader(file)
                  if row['group'] == 'Omniglot_NTXent']
    half = stats.t.ppf(.975, len(values) - 1) * stats.sem(values)
    assert cells['ntxent']['concatenated, MAP@R'] == f'{np.mean(values):.1f}±{half:.1f}' and len(cells) == 8


def test_the_intervals_over_seeds_are_student_s():
    values = np.random.default_rng(0).normal(size=7)
    assert methods.mean(values).half == pytest.approx(stats.t.ppf(.975, 6) * stats.sem(values))
    assert pages.plus_minus(methods.mean(np.array([-.01]))) == '0.0'                  # one seed has no interval


def test_of_ema_the_averaged_weights_are_reported(tmp_path):
    """Their columns pass through a file of --rows, and the page shows them instead of those of the last weights."""
    rows = [{'epoch': epoch, 'test_e_recall@1': raw, 'ema_test_e_recall@1': averaged, 'test_nmi': raw / 2,
             'ema_test_nmi': averaged / 2} for epoch, raw, averaged in ((0, .2, .2), (1, .6, .7), (2, .5, .4))]
    run = Run('Omniglot_MS_ema_s0', 'nowhere', {'dataset': 'omniglot', 'group': 'Omniglot_MS_ema', 'seed': 0}, rows)
    group = groups.Group('Omniglot_MS_ema', 'omniglot', [run])
    rule = selection.Rule('last', Column('test', 'e_recall@1'), False)
    final_rows.write(tmp_path / 'rows.csv', [group], rule, ['test_e_recall@1'])
    method = methods.read(tmp_path / 'rows.csv')['Omniglot_MS_ema']
    assert method.estimate().mean == pytest.approx(40) and method.estimate('nmi').mean == pytest.approx(20)
    plain = methods.Method('Omniglot_MS', method.runs)
    assert plain.estimate().mean == pytest.approx(50)


def test_runs_on_other_test_images_have_no_mean(tmp_path):
    lines = [f'omniglot,Omniglot_MS,{seed},1,0.5,{"ab"[seed]}' for seed in (0, 1)]
    (tmp_path / 'rows.csv').write_text('\n'.join(['dataset,group,seed,epoch,test_nmi,test_hash', *lines, '']))
    with pytest.raises(UserError, match='different test sets'):
        methods.read(tmp_path / 'rows.csv')


def test_the_versions_stand_on_the_page():
    method = methods.Method('Omniglot_MS', {0: Run('a', 'b', {
        'versions': json.dumps({'python': '3.11.7', 'torch': '2.14.1'})}, [])})
    assert methods.origins({'Omniglot_MS': method}) == '1 runs of 1 methods, with python 3.11.7, torch 2.14.1.'
