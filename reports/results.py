"""Groups of runs over seeds -> the printed table, its files, and figures."""
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas

from evaluation import titles
from records import columns
from records.columns import Column
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
    elif opt.all_epochs:
        raise UserError('--all_epochs goes with --rows')
    for flag, folder in (('--figures', opt.figures), ('--cache', opt.project and opt.cache)):
        if folder:
            require_writable_folder(folder, flag)
    if opt.compare:
        ignored = [f'--{name}' for name in (*tables.FORMATS, 'rows', 'figures') if getattr(opt, name)]
        if ignored:
            raise UserError(f'--compare prints a table and writes no file; leave out {", ".join(ignored)}')
        from reports import final_rows
        print(final_rows.compare(*opt.compare, opt.metrics, opt.digits))
        return
    names = titles.without_second_names(list(dict.fromkeys(map(columns.asked_for, opt.metrics))))
    rule = selection.selection_rule(opt, names)
    found = runs.collect(opt)
    if planned:
        found = runs.of_script(found, planned, opt.script)
    expected = [(dataset, group, seed) for dataset, group, seed in planned
                if runs.is_wanted(opt, dataset, f'{group}_s{seed}')]
    grouped, notes = groups.group_runs(found, expected, opt.seeds, opt.with_unfinished)
    if not any(group.runs for group in grouped):
        raise UserError('no run is left for the table:\n' + '\n'.join(f'  {note}' for note in notes))
    if opt.published:
        from reports import published  # imports scipy, which other tables do not need
        published.report(opt, grouped, notes)
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
        shown = differences.add(table, grouped, scores, names, opt.baseline, opt.digits)
        caption += differences.explained(opt.baseline, table)
    below = bool(opt.baseline) and len(datasets) > 1
    texts = {'latex': tables.latex(table, datasets, shown, caption, notes, below=below), 'csv': tables.csv(table),
             'markdown': tables.markdown(table, datasets, shown, caption, notes)}
    plans = figure_plans(opt, grouped, names, rule) if opt.figures else {}
    problems += [f'no value: {problem}' for plan in plans.values() for problem in sum(plan.missing.values(), [])]
    for problem in dict.fromkeys(problems):
        print(f'Note: {problem}', file=sys.stderr)
    print(texts['markdown'])
    tables.write_files(opt, texts)
    if opt.rows:
        from reports import final_rows
        final_rows.write(opt.rows, grouped, rule, names if opt.all_epochs else ())
        print(f'rows: {opt.rows}')
    if opt.figures:
        draw(opt, plans, rule)


@dataclass
class Plan:
    """
    The figures of one data set. groups: the groups with runs; scores, missing: their selection.scores; matrix: the
    columns of the correlation matrix; pairs: the columns (x, y) of each scatter plot; singles: the columns with curves
    and bars.
    """
    groups: list
    scores: pandas.DataFrame
    missing: dict
    matrix: list
    pairs: list
    singles: list


def figure_plans(opt, grouped, names, rule):
    """{data set: Plan}. names: the columns of the table. Raises UserError for a metric that no run has."""
    plans = {}
    chosen = [columns.asked_for(metric) for metric in opt.figure_metrics]
    for dataset in dict.fromkeys(group.data for group in grouped if group.runs):
        members = [group for group in grouped if group.data == dataset and group.runs]
        last = [run.rows[-1] for group in members for run in group.runs]
        shared = [name for name in last[0] if all(name in row for row in last)]
        of_test = [name for name in shared if columns.parse(name) and columns.parse(name).split == 'test']
        matrix = chosen or titles.without_second_names(of_test)
        causes = [Column('test', 'nmi').name]
        for metric in ('rho_spectrum@1', 'dists@intra_over_inter'):              # on the training classes, if known
            on_train = Column('train', metric).name
            on_test = Column('test', metric).name
            causes.append(on_train if on_train in shared else on_test)
        pairs = [(cause, rule.by.name) for cause in causes if cause in shared]
        singles = list(dict.fromkeys([rule.by.name, *names, *chosen]))
        needed = dict.fromkeys([*matrix, *singles, *(name for pair in pairs for name in pair)])
        scores, missing = selection.scores(members, list(needed), rule)
        singles = [name for name in singles if scores[name].notna().any()]
        plans[dataset] = Plan(members, scores, missing, matrix, pairs, singles)
    selection.require_values(chosen, [(plan.scores, plan.missing) for plan in plans.values()])
    return plans


def draw(opt, plans, rule):
    """Draws the figures, and prints their files."""
    from reports import figures  # imports matplotlib, which tables do not need
    folder = Path(opt.figures)
    folder.mkdir(parents=True, exist_ok=True)
    for dataset, plan in plans.items():
        title = naming.dataset(dataset)

        def path(what, dataset=dataset):
            return folder / f'{dataset}_{what}.{opt.format}'

        files = [figures.correlation_matrix(plan.scores, plan.matrix, path('correlations'), title)]
        files += [figures.scatter(plan.scores, x, y, path(f'{y}_against_{x}'), title) for x, y in plan.pairs]
        for name in plan.singles:
            files += [figures.curves(plan.groups, name, path(f'curves_{name}'), title),
                      figures.bars(plan.scores, name, path(f'bars_{name}'), f'{title}, {rule.at}')]
        print('\n'.join(f'figure: {file}' for file in files))
