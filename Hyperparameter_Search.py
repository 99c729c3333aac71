"""Tunes flags of main.py on cross-validation folds of classes, by Optuna. --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.require_packages('Hyperparameter_Search.py')

from flags import command_line
from launching import slots
from utilities import errors


def build():
    parser = command_line.Parser(
        prog='Hyperparameter_Search.py',
        usage='Hyperparameter_Search.py --study_path FOLDER --tune FLAG LOW HIGH [--tune ...] [FLAG of main.py ...]',
        description='Maximises the mean over folds of the best validation score (the first of --storage_metrics, by '
                    'default map_at_r). All other flags go to main.py, such as --config, --loss and --n_folds. '
                    'The same command continues a stopped search, and with a larger --n_trials extends it. Several '
                    'processes that run it at the same time share the trials.')
    add = parser.add_argument
    add('--study_path', metavar='FOLDER', required=True,
        help="the study's folder, for its records, its runs and its plots")
    add('--tune', nargs='+', action='append', metavar=('FLAG', 'LOW HIGH [log] [int [STEP]] | A,B,C'), default=[],
        help='a flag of main.py to tune, without dashes, and its range or its choices; may be given several times')
    add('--n_trials', type=command_line.POSITIVE_INT, default=50,
        help='number of settings to try, failed ones included')
    add('--sampler', choices=['tpe', 'gp', 'random', 'grid'], default='tpe', help='the method that proposes settings')
    add('--grid_points', metavar='N', type=command_line.number(int, 2), default=5,
        help='with --sampler grid: number of values of each range')
    add('--pruner', choices=['none', 'median', 'hyperband'], default='none',
        help='the method that stops unpromising trials early, by their validation scores so far')
    add('--storage', metavar='URL',
        help='the database of the study, such as postgresql://HOST/NAME; by default an SQLite file in its folder')
    add('--study_name', help='name of the study in the database; by default the name of the folder')
    add('--reproductions', metavar='N', type=command_line.COUNT, default=0,
        help='number of new seeds with which the best setting is trained on all folds at the end')
    add('--keep_checkpoints', action='store_true',
        help='keep the checkpoints of all trials; by default only the best trial keeps its own')
    slots.add_flags(parser)
    return parser


def run_search(arguments):
    own, more = command_line.parted(arguments)
    opt, others = build().parse_known_args(own)
    from tuning import search  # imports torch, which --help does not need
    return search.run(opt, [*others, *more])


def main(arguments):
    """Returns the exit code: 0, 1 where a reproduction failed, 2 after a UserError, 130 after Ctrl-C."""
    return errors.exit_code('Hyperparameter_Search.py', lambda: run_search(arguments))


if __name__ == '__main__':
    stopping.install()
    sys.exit(main(sys.argv[1:]))
