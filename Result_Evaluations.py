"""Records of runs, from run folders or W&B -> tables (LaTeX, Markdown, CSV) and figures. --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.require_packages('Result_Evaluations.py')

from flags import command_line
from utilities.errors import UserError, exit_code


def build():
    parser = command_line.Parser(prog='Result_Evaluations.py',
                                 description='Averages the metrics of runs over seeds and prints a table; can also '
                                             'write the table and figures to files.')
    source = parser.add_argument_group('which runs').add_argument
    source('--runs', nargs='+', metavar='FOLDER', default=[],
           help="folders that hold run folders, at any depth; or .csv files of --rows")
    source('--project', metavar='ENTITY/PROJECT', help='a project at W&B, instead of --runs')
    source('--cache', metavar='FOLDER', default='wandb_cache',
           help='folder in which runs that were downloaded from W&B are kept, so that they are downloaded only once')
    source('--datasets', nargs='+', metavar='NAME', default=[], help='only the runs on these data sets')
    source('--only', nargs='+', metavar='TEXT', default=[], help='only the runs whose name contains one of these')
    source('--exclude', nargs='+', metavar='TEXT', default=[],
           help="leave out runs whose name or path contains one of these; a run folder's path stands for it alone")
    source('--script', metavar='SCRIPT',
           help='only the runs of a script, such as Revisit_Runs.sh, in its order; lists runs that have no records')
    source('--seeds', nargs='+', type=command_line.COUNT, metavar='SEED', default=[],
           help='the seeds that every group should have; by default, all seeds that some group on the data set has')
    source('--with_unfinished', action='store_true', help='include unfinished and crashed runs, and list them')
    numbers = parser.add_argument_group('which numbers').add_argument
    numbers('--metrics', nargs='+', metavar='METRIC', default=['e_recall@1', 'nmi'],
            help='columns of the table: metrics of the test split, or of another split with its prefix, as in '
                 'train_rho_spectrum@1')
    numbers('--select', choices=['last', 'best_val', 'best_test'], default='last',
            help='the epoch whose metrics are reported; best_test chooses it by the test metrics that are reported')
    numbers('--select_by', metavar='METRIC',
            help='the metric by which the best epoch is selected; by default, the first of --metrics where higher is '
                 'better')
    numbers('--per_metric', action='store_true',
            help='with best_test or best_val: report each test metric at its own best epoch, as Roth et al. do')
    numbers('--baseline', metavar='GROUP',
            help='add the difference between each group and this one, paired by seed, with its 95 percent interval '
                 'and p-value')
    numbers('--digits', type=command_line.COUNT, default=1,
            help='number of decimals of percentages; other numbers have two more')
    numbers('--published', nargs='+', choices=['roth2020', 'musgrave2020', 'mohan2020'], metavar='PAPER', default=[],
            help="print instead each group's published value, our value by the paper's rule, and their difference; "
                 'papers: roth2020, musgrave2020, mohan2020')
    output = parser.add_argument_group('what to write').add_argument
    output('--latex', metavar='FILE', help='write the table in LaTeX, for the package booktabs')
    output('--markdown', metavar='FILE', help='write the table in Markdown')
    output('--csv', metavar='FILE', help='write the table with all digits')
    output('--rows', metavar='FILE',
           help='write a CSV file with a line per run: its metrics at the selected epoch, command, commit and versions')
    output('--all_epochs', action='store_true',
           help='with --rows: also write a line for each other epoch, with the --metrics to six digits')
    output('--compare', nargs=2, metavar=('OLD', 'NEW'),
           help='compare two files of --rows: print the difference of each mean, with its 95 percent interval and '
                'p-value')
    output('--figures', metavar='FOLDER', help='write the figures of each data set')
    output('--figure_metrics', nargs='+', metavar='METRIC', default=[],
           help='metrics of the correlation matrix, curves and bars; by default, the matrix has all common test '
                'metrics')
    output('--format', choices=['png', 'pdf', 'svg'], default='png', help='file format of the figures')
    return parser


def planned(script):
    """(data set, group, seed) of each run of a script, in its order, without the lines that main.py refuses."""
    from launching import plan
    return [tuple(run.settings[flag] for flag in ('dataset', 'group', 'seed'))
            for run in plan.runs_of_script(script, skip_refused=True)]


def report(arguments):
    parser = build()
    opt = parser.parse_args(arguments)
    given = command_line.given(parser, arguments)
    for name, needed in (('figure_metrics', 'figures'), ('format', 'figures'), ('cache', 'project'),
                         ('all_epochs', 'rows')):
        if name in given and needed not in given:
            raise UserError(f'--{name} goes with --{needed}')
    for alone, reason, refused in (
            ('published', 'the papers say which metrics and epochs are compared, in a table',
             {'metrics', 'select', 'select_by', 'per_metric', 'baseline', 'rows', 'compare', 'figures'}),
            ('compare', 'it prints a table of two files', given.keys() - {'compare', 'metrics', 'digits'})):
        others = [f'--{name}' for name in given if name in refused]
        if alone in given and others:
            raise UserError(f'--{alone}: {reason}; leave out {", ".join(others)}')
    from reports import results  # imports torch, which --help does not need
    results.report(opt, planned(opt.script) if opt.script else ())


def main(arguments):
    """Returns the exit code: 0, 2 after a UserError, 130 after Ctrl-C."""
    return exit_code('Result_Evaluations.py', lambda: report(arguments))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
