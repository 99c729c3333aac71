"""
Ensembles over reproductions (seeds): means, intervals, and significance tests against the best method, in the form
of the tables of Musgrave et al., A Metric Learning Reality Check, ECCV 2020.
"""
import math

import numpy as np
import pandas

from evaluation import titles
from records import columns
from records.columns import Column
from reports import naming, tables
from reports.significance import holm, paired_test, t_interval
from utilities import text_tables

FORMS = {'concatenated': 'Concatenated', 'separated': 'Separated'}
UNTRAINED = {'untrained_trunk': 'untrained trunk', 'untrained_trunk_and_embedder': 'untrained'}
LEVEL = 0.05
SAME = '†'
UNTESTED = '‡'
CSV = ['dataset', 'method', 'form', 'dim', 'metric', 'mean', 'low', 'high', 'n', 'n_expected', 'best', 'against',
       'test', 'n_pairs', 'difference', 'p', 'p_holm']


def compare(log, folds, names):
    """
    Args:
        log:   a row per ensemble and form: dataset, method, seed, trained_status, form, dim, and the columns `names`.
        folds: a row per ensemble and fold: dataset, method, seed, trained_status, fold, and the columns `names`.
        names: columns, such as test_map_at_r.

    Returns a table with a row per data set, form, column and method: the mean over seeds and half its interval's width;
    `best`, whether no trained method has a higher mean over several seeds, or over one if none has several; and for
    each other method the two-sided paired test against the best one, on the pairs that both have: seeds (concatenated),
    or folds and seeds (separated). p_holm is corrected over the methods of the data set, form and column. Columns in
    which a higher value is not better have no best method. The mean of values that are not all finite is nan.
    """
    log = with_untrained(log)
    rows = []
    for dataset in dict.fromkeys(log.dataset):
        own = log[log.dataset == dataset]
        own_folds = folds[(folds.dataset == dataset) & is_trained(folds)]
        for form in FORMS:
            for name in names:
                part = own[own.form == form]
                cells = {method: interval_cell(seeds, name) for method, seeds in part.groupby('method', sort=False)}
                scores = part[is_trained(part)].set_index(['method', 'seed'])[name] if form == 'concatenated' else (
                    own_folds.set_index(['method', 'fold', 'seed'])[name])
                tested = test_against_best(cells, scores, titles.sign(name)) if titles.can_select(name) else {}
                rows += [{'dataset': dataset, 'form': form, 'metric': name, 'method': method,
                          'n_expected': own.seed.nunique()} | cell | tested.get(method, {})
                         for method, cell in cells.items()]
    return pandas.DataFrame(rows).reindex(columns=[*CSV, 'half_width', 'trained'])


def is_trained(rows):
    return rows.trained_status == 'trained'


def interval_cell(seeds, name):
    values = seeds[name].dropna().to_numpy(float)
    mean, half = t_interval(values) if len(values) == len(seeds) and np.isfinite(values).all() else (np.nan, np.nan)
    return {'dim': dims(seeds), 'trained': bool(is_trained(seeds).all()), 'mean': mean, 'half_width': half,
            'n': len(seeds)}


def test_against_best(cells, scores, sign):
    """{method: {'best', 'against', 'n_pairs', 'difference', 'test', 'p', 'p_holm'}} of the trained methods' cells."""
    means = {method: cell['mean'] for method, cell in cells.items() if cell['trained'] and not math.isnan(cell['mean'])}
    if len(means) < 2:
        return {}
    several = [method for method in means if cells[method]['n'] > 1]                # as tables.mark_best compares
    best = max(several or means, key=lambda method: sign * means[method])
    tested = {best: {'best': True}}
    others = [method for method in means if method != best]
    for method in others:
        pairs = pandas.concat([scores[best], scores[method]], axis=1, join='inner')
        p, test = paired_test(pairs.iloc[:, 0], pairs.iloc[:, 1])
        tested[method] = {'best': False, 'against': best, 'n_pairs': len(pairs), 'test': test, 'p': p,
                          'difference': float((pairs.iloc[:, 1] - pairs.iloc[:, 0]).mean())}
    for method, p in zip(others, holm([tested[method]['p'] for method in others]), strict=True):
        tested[method]['p_holm'] = p
    return tested


def with_untrained(log):
    """
    The log with the untrained networks as methods of their own, in the first rows. If all methods start from the same
    networks, these are one method; else there is one for each method.
    """
    parts = []
    for (_, status), rows in log[~is_trained(log)].groupby(['dataset', 'trained_status'], sort=False):
        title = UNTRAINED[status]
        if status == 'untrained_trunk':
            title += f' ({dims(rows[rows.form == "separated"])} dim)'
        same = rows.drop(columns=['method', 'epochs', 'timestamp', 'n_folds_of'], errors='ignore').drop_duplicates()
        parts.append(same.assign(method=title) if not same.duplicated(['seed', 'form']).any()
                     else rows.assign(method=rows.method + f', {title}'))
    return pandas.concat([*parts, log[is_trained(log)]], ignore_index=True)


def dims(rows):
    return '/'.join(map(str, sorted(set(rows.dim))))


def comparison_table(comparisons, log, names, digits):
    """The comparisons of one data set -> (table of tables.Cell, headings), as tables.markdown takes them."""
    headings = {form: f'{title} ({dims(log[is_trained(log) & (log.form == form)])}-dim)'
                for form, title in FORMS.items()}
    table = {}
    for row in comparisons.itertuples():
        text = tables.cell_text(row.mean, row.half_width, row.metric, digits) + mark(row)
        table.setdefault(row.method, {})[headings[row.form], row.metric] = tables.Cell(
            row.mean, row.half_width, 0 if math.isnan(row.mean) else row.n, row.n_expected, text)
    trained = {row.method: table[row.method] for row in comparisons.itertuples() if row.trained}
    tables.mark_best(trained, list(headings.values()), names, digits)
    return table, list(headings.values())


def mark(row):
    """The sign behind a cell: whether it differs from the best, or could not be tested."""
    if not isinstance(row.against, str):
        return ''
    if math.isnan(row.p_holm):
        return UNTESTED
    return SAME if row.p_holm > LEVEL else ''


def caption(comparisons, log, names):
    """The caption of a data set's table, in plain text: how its numbers were computed."""
    seeds = sorted(set(log.seed))
    compared = comparisons[comparisons.against.notna()]
    n_tested = compared.groupby(['form', 'metric']).p.count().max() if len(compared) else 0
    interval = 'mean and 95 % t-interval (n − 1) over seeds' if len(seeds) > 1 else 'one seed, and so no interval: seed'
    text = (f'{naming.dataset(log.dataset.iloc[0])}, test classes: {interval} {", ".join(map(str, seeds))}; '
            'Separated: mean over the folds' + tables.in_percent(names) + '.')
    if len(compared):
        is_mixed = {1} < {*comparisons[comparisons.trained].n}
        text += f' Bold: the best{" mean over several seeds" * is_mixed}.'
    if n_tested:
        text += (f' {SAME}: no significant difference to it (two-sided paired t-test, Holm-corrected for {n_tested} '
                 f'comparison{"s" if n_tested > 1 else ""} a column, p > {LEVEL}); pairs: seeds '
                 f'({n_pairs(compared, "concatenated")}), or folds and seeds ({n_pairs(compared, "separated")}).')
    if compared.p.isna().any():
        text += f' {UNTESTED}: no test, for there are fewer than two pairs.'
    if (compared.test == 'sign test').any():
        text += ' Where all pairs differ by the same number, p is the sign test\'s.'
    return text


def n_pairs(compared, form):
    return f'n = {text_tables.ends(compared[compared.form == form].n_pairs.astype(int))}'


def validation(ensembles, metrics, digits=2):
    """
    A Markdown table of the validation scores of the folds at their best epochs, as powerful-benchmarker's meta records:
    for each method, the mean over folds, then the mean over seeds with its 95 % t-interval.

    ensembles: folds.Ensemble. metrics: those to show, where all folds have them, besides the one that chose the epochs.
    """
    rows = [{'dataset': ensemble.dataset, 'method': ensemble.method, 'seed': ensemble.seed} | member.best_row
            for ensemble in ensembles for member in ensemble.members]
    chosen_by = [member.run.flags['storage_metrics'][0] for ensemble in ensembles for member in ensemble.members]
    scores = pandas.DataFrame(rows).dropna(axis='columns')
    names = [Column('val', metric).name for metric in dict.fromkeys([*metrics, *chosen_by])]
    names = [name for name in names if name in scores]
    means = scores.groupby(['dataset', 'method', 'seed'], sort=False)[names].mean()
    cells = []
    for (dataset, method), seeds in means.groupby(level=['dataset', 'method'], sort=False):
        shown = [tables.cell_text(*t_interval(seeds[name]), name, digits) for name in names]
        cells.append([naming.dataset(dataset), naming.method(method), *shown])
    heads = [titles.metric(Column('test', columns.parse(name).metric).name) for name in names]
    return text_tables.markdown(['data set', 'method', *heads], cells) + (
        '\n\nValidation classes, each fold at its best epoch: mean over folds, then mean and 95 % t-interval over seeds'
        f'{tables.in_percent(names)}.\n')


def report(log, folds, names, digits=2, notes=()):
    """Log and folds as compare() takes them -> {'markdown', 'latex', 'csv'}: a table per data set, and all numbers."""
    comparisons = compare(log, folds, names)
    texts = {'markdown': [], 'latex': []}
    for dataset in dict.fromkeys(log.dataset):
        part = comparisons[comparisons.dataset == dataset]
        own = log[log.dataset == dataset]
        table, headings = comparison_table(part, own, names, digits)
        about = caption(part, own, names)
        nan = [f'{row.method}, {row.form}: {row.metric} is not a number' for row in part.itertuples()
               if math.isnan(row.mean)]
        noted = [*(text for where, text in notes if where == dataset), *nan]
        texts['markdown'].append(tables.markdown_side_by_side(table, headings, names, about, noted))
        texts['latex'].append(tables.latex(table, headings, names, about, noted, f'tab:ensembles_{dataset}'))
    csv = comparisons.assign(low=comparisons['mean'] - comparisons.half_width,
                             high=comparisons['mean'] + comparisons.half_width)
    return {name: '\n'.join(parts) for name, parts in texts.items()} | {
        'csv': csv[CSV].to_csv(index=False, lineterminator='\n')}
