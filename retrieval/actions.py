"""What Evaluate_Network.py does with a trained network. ACTIONS is the registry."""
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import configuration
import evaluation
import parameters
import parts
from flags import command_line
from flags.namespace import changed
from retrieval import codes, export, open_set, pairs, reranking
from utilities import processes
from utilities.errors import UserError, choose


@dataclass
class Action:
    """
    help:    what it does, for the manual.
    run:     carries it out: the namespace of main.py's flags, with `evaluate` the run, and of the action's own flags.
    flags:   declares its own flags: an argparse parser -> None.
    without: the flags of main.py's evaluation that it does not read. They are refused.
    """
    help: str
    run: Callable
    flags: Callable = lambda parser: None
    without: tuple = ()


def metrics(opt):
    evaluation.show(opt, parts.restore(opt, opt.evaluate))


def embeddings(opt):
    built = parts.restore(opt, opt.evaluate)
    evaluation.write_embeddings(opt, built.model, built.data, opt.file)


def embeddings_flags(parser):
    parser.add_argument('file', metavar='OUT.npz', help='the file to write')


def pictures(opt):
    built = parts.restore(opt, opt.evaluate)
    evaluation.draw(opt, built.model, built.data, built.criterion, opt.folder, opt.images)


def pictures_flags(parser):
    parser.add_argument('folder', metavar='FOLDER', help='the folder to write the --pictures to')
    parser.add_argument('images', metavar='IMAGE', nargs='*',
                        help='two images of the split, which --pictures why compares, in place of its own choice')


DRAWS = ('eval_draws', 'eval_draw_size')
METRICS = ('evaluation_metrics', 'bootstrap', *DRAWS)
ACTIONS = {
    'metrics': Action('print the metrics of the evaluated splits; the default', metrics),
    'codes': Action('compare short codes of the embeddings by quality, bytes and time', codes.compare, codes.flags,
                    (*METRICS, *codes.WITHOUT)),
    'open_set': Action('measure how well queries of unknown classes are recognised, and calibrate a threshold',
                       open_set.evaluate, open_set.flags, (*METRICS, *open_set.WITHOUT)),
    'rerank': Action('compute the metrics after re-ranking', reranking.compare, reranking.flags, DRAWS),
    'pairs': Action('verify a list of pairs: whether two images are of one class', pairs.verify, pairs.flags,
                    (*METRICS, *pairs.WITHOUT)),
    'embeddings': Action('write the embeddings, their norms, labels and paths to a file', embeddings, embeddings_flags,
                         METRICS),
    'pictures': Action('draw the --pictures of the embeddings', pictures, pictures_flags, METRICS),
    'export': Action('write the network to a file for other programs', export.export, export.flags, METRICS),
}
MORE = 'Takes flags of an evaluation by main.py, too, such as --splits_to_eval, --eval_ema and --source_path ' \
       '(main.py --help evaluation).'


def build():
    """The parser of the manual, and of the flags that the actions declare."""
    parser = command_line.Parser(prog='Evaluate_Network.py', epilog=MORE,
                                 usage='Evaluate_Network.py RUN [ACTION] [FLAG ...]',
                                 description='Evaluates, draws or exports a trained network. RUN ACTION --help '
                                             'explains an action.')
    parser.add_argument('run', metavar='RUN', help='run folder, whose last checkpoint is used, or a checkpoint')
    commands = parser.add_subparsers(dest='action', metavar='ACTION', required=True, prog='Evaluate_Network.py RUN')
    for name, action in ACTIONS.items():
        action.flags(commands.add_parser(name, help=action.help, description=action.help, epilog=MORE))
    return parser


def parse(arguments):
    """
    The arguments RUN [ACTION] ... -> (name of the action, namespace of main.py's flags and of the action's own).

    Raises UserError for whatever the user must change, and for flags that the action does not read.
    """
    parser = build()
    words = [*itertools.takewhile(lambda word: not word.startswith('-'), arguments)]
    if {'-h', '--help'} & {*arguments}:
        is_action_alone = words and words[0] in ACTIONS
        parser.parse_args(['RUN', *arguments] if is_action_alone else arguments)
    if not words:
        raise UserError('begin with a run folder or checkpoint: Evaluate_Network.py RUN [ACTION] [FLAG ...]')
    run, *rest = arguments
    name = rest.pop(0) if len(words) > 1 else 'metrics'
    action = choose(ACTIONS, name, f'{run}: action')
    own, others = divided(rest, action)
    values = vars(parser.parse_args([run, name, *own]))
    del values['run']
    del values['action']
    without = {*parameters.modes() - {'config'}, *parameters.training_flags(), *action.without}
    without |= set() if name == 'pictures' else {'pictures'}
    configuration.require_effect(command_line.flags_in(others), f'Evaluate_Network.py {run} {name}', without)
    opt = configuration.parse([*others, '--evaluate', run])
    return name, changed(opt, **values)


def divided(arguments, action):
    """The arguments that an Action declares, and the others: (words before any flag and own flags, others)."""
    parser = command_line.Parser()
    action.flags(parser)
    declared = command_line.known_flags(parser)
    own = []
    others = []
    current = own
    for argument in arguments:
        if argument.startswith('--'):
            flag, = command_line.flags_in([argument])
            current = own if flag in declared else others
        current.append(argument)
    return own, others


def carry_out(arguments):
    """Carries out a command line of Evaluate_Network.py; returns None, or the exit code of the processes of --gpu."""
    name, opt = parse(arguments)
    if len(opt.gpu) > 1 and name not in ('export', 'pairs') and not processes.connected():
        return processes.start(len(opt.gpu), [sys.executable, *sys.argv], configuration.secret_variables(opt))
    ACTIONS[name].run(opt)
