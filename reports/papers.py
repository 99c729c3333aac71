"""
Result_Evaluations.py --published: the published values of papers beside those of runs, by the papers' own rules.

A line of papers/<paper>.csv belongs to the group that its column `run` names, a line of the run scripts; for runs
on folds, it is the name without _fold<k>. Values stand there as printed, fractions in percent.
"""
import math
from pathlib import Path

import numpy as np
import pandas

from evaluation import titles
from records.columns import Column
from reports import differences, naming, selection, significance, tables
from utilities.errors import UserError

FOLDER = Path(__file__).parent / 'papers'
PAPERS = {'roth2020': 'Roth et al., ICML 2020', 'musgrave2020': 'Musgrave et al., ECCV 2020',
          'mohan2020': 'Mohan et al., CVPR 2020 (a reproduction)'}
STATED = ('arch', 'embed_dim', 'bs', 'n_epochs', 'split_scheme')     # flags, columns of their names; empty: not stated
# flags of all published runs; also assumed where a run has not recorded them
SHARED = {'use_tv_split': False, 'splits': None, 'test_size': 0.5, 'test_start': 0.5, 'n_folds': 4, 'pca': 0,
          'eval_features': False, 'eval_views': [], 'eval_resize': None, 'eval_size': None, 'eval_fit': None,
          'input_size': None, 'not_pretrained': False, 'train_level': 0, 'unsupervised': False,
          'freeze': 'none', 'embed_layers': []}


def report(opt, groups, notes):
    """Prints a table per paper and data set; writes the files of --latex, --markdown and --csv."""
    rows = [row for paper in dict.fromkeys(opt.published) for line in read(paper) for row in compared(line, groups)]
    if not rows:
        raise UserError('--published: no group has a published value; they belong to groups of Revisit_Runs.sh and '
                        'run_scripts/, such as CUB_Margin_b06_Distance')
    rows = pandas.DataFrame(rows)
    texts = {'markdown': '', 'latex': '', 'csv': rows.to_csv(index=False, lineterminator='\n')}
    for (paper, dataset, rule), of_table in rows.groupby(['paper', 'data_set', 'rule'], sort=False):
        table = {f'{row.group} {titles.metric(row.column)}': cells(row, opt.digits) for row in of_table.itertuples()}
        about = (f'{naming.dataset(dataset)}. Published: {PAPERS[paper]}; ours {rule}, as published. Mean ± standard '
                 'deviation over seeds. Difference: ours minus published, ± half of its 95 % interval (Welch); ≠: the '
                 'interval is without 0.')
        given = table, [dataset], ('published', 'ours', 'n', 'difference'), about, notes
        texts['markdown'] += tables.markdown(*given) + '\n'
        texts['latex'] += tables.latex(*given, label=f'tab:{paper}_{dataset}')
    print(texts['markdown'])
    tables.write_files(opt, texts)


def read(paper):
    """Returns the lines of a paper's file, each with its column of log.csv; published and its std are fractions."""
    lines = pandas.read_csv(FOLDER / f'{paper}.csv').rename(columns={'run': 'group', 'n': 'n_published'})
    names = [Column(line.split, line.metric).name for line in lines.itertuples()]
    units = np.array([titles.unit(name) for name in names])
    lines = lines.assign(paper=paper, column=names, published=lines.value / units,
                         published_std=lines.population_std / units)
    return [*lines.itertuples(index=False)]


def compared(line, groups):
    """Returns a row of --csv for each test set on which a published line has runs among the Groups."""
    is_folded = line.split_scheme == 'mlrc'
    found = {}
    for group in groups:
        for run in group.runs:
            name = f'{line.group}_fold{run.flags.get("fold")}' if is_folded else line.group
            if (group.dataset, group.name) == (line.data_set, name):
                found.setdefault(group.test_set, []).append(run)
    rule = selection.Rule(line.select, Column('test', line.select_by), per_metric=False)
    rows = []
    for data, runs in found.items():
        values, reasons = values_by_rule(line, rule, runs, SHARED['n_folds'] if is_folded else 1)
        ours = float(np.mean(values)) if values else math.nan
        rows.append(line._asdict() | {
            'data_set': data, 'rule': rule.at + ', mean over folds' * is_folded, 'reason': '; '.join(reasons),
            'ours': ours, 'std': np.std(values, ddof=1) if len(values) > 1 else math.nan, 'n': len(values),
            'difference': math.nan if reasons else ours - line.published,
            'interval': math.nan if reasons else significance.half_width_to_published(
                values, line.published_std, line.n_published)})
    return rows


def values_by_rule(line, rule, runs, n_folds):
    """Returns [mean over folds of each seed] at the epoch that a Rule selects, [reason why it is not compared, ...]."""
    seeds, reasons = {}, []
    for run in runs:
        reasons += protocol_differences(line, run)
        try:
            value = selection.value_in(run, selection.selected_row(run, rule), line.column)
            seeds.setdefault(run.seed, []).append(value)
        except UserError:
            reasons.append(f'{run.name} has no value of {line.column} at the selected epoch')
    reasons += [f'seed {seed}: {len(values)} of {n_folds} folds' for seed, values in seeds.items()
                if len(values) != n_folds]
    return [float(np.mean(values)) for values in seeds.values()], list(dict.fromkeys(reasons))


def protocol_differences(line, run):
    """Returns the flags in which a run differs from the published one, and that it has fewer epochs, in words."""
    own_split = 'predefined' if line.data_set == 'online_products' else 'half'
    flags = SHARED | run.flags | {'split_scheme': run.flags.get('split_scheme') or own_split}
    stated = {name: getattr(line, name) for name in STATED if not pandas.isna(getattr(line, name))}
    reasons = [f'{name} {flags.get(name)}, published {str(value).removesuffix(".0")}'
               for name, value in (stated | SHARED).items() if flags.get(name) != value]
    if run.other_data:
        reasons.append(run.other_data)
    if math.isnan(line.embed_dim):
        reasons.append('published embed_dim not stated')
    if run.rows[-1]['epoch'] + 1 < line.n_epochs:                    # the public code counts epochs from 0
        reasons.append(f'epoch {run.rows[-1]["epoch"]} reached, published {line.n_epochs:g}')
    return reasons


def cells(row, digits):
    """Returns {(data set, heading): Cell} of a row of the printed table."""
    published = tables.cell_text(row.published, row.published_std, row.column, digits)
    ours = tables.cell_text(row.ours, row.std, row.column, digits)
    difference = differences.difference_text(row.difference, row.interval, row.column, digits)
    texts = {'published': '≈ ' * (row.exact == 'approximate') + published, 'ours': ours, 'n': row.n,
             'difference': row.reason or difference + ' ≠' * (abs(row.difference) > row.interval)}
    return {(row.data_set, head): tables.Cell(row.ours, row.std, 1, 1, str(text)) for head, text in texts.items()}
