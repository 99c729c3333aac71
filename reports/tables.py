"""Tables of groups of runs over seeds: LaTeX, Markdown, CSV. All three are made from one summary."""
import itertools
import math
from dataclasses import dataclass, field

import pandas

from evaluation import titles
from reports import naming
from utilities import text_tables
from utilities.files import require_writable, write_text

FORMATS = ('latex', 'markdown', 'csv')                    # the flags, and the texts that they write
# a bracket or star at the start of a row would be an argument of the \\ that ends the row before it
ESCAPED = {'\\': r'\textbackslash{}', '_': r'\_', '%': r'\%', '&': r'\&', '#': r'\#', '$': r'\$', '{': r'\{',
           '}': r'\}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}', '<': '$<$', '>': '$>$', '|': '$|$',
           '[': '{[}', '*': '{*}'}
# widths in points, on a page of two columns (ICML)
ONE_COLUMN = 234
TWO_COLUMNS = 487
LETTER = 4.6                                              # a bold letter at 8 points
END_OF_ROW = r' \\'
GAP = 6                                                   # between two columns of a table
SIGNS = {' ± ': r' $\pm$ ', ' − ': ' $-$ ', '–': '--', '†': r'$^\dagger$', '‡': r'$^\ddagger$',
         'Δ': r'$\Delta$', '≠': r'$\neq$', '≈': r'$\approx$'}


@dataclass
class Cell:
    """
    mean, std: over seeds, std with n − 1; nan where there is none. n: number of seeds. of: number expected.
    most:      the number of seeds that the caption of the table names; 0 if it names none.
    text:      'mean ± std' as printed. best: whether no other in the column is printed with a higher mean.
    facts:     further columns of --csv.
    """
    mean: float
    std: float
    n: int
    of: int
    text: str = ''
    best: bool = False
    most: int = 0
    facts: dict = field(default_factory=dict)


def summarise(groups, scores, names, digits=1):
    """
    Args:
        groups: Groups, in the order of the rows.
        scores: as selection.scores gives them.
        names:  columns, as test_nmi.
        digits: decimals; fractions are printed in percent, everything else with two decimals more.

    Returns ({method: {(data set, name): Cell}}, [data sets]): a method without runs on a data set has no Cell there.
    Runs without a value do not count.
    """
    datasets = list(dict.fromkeys(group.test_set for group in groups))
    table = {group.method: {} for group in groups}
    for group in groups:
        rows = scores[(scores.group == group.name) & (scores.dataset == group.test_set)]
        for name in names:
            values = rows[name].dropna()
            text = cell_text(values.mean(), values.std(), name, digits)
            table[group.method][group.test_set, name] = Cell(values.mean(), values.std(), len(values),
                                                             len(group.expected | set(rows.seed)), text)
    cells = [cell for of_method in table.values() for cell in of_method.values()]
    most = scores.seed.nunique() if max(cell.n for cell in cells) > 1 else 1
    for cell in cells:
        cell.most = most
    mark_best(table, datasets, names, digits)
    return table, datasets


def mark_best(table, datasets, names, digits):
    """
    Sets `best` in the Cells of a table that summarise() describes, where a metric says what is better. Where a column
    has means over several seeds, a single run is not compared with them.
    """
    for key in [(dataset, name) for dataset in datasets for name in names if titles.can_select(name)]:
        cells = [row[key] for row in table.values() if key in row and row[key].n]
        cells = [cell for cell in cells if cell.n > 1] or cells
        best = max((printed(cell.mean, key[1], digits) for cell in cells), default=None,
                   key=lambda text: titles.sign(key[1]) * float(text))
        for cell in cells:
            cell.best = len(cells) > 1 and printed(cell.mean, key[1], digits) == best


def printed(value, name, digits):
    return f'{100 * value:.{digits}f}' if titles.is_fraction(name) else f'{value:.{digits + 2}f}'


def cell_text(mean, std, name, digits):
    if math.isnan(mean):
        return '–'
    text = printed(mean, name, digits)
    return text if math.isnan(std) else f'{text} ± {printed(std, name, digits)}'


def caption(scores, rule, names, table):
    """The caption, in plain text: how the numbers were computed. rule: the selection.Rule of the scores."""
    some = any(incomplete(cell) for cells in table.values() for cell in cells.values())
    seeds = ', '.join(map(str, sorted(set(scores.seed))))
    numbers = {cell.n for cells in table.values() for cell in cells.values()}
    several = max(numbers, default=0) > 1
    over = f'Mean ± standard deviation (n − 1) over seeds {seeds}' if several else f'One run each, seed {seeds}'
    return (f'{over}; {rule}' + in_percent(names) + ('; n where it is smaller' if some else '')
            + ('. Bold: the best mean over several seeds.' if several and 1 in numbers else '.'))


def in_percent(names):
    fractions = [name for name in names if titles.is_fraction(name)]
    return '' if not fractions else '; in percent' if fractions == names else (
        f'; {", ".join(map(titles.metric, fractions))} in percent')


def markdown(table, datasets, names, caption, notes=()):
    """A row for each method on each data set; `data set` is a column where there are several."""
    rows = []
    for dataset in datasets:
        for method, cells in table.items():
            if any((dataset, name) in cells for name in names):
                shown = [markdown_cell(cells.get((dataset, name))) for name in names]
                rows.append([naming.dataset(dataset), naming.method(method), *shown])
    heads = ['data set', 'method', *map(titles.metric, names)]
    first = 0 if len(datasets) > 1 else 1
    return with_notes(text_tables.markdown(heads[first:], [row[first:] for row in rows]), caption, notes)


def markdown_side_by_side(table, datasets, names, caption, notes=()):
    """A row for each method; data sets, or whatever else the table's keys begin with, side by side, as in latex()."""
    keys = [(dataset, name) for dataset in datasets for name in names]
    heads = [f'{naming.dataset(dataset)} {titles.metric(name)}' for dataset, name in keys]
    rows = [[naming.method(method), *(markdown_cell(cells.get(key)) for key in keys)]
            for method, cells in table.items()]
    return with_notes(text_tables.markdown(['method', *heads], rows), caption, notes)


def markdown_cell(cell):
    if cell is None:
        return ''
    return (f'**{cell.text}**' if cell.best else cell.text) + incomplete(cell)


def with_notes(text, caption, notes):
    return '\n'.join([text, '', caption, *([''] if notes else []), *(f'- {note}' for note in notes), ''])


def incomplete(cell):
    return f' (n = {cell.n})' if 0 < cell.n < max(cell.of, cell.most) else ''


def latex(table, datasets, names, caption, notes=(), label='tab:results', below=False):
    """
    A table for booktabs: data sets, or whatever else the table's keys begin with, side by side, each with the columns
    `names`; the best in bold. It fits a page of two columns: in one column, in both (table*), or scaled to the width of
    both, which needs the package graphicx.

    below: whether data sets are below one another, which suits long cells.
    """
    parts = [[dataset] for dataset in datasets] if below else [datasets]
    rows = [['Method', *(titles.metric(name) for _ in parts[0] for name in names)]]
    body = []
    for part in parts:
        if below:
            body += [tex('midrule')] * (part is not parts[0])
            body.append(tex('multicolumn', 1 + len(names), 'l', escape(naming.dataset(part[0]))) + END_OF_ROW)
        for method, cells in table.items():
            shown = [cells.get((dataset, name)) for dataset in part for name in names]
            if any(shown) or not below:
                rows.append([naming.method(method), *(cell.text + incomplete(cell) if cell else '' for cell in shown)])
                body.append(latex_row(rows[-1], [False, *(cell is not None and cell.best for cell in shown)]))
    environment, is_scaled = shape(rows)
    heads = [tex('multicolumn', len(names), 'c', escape(naming.dataset(dataset))) for dataset in datasets]
    rules = [tex('cmidrule(lr)', f'{2 + index * len(names)}-{1 + (index + 1) * len(names)}')
             for index in range(len(datasets))]
    over = [] if below else [' & '.join(['', *heads]) + END_OF_ROW, ' '.join(rules)]
    lines = [*(f'% {note}' for note in notes), f'% needs the package booktabs{" and graphicx" * is_scaled}',
             tex('begin', environment), tex('centering'), tex('caption', escape(caption)), tex('label', label),
             tex('footnotesize'), tex('setlength', r'\tabcolsep', f'{GAP / 2:g}pt'),
             *([r'\resizebox{\textwidth}{!}{%'] if is_scaled else []),
             tex('begin', 'tabular') + f'{{l{"c" * (len(rows[0]) - 1)}}}', tex('toprule'), *over,
             latex_row(rows[0]), tex('midrule'), *body, tex('bottomrule'),
             tex('end', 'tabular') + '}' * is_scaled, tex('end', environment), '']
    return '\n'.join(lines)


def latex_row(texts, is_bold=()):
    cells = [tex('textbf', escape(text)) if bold else escape(text)
             for text, bold in itertools.zip_longest(texts, is_bold, fillvalue=False)]
    return ' & '.join(cells) + END_OF_ROW


def shape(rows):
    """
    (environment, whether the table must be scaled) of rows of texts, on a page of two columns.

    >>> shape([['Method', 'R@1']]), shape([5 * ['81.2 ± 0.3']]), shape([20 * ['81.2 ± 0.3']])
    (('table', False), ('table*', False), ('table*', True))
    """
    width = sum(GAP + LETTER * max(map(len, column)) for column in zip(*rows, strict=True))
    return 'table' if width <= ONE_COLUMN else 'table*', width > TWO_COLUMNS


def tex(command, *arguments):
    return f'\\{command}' + ''.join(f'{{{argument}}}' for argument in arguments)


def escape(text):
    text = ''.join(ESCAPED.get(letter, letter) for letter in text)
    for sign, command in SIGNS.items():
        text = text.replace(sign, command)
    return text


def csv(table):
    """The table as CSV with all digits, a line per method, data set and metric."""
    rows = [{'method': method, 'dataset': dataset, 'metric': name, 'mean': cell.mean, 'std': cell.std, 'n': cell.n,
             'n_expected': cell.of} | cell.facts
            for method, cells in table.items() for (dataset, name), cell in cells.items()]
    return pandas.DataFrame(rows).to_csv(index=False, lineterminator='\n')


def check_files(opt):
    """Raises UserError where a file of --latex, --markdown or --csv cannot be written."""
    for flag in FORMATS:
        if getattr(opt, flag):
            require_writable(getattr(opt, flag), f'--{flag}')


def write_files(opt, texts):
    """Writes the files that --latex, --markdown and --csv ask for, and prints their names. texts: {flag: text}."""
    for flag in FORMATS:
        if getattr(opt, flag):
            write_text(getattr(opt, flag), texts[flag])
            print(f'{flag}: {getattr(opt, flag)}')
