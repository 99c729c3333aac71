"""Records of runs, from run folders or W&B -> tables (LaTeX, Markdown, CSV) and figures. --help is the manual."""
import sys
from dataclasses import dataclass
from pathlib import Path

from utilities import command_line, run_records, wandb_records
from utilities.errors import UserError
from utilities.files import require_folder, write_text

FIGURE_FORMATS = ('png', 'pdf', 'svg')


def build():
    parser = command_line.Parser(prog='Result_Evaluations.py',
                               description='Groups runs over seeds; prints the table, and writes it and figures.')
    source = parser.add_argument_group('which runs').add_argument
    source('--runs', nargs='+', metavar='FOLDER', default=[],
           help="folders with run folders or W&B's offline runs somewhere below them")
    source('--project', metavar='ENTITY/PROJECT', help='a project at W&B')
    source('--cache', metavar='FOLDER', default='wandb_cache', help='where what W&B gives is kept')
    source('--datasets', nargs='+', metavar='NAME', default=[], help='only runs on these')
    source('--only', nargs='+', metavar='TEXT', default=[], help='only runs whose name contains one of these')
    source('--exclude', nargs='+', metavar='TEXT', default=[],
           help='not the runs whose name or place contains one of these')
    source('--script', metavar='SCRIPT', help='a script of runs, such as Revisit_Runs.sh: those that it has and the '
                                              'records have not are named, and the table is in its order')
    source('--seeds', nargs='+', type=command_line.COUNT, metavar='SEED', default=[],
           help='that every group should have; by default those that any group of its data set has')
    source('--with_unfinished', action='store_true', help='count unfinished and crashed runs too, and say so')
    numbers = parser.add_argument_group('which numbers').add_argument
    numbers('--metrics', nargs='+', metavar='METRIC', default=['e_recall@1', 'nmi'],
            help='on the test split, or with the split in front, as train_rho_spectrum@1')
    numbers('--select', choices=['last', 'best_val', 'best_test'], default='last',
            help='the epoch that counts; best_test chooses on the numbers that it reports')
    numbers('--select_by', metavar='METRIC',
            help='what best means; by default the first of --metrics of which more is better')
    numbers('--per_metric', action='store_true',
            help='with best_test or best_val: each metric on test at its own best epoch, as in Roth et al.')
    numbers('--digits', type=command_line.COUNT, default=1, help='decimals of percentages; other numbers have two more')
    output = parser.add_argument_group('what to write').add_argument
    output('--latex', metavar='FILE', help='the table, for booktabs')
    output('--markdown', metavar='FILE', help='the table')
    output('--csv', metavar='FILE', help='the table with all digits')
    output('--figures', metavar='FOLDER', help='all figures, for each data set')
    output('--figure_metrics', nargs='+', metavar='METRIC', default=[],
           help='of the correlation matrix, the curves and the bars; by default those on test that all runs have')
    output('--format', choices=FIGURE_FORMATS, default='png', help='of the figures')
    return parser


def collect(opt):
    """The Runs that the flags name. Raises UserError where there are none."""
    if bool(opt.runs) == bool(opt.project):
        raise UserError('give --runs FOLDER, or --project ENTITY/PROJECT')
    if opt.project:
        runs = wandb_records.download(opt.project, opt.cache, lambda name, where: by_name(opt, name, where))
    else:
        runs = below(opt.runs, opt.exclude)
    where = opt.project or ' '.join(opt.runs)
    if not runs:
        raise UserError(f'{where}: there are no run folders in it, and no offline runs of W&B')
    kept = [run for run in runs if is_wanted(opt, run.dataset, run.name, run.where)]
    if not kept:
        raise UserError(f'{where}: {len(runs)} runs, but none is left by --datasets, --only and --exclude')
    return kept


def below(folders, exclude):
    """The Runs of all run folders below the folders, and of W&B's offline runs that lie in none of these."""
    runs = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f'--runs {folder}: there is no such folder')
        found = [path.parent for path in sorted(folder.rglob('config.yaml'))
                 if run_records.is_run_folder(path.parent) and not path.parent.name.startswith('.')]
        runs += [run_records.read(path) for path in found if not any(text in str(path) for text in exclude)]
        offline = [file for file in wandb_records.offline_files(folder)
                   if not set(file.parents) & set(found) and not any(text in str(file) for text in exclude)]
        if offline:
            runs += wandb_records.read_offline(offline)
    return runs


def is_wanted(opt, dataset, name, where=''):
    """Whether --datasets, --only and --exclude leave a run in."""
    return (not opt.datasets or dataset in opt.datasets) and by_name(opt, name, where)


def by_name(opt, name, where=''):
    """Whether --only and --exclude leave a run in."""
    return ((not opt.only or any(text in name for text in opt.only))
            and not any(text in name or text in where for text in opt.exclude))


def expected(opt):
    """(data set, group, seed) of each run of --script, in its order."""
    from launching import plan
    found = [tuple(run.settings[name] for name in ('dataset', 'group', 'seed')) for run in plan.of_script(opt.script)]
    return [(dataset, group, seed) for dataset, group, seed in found if is_wanted(opt, dataset, f'{group}_s{seed}')]


@dataclass
class Drawing:
    """What is drawn of one data set. scores: results.scores of its runs; pairs: columns (x, y) to plot as points."""
    groups: list
    scores: object
    matrix: list
    pairs: list
    singles: list


def drawings(opt, groups, names, by):
    """{data set: Drawing}. Raises UserError for a metric that a run lacks."""
    from evaluation import results
    plans = {}
    for dataset in dict.fromkeys(group.dataset for group in groups if group.runs):
        members = [group for group in groups if group.dataset == dataset and group.runs]
        shared = [name for name in members[0].runs[0].rows[-1]
                  if all(name in run.rows[-1] for group in members for run in group.runs)]
        matrix = [results.column(metric) for metric in opt.figure_metrics] or [
            name for name in shared if name.startswith('test_')]
        score = f'test_{by}'
        causes = [next((f'{split}_{metric}' for split in ('train', 'test') if f'{split}_{metric}' in shared), None)
                  for metric in ('rho_spectrum@1', 'dists@intra_over_inter')]     # on the training classes, if known
        pairs = [(x, score) for x in ('test_nmi', *causes) if x in shared]
        singles = list(dict.fromkeys([score, *names, *(matrix if opt.figure_metrics else [])]))
        columns = dict.fromkeys([*matrix, *singles, *(name for pair in pairs for name in pair)])
        scores = results.scores(members, list(columns), opt.select, by, opt.per_metric)
        plans[dataset] = Drawing(members, scores, matrix, pairs, singles)
    return plans


def draw(opt, plans, rule):
    """Draws the figures, and prints their files."""
    from evaluation import comparison, results
    folder = Path(opt.figures)
    if folder.is_file():
        raise UserError(f'--figures {folder}: it is a file; give a folder')
    folder.mkdir(parents=True, exist_ok=True)
    for dataset, plan in plans.items():
        title = results.dataset_title(dataset)

        def place(what, dataset=dataset):
            return folder / f'{dataset}_{what}.{opt.format}'

        files = [comparison.correlation_matrix(plan.scores, plan.matrix, place('correlations'), title)]
        at = rule.removeprefix('all metrics ')
        files += [comparison.scatter(plan.scores, x, y, place(f'{y}_against_{x}'), title) for x, y in plan.pairs]
        for name in plan.singles:
            files += [comparison.curves(plan.groups, name, place(f'curves_{name}'), title),
                      comparison.bars(plan.scores, name, place(f'bars_{name}'), f'{title}, {at}')]
        print('\n'.join(f'figure: {file}' for file in files))


def evaluate(opt):
    """Prints the table and what is missing; writes what is asked for, once all of it is known."""
    from evaluation import results, tables
    for flag in ('latex', 'markdown', 'csv'):
        if getattr(opt, flag):
            require_folder(getattr(opt, flag), f'--{flag}')
    names = [results.column(metric) for metric in opt.metrics]
    by = (opt.select_by or next((name.partition('_')[2] for name in names if results.is_share(name)), 'e_recall@1')
          ).removeprefix('test_')
    if not results.is_share(f'test_{by}'):
        raise UserError(f'--select_by {by}: no metric of which more is better; choose one as e_recall@1 or nmi')
    rule = results.rule_in_words(opt.select, by, opt.per_metric)
    groups, notes = results.group_runs(collect(opt), expected(opt) if opt.script else (), opt.seeds,
                                       opt.with_unfinished)
    if not any(group.runs for group in groups):
        raise UserError('no run counts:\n' + '\n'.join(f'  {note}' for note in notes))
    scores = results.scores(groups, names, opt.select, by, opt.per_metric)
    table, datasets = tables.summarise(groups, scores, names, opt.digits)
    caption = tables.caption(scores, rule, names, table)
    texts = {'latex': tables.latex(table, datasets, names, caption, notes), 'csv': tables.csv(table),
             'markdown': tables.markdown(table, datasets, names, caption, notes)}
    plans = drawings(opt, groups, names, by) if opt.figures else {}
    print(texts['markdown'])
    for flag, text in texts.items():
        if getattr(opt, flag):
            write_text(getattr(opt, flag), text)
            print(f'{flag}: {getattr(opt, flag)}')
    if opt.figures:
        draw(opt, plans, rule)


def main(arguments):
    """Returns the exit code: 0, 2 for what the user must change, 130 after Ctrl-C."""
    try:
        evaluate(build().parse_args(arguments))
    except UserError as error:
        print(f'Result_Evaluations.py: error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
