"""Networks of cross-validation folds, together, on the test classes; tables over seeds. --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.require_packages('Evaluate_Ensemble.py')

from flags import command_line
from utilities.errors import UserError, exit_code


def build():
    parser = command_line.Parser(prog='Evaluate_Ensemble.py',
                                 description="Evaluates each fold's best network by validation on the test classes: "
                                             'each network alone, and all together with their embeddings concatenated. '
                                             'Prints the table.')
    parser.add_argument('runs', nargs='+', metavar='RUN_FOLDER',
                        help='folders of finished runs; the folds of one --seed and --group (without _fold<k>) are '
                             'one ensemble')
    what = parser.add_argument_group('what to evaluate').add_argument
    what('--evaluation_metrics', nargs='+', metavar='METRIC', default=['precision_at_1', 'r_precision', 'map_at_r'],
         help='the metrics, as in main.py')
    what('--pca', metavar='D', type=command_line.COUNT, default=0,
         help='evaluate the first D principal components of the training classes (concatenated: also of the '
              'validation classes); 0 means none')
    what('--untrained', action='store_true',
         help="also evaluate the networks before training: the features of the backbone, and the embeddings")
    machine = parser.add_argument_group("this machine; by default as in the runs' records")
    machine.add_argument('--source_path', '--source', help="the folder that holds the data sets' folders")
    machine.add_argument('--device', choices=[*command_line.DEVICES], help='the device to compute on')
    machine.add_argument('--gpu', nargs='+', type=command_line.COUNT, help='the index of the NVIDIA GPU')
    machine.add_argument('--kernels', type=command_line.COUNT, help='the number of processes that load images')
    machine.add_argument('--bs', type=command_line.POSITIVE_INT, help='the number of images that are embedded at once')
    machine.add_argument('--weights', metavar='FILE', help="for --untrained: the backbone's pretrained weights")
    command_line.switch(machine, '--evaluate_on_gpu', help='compute the metrics on the GPU as well', default=None)
    output = parser.add_argument_group('what to write').add_argument
    output('--save_path', default='Ensembles',
           help='the records go to <save_path>/<dataset>/<group>_ensemble_s<seed>/')
    output('--digits', type=command_line.COUNT, default=2,
           help='decimals of percentages; other numbers have two more')
    output('--latex', metavar='FILE', help='write the table in LaTeX, for the package booktabs')
    output('--markdown', metavar='FILE', help='write the table in Markdown')
    output('--csv', metavar='FILE', help='write the table with all digits, and every test')
    return parser


def evaluate(arguments):
    opt = build().parse_args(arguments)
    if opt.weights and not opt.untrained:
        raise UserError('--weights goes with --untrained; a trained network has its weights in its run folder')
    from reports import ensemble_evaluation  # imports torch, which --help does not need
    try:
        ensemble_evaluation.report(opt, arguments)
    except KeyboardInterrupt:
        print('\nStopped. The same command goes on with the ensembles that are not recorded yet.', file=sys.stderr)
        raise


def main(arguments):
    """Returns the exit code, as main.py's."""
    return exit_code('Evaluate_Ensemble.py', lambda: evaluate(arguments))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
