"""
Result_Evaluations.py --published: the published values of papers beside those of runs, by the papers' own rules.

A line of published/<paper>.csv is compared with the runs of the group that its column `run` names, a line of the run
scripts; for runs on folds, it is the name without _fold<k>. Values stand there as printed, fractions in percent.
"""
import math
from pathlib import Path

import numpy as np
import pandas
from scipy import stats

from datasets.transforms import SIZES
from evaluation import titles
from records import columns
from records.columns import Column
from reports import differences, naming, selection, significance, tables
from utilities.errors import UserError

FOLDER = Path(__file__).parent / 'published'
PAPERS = {'roth2020': 'Roth et al., ICML 2020', 'musgrave2020': 'Musgrave et al., ECCV 2020',
          'mohan2020': 'Mohan et al., CVPR 2020 (a reproduction)'}
STATED = ('arch', 'embed_dim', 'bs', 'n_epochs', 'split_scheme')     # flags, columns of their names; empty: not stated
# flags of all published runs; also assumed where a run has not recorded them
SHARED = {'use_tv_split': False, 'splits': None, 'test_size': 0.5, 'test_start': 0.5, 'n_folds': 4, 'pca': 0,
          'eval_features': False, 'eval_views': [], 'eval_resize': None, 'eval_size': None, 'eval_fit': None,
          'input_size': None, 'not_pretrained': False, 'label_noise': 0.0, 'train_level': 0, 'unsupervised': False,
          'freeze': 'none', 'embed_layers': []}
SIZE = 224                                           # the size of images in pixels without an augmentation that sets it
DIFFERS = ' ≠'
CSV = ['paper', 'group', 'data_set', 'column', 'published', 'published_std', 'n_published', 'exact', 'ours', 'std', 'n',
       'difference', 'interval', 'differs', 'reason', 'source']


def report(opt, groups, notes):
    """Prints a table per paper and data set; writes the files of --latex, --markdown, --csv and --figures."""
    compared = pandas.concat([compare(paper, groups) for paper in dict.fromkeys(opt.published)], ignore_index=True)
    if compared.empty:
        raise UserError(f'--published {" ".join(opt.published)}: no group has a published value; they belong to the '
                        'groups of Revisit_Runs.sh and run_scripts/, such as CUB_Margin_b06_Distance')
    named = dict.fromkeys(group for _, _, group, _ in runs_by_line(groups))
    others = [group for group in named if group not in set(compared.group)]
    if others:
        notes = [*notes, f'no published value: {", ".join(others)}']
    texts = {'markdown': '', 'latex': ''}
    for (paper, dataset), rows in compared.groupby(['paper', 'data_set'], sort=False):
        table, names = side_by_side(rows, opt.digits)
        about = caption(paper, rows, names)
        texts['markdown'] += tables.markdown(table, [dataset], names, about) + '\n'
        texts['latex'] += tables.latex(table, [dataset], names, about, label=f'tab:{paper}_{dataset}') + '\n'
    texts['markdown'] += '\n'.join(f'- {note}' for note in notes)
    texts['latex'] += ''.join(f'% {note}\n' for note in notes)
    texts['csv'] = compared[CSV].to_csv(index=False, lineterminator='\n')
    print(texts['markdown'])
    tables.write_files(opt, texts)
    if opt.figures:
        draw(opt, compared)


def read(paper):
    """
    The lines of a paper's file, and for each line: the column of log.csv; published, its value, not in percent; the
    standard error of the mean, and half the width of its 95 % interval, nan where no deviation is published.
    """
    lines = pandas.read_csv(FOLDER / f'{paper}.csv').rename(columns={'run': 'group', 'n': 'n_published'})
    lines['column'] = [Column(line.split, line.metric).name for line in lines.itertuples()]
    units = lines.column.map(titles.unit)
    std = lines.population_std / units
    error = std / np.sqrt(lines.n_published - 1)                       # population_std divides by n
    return lines.assign(paper=paper, published=lines.value / units, published_std=std, error=error,
                        published_half=stats.t.ppf(0.975, lines.n_published - 1) * error)


def compare(paper, groups):
    """
    A table with a row per line of a paper that has runs among the Groups: what read() gives, and of our runs method,
    ours (mean over seeds), std, n; difference (ours minus published) and differs, or the reason why they are not
    compared; interval and half: half the widths of the 95 % intervals of the difference and of our mean. data_set is
    Group.data: a group on several test sets has a row for each.
    """
    found = runs_by_line(groups)
    rows = []
    methods = naming.methods((dataset, group) for dataset, _, group, _ in found)
    lines = list(read(paper).itertuples())
    of_lines = [(line, key) for line in lines for key in found
                if (key[0], *key[2:]) == (line.data_set, line.group, line.split_scheme == 'mlrc')]
    for line, key in of_lines:
        values, reasons = values_by_rule(line, found[key])
        ours, half, difference, width = [math.nan] * 4
        if values:
            ours, half = significance.t_interval(values)
        if not reasons:
            difference = ours - line.published
            width = interval(line, values)
        rows.append(line._asdict() | {
            'data_set': key[1], 'method': methods[line.data_set, line.group],
            'reason': '; '.join(reasons), 'ours': ours, 'half': half, 'n': len(values),
            'std': np.std(values, ddof=1) if len(values) > 1 else math.nan,
            'difference': difference, 'interval': width, 'differs': abs(difference) > width})
    return pandas.DataFrame(rows)


def runs_by_line(groups):
    """{(data set, Group.data, group without _fold<k>, whether it had one): [Run]} of the Groups."""
    found = {}
    for group in groups:
        for run in group.runs:
            line = group.name.removesuffix(f'_fold{run.flags.get("fold")}')
            found.setdefault((group.dataset, group.data, line, line != group.name), []).append(run)
    return found


def values_by_rule(line, runs):
    """
    ([the value of each seed that has one], [reason why they cannot be compared, ...]) of the runs at the epochs that
    the paper's rule selects; with folds, the mean over a seed's folds.
    """
    rule = selection.Rule(line.select, Column('test', line.select_by), per_metric=False)
    needed = dict.fromkeys([line.column, rule.by.on(rule.split).name])
    reasons = [reason for run in runs for reason in protocol_differences(line, run)]
    for name in needed:
        without = [run.name for run in runs if not has_value(run, name)]
        if len(without) == len(runs):
            reasons.append(f'no {name}')
        elif without:
            reasons.append(f'no {name} in {", ".join(without)}')
    seeds = {}
    for run in runs:
        if all(has_value(run, name) for name in needed):
            value = selection.selected_row(run, rule).get(line.column, math.nan)
            seeds.setdefault(run.seed, []).append(value)
            if math.isnan(value):
                reasons.append(f'no {line.column} at the selected epoch of {run.name}')
    n_folds = SHARED['n_folds'] if line.split_scheme == 'mlrc' else 1
    reasons += [f'seed {seed}: {len(values)} of {n_folds} folds' for seed, values in seeds.items()
                if len(values) != n_folds]
    means = [float(np.mean(values)) for values in seeds.values()]
    return [mean for mean in means if not math.isnan(mean)], list(dict.fromkeys(reasons))


def protocol_differences(line, run):
    """
    The flags in which a run differs from the published one, and that it has fewer epochs, in words. The public code
    counts epochs from 0.
    """
    own_split = 'predefined' if line.data_set == 'online_products' else 'half'
    flags = run.flags | {'split_scheme': run.flags.get('split_scheme') or own_split}
    if flags.get('input_size') == SIZES.get(flags.get('augmentation'), SIZE):
        flags['input_size'] = None                                   # the default size, given by hand
    stated = {name: getattr(line, name) for name in STATED if not pandas.isna(getattr(line, name))}
    found = ['published embed_dim not stated'] if math.isnan(line.embed_dim) else []
    for name, published in (stated | SHARED).items():
        value = flags.get(name, SHARED.get(name))
        if value != published:
            found.append(f'{name} {flag_text(value)}, published {flag_text(published)}')
    reached = run.rows[-1]['epoch']
    if reached + 1 < line.n_epochs:
        found.append(f'epoch {reached} reached, published {line.n_epochs:g}')
    return found


def flag_text(value):
    """
    >>> flag_text(128.0), flag_text(['0.8', 'flip']), flag_text([]), flag_text(None)
    ('128', '0.8 flip', 'none', 'default')
    """
    if isinstance(value, list):
        return ' '.join(map(str, value)) or 'none'
    return 'default' if value is None else f'{value:g}' if isinstance(value, float) else str(value)


def has_value(run, name):
    """Whether a run has a value in a column in any epoch."""
    return any(math.isfinite(row.get(name, math.nan)) for row in run.rows)


def interval(line, values):
    """
    Half the width of the 95 % interval of our mean minus the published one, by Welch's t. A published value without a
    deviation counts as known. For a single value of ours, the deviation of the published seeds stands for both, and it
    is Student's t. nan without values, and if neither has a deviation.
    """
    n = len(values)
    if not n or math.isnan(line.error):
        return significance.t_interval(values)[1] if n else math.nan
    if n == 1:
        return line.published_half * math.sqrt(line.n_published + 1)
    return significance.welch_half_width([stats.sem(values), line.error], [n - 1, line.n_published - 1])


def side_by_side(rows, digits):
    """
    The rows of a data set -> (table, names) as tables.markdown takes them: published, ours and the difference, or the
    reasons why there is none, where they are not those of the column before.
    """
    table = {}
    names = list(dict.fromkeys(name for column in rows.column for name in heads(column)))
    for method, of_method in rows.groupby('method', sort=False):
        before = ''
        table[method] = {}
        for row in of_method.itertuples():
            column = row.column
            published = tables.Cell(row.published, row.published_std, 1, 1)
            published.text = '≈ ' * (row.exact == 'approximate') + tables.cell_text(published, column, digits)
            n_published = row.n if math.isnan(row.n_published) else int(row.n_published)
            ours = tables.Cell(row.ours, row.std, row.n, n_published)
            ours.text = tables.cell_text(ours, column, digits)
            text = differences.difference_text(row.difference, row.interval, column, digits) + DIFFERS * row.differs
            text = text if not row.reason else row.reason if row.reason != before else '–'
            cells = published, ours, tables.Cell(row.difference, math.nan, row.n, row.n, text)
            table[method] |= {(row.data_set, name): cell for name, cell in zip(heads(column), cells, strict=True)}
            before = row.reason
    return table, names


def heads(column):
    return titles.PUBLISHED + column, column, titles.DIFFERENCE + column


def caption(paper, rows, names):
    """The caption of the table of a data set, in plain text: whose values these are, and by which rule."""
    first = rows.iloc[0]
    rule = selection.Rule(first.select, Column('test', first.select_by), per_metric=False)
    noisy = ', which favours noisy runs' if rule.select == 'best_test' else ''
    folds = f', mean over {SHARED["n_folds"]} folds' if first.split_scheme == 'mlrc' else ''
    percent = tables.in_percent([name for name in names if columns.parse(name)])
    sentences = [
        naming.dataset(first.data_set), f'Published: {PAPERS[paper]}; ours {rule.at}, as published{noisy}{folds}',
        f'Mean ± standard deviation over seeds, n where ours are fewer{percent}',
        'Δ: ours minus published, ± half of its 95 % interval (Welch)',
        '≠: the interval is without 0; of 20 equal pairs, one is expected to have it']
    if rows.error.notna().any():
        sentences += ['Published deviations divide by n, ours by n − 1',
                      'A single run of ours has the published deviation']
    if (rows.reason.eq('') & rows.error.isna()).any():
        sentences.append('A published value without a deviation counts as known')
    return '. '.join(sentences) + '.'


def draw(opt, compared):
    """Draws a figure per paper, data set and column that has compared values, and prints its file."""
    from reports import figures  # imports matplotlib, which tables do not need
    folder = Path(opt.figures)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = compared[compared.reason == '']
    if drawn.empty:
        print('no figure: no value is compared')
    for (paper, dataset, column), rows in drawn.groupby(['paper', 'data_set', 'column'], sort=False):
        file = folder / f'{dataset}_{paper}_{column}.{opt.format}'
        print(f'figure: {figures.beside_published(rows, column, file, f"{PAPERS[paper]}, {naming.dataset(dataset)}")}')
