"""Groups of runs over seeds -> the printed table, its files, and figures."""
import sys
from functools import partial
from pathlib import Path

from evaluation import titles
from records import columns
from reports import groups, naming, runs, selection, tables
from utilities.errors import UserError
from utilities.files import require_writable, require_writable_folder


def report(opt, planned=()):
    """
    Prints the table and the missing values; writes the files that the flags of Result_Evaluations.py name, once all of
    their content is known.

    planned: (data set, group, seed) of the runs of --script, in its order.
    """
    tables.check_files(opt)
    if opt.rows:
        require_writable(opt.rows, '--rows')
    for flag, folder in (('--figures', opt.figures), ('--cache', opt.project and opt.cache)):
        if folder:
            require_writable_folder(folder, flag)
    if opt.compare:
        from reports import final_rows
        print(final_rows.compare(*opt.compare, opt.metrics, opt.digits))
        return
    names = titles.without_second_names(list(dict.fromkeys(map(columns.asked_for, opt.metrics))))
    rule = selection.selection_rule(opt, names)
    found = runs.collect(opt)
    if planned:
        found = runs.planned_by(found, planned, opt.script)
    expected = [(dataset, group, seed) for dataset, group, seed in planned
                if runs.is_wanted(opt, dataset, f'{group}_s{seed}')]
    grouped, notes = groups.group_runs(found, expected, opt.seeds, opt.with_unfinished)
    if not any(group.runs for group in grouped):
        raise UserError('no run is left for the table:\n' + '\n'.join(f'  {note}' for note in notes))
    if opt.published:
        from reports import papers  # imports scipy, which other tables do not need
        papers.report(opt, grouped, notes)
        return
    problems = [f'left out: {problem}' for problem in selection.leave_out(grouped, rule)]
    scores, missing = selection.scores(grouped, names, rule)
    selection.require_values(names, [(scores, missing)])
    problems += [f'no value: {problem}' for problem in sum(missing.values(), [])]
    notes += problems
    table, datasets = tables.summarise(grouped, scores, names, opt.digits)
    caption = tables.caption(scores, rule, names, table)
    shown = names
    if opt.baseline:
        from reports import differences  # imports scipy, which other tables do not need
        shown, baseline = differences.add(table, grouped, scores, names, opt.baseline, opt.digits)
        caption += differences.explained(baseline, table)
    below = bool(opt.baseline) and len(datasets) > 1
    texts = {'latex': tables.latex(table, datasets, shown, caption, notes, below=below), 'csv': tables.csv(table),
             'markdown': tables.markdown(table, datasets, shown, caption, notes)}
    planned_figures = []
    if opt.figures:
        planned_figures, without_value = plan_figures(opt, grouped, names, rule)
        problems += [f'no value: {problem}' for problem in without_value]
    for problem in dict.fromkeys(problems):
        print(f'Note: {problem}', file=sys.stderr)
    print(texts['markdown'])
    tables.write_files(opt, texts)
    if opt.rows:
        from reports import final_rows
        final_rows.write(opt.rows, grouped, rule, names if opt.all_epochs else ())
        print(f'rows: {opt.rows}')
    for draw in planned_figures:
        print(f'figure: {draw()}')


def plan_figures(opt, grouped, names, rule):
    """
    ([functions that draw a figure each and return its file], [sentences that name runs without a value]). names: the
    columns of the table. Raises UserError for a metric that no run has.
    """
    from reports import figures  # imports matplotlib, which tables do not need
    folder = Path(opt.figures)
    plans = []
    tables_of_scores = []
    chosen = [columns.asked_for(metric) for metric in opt.figure_metrics]
    for dataset in dict.fromkeys(group.test_set for group in grouped if group.runs):
        members = [group for group in grouped if group.test_set == dataset and group.runs]
        last = [run.rows[-1] for group in members for run in group.runs]
        shared = [name for name in last[0] if all(name in row for row in last)]
        of_test = [name for name in shared if name.startswith('test_') and not columns.is_beside(name)]
        matrix = chosen or titles.without_second_names(of_test)
        causes = ['test_nmi']
        for metric in ('rho_spectrum@1', 'dists@intra_over_inter'):              # the training split's, if known
            causes.append(f'train_{metric}' if f'train_{metric}' in shared else f'test_{metric}')
        causes = [cause for cause in causes if cause in shared and cause != rule.by.name]
        singles = [*names, *chosen]
        if any(rule.by.name in row for row in last):         # it is missing where only validation classes are evaluated
            singles = [rule.by.name, *singles]
        scores, missing = selection.scores(members, list(dict.fromkeys([*matrix, *singles, *causes])), rule)
        tables_of_scores.append((scores, missing))
        title = naming.dataset(dataset)
        start = f'{folder / dataset}_'
        if matrix:
            file = f'{start}correlations.{opt.format}'
            plans.append(partial(figures.correlation_matrix, scores, matrix, file, title))
        for cause in causes:
            file = f'{start}{rule.by.name}_against_{cause}.{opt.format}'
            plans.append(partial(figures.scatter, scores, cause, rule.by.name, file, title))
        for name in dict.fromkeys(singles):
            if scores[name].notna().any():
                plans.append(partial(figures.curves, members, name, f'{start}curves_{name}.{opt.format}', title))
                plans.append(partial(figures.bars, scores, name, f'{start}bars_{name}.{opt.format}',
                                     f'{title}, {rule.at}'))
    selection.require_values(chosen, tables_of_scores)
    folder.mkdir(parents=True, exist_ok=True)
    return plans, sum((sum(missing.values(), []) for _, missing in tables_of_scores), [])
