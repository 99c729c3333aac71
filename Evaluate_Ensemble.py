"""Networks of cross-validation folds, together, on the test classes; tables over seeds. --help is the manual."""
import contextlib
import io
import os
import shlex
import sys
import time
from pathlib import Path

import pandas
from tqdm import tqdm

import evaluation
import parameters
import parts
from evaluation import ensemble_tables, ensembles, folds
from utilities import checkpoint, command_line, ensemble_records
from utilities.errors import RunFailed, UserError
from utilities.files import require_folder, write_text

STATES = ('untrained_trunk', 'untrained_trunk_and_embedder', 'trained')
MACHINE = ('source_path', 'device', 'gpu', 'kernels', 'evaluate_on_gpu', 'bs', 'weights')
OF_THE_NETWORK = ('arch', 'embed_dim', 'embed_layers', 'not_pretrained', 'weights', 'input_size', 'input_mean',
                  'input_std', 'input_bgr', 'augmentation', 'eval_normalize', 'eval_autocast', 'seed')


def build():
    parser = command_line.Parser(prog='Evaluate_Ensemble.py',
                               description="Evaluates each fold's best network by validation on the test classes: one "
                                           'by one, and as one with their embeddings joined. Prints the table.')
    parser.add_argument('runs', nargs='+', metavar='RUN_FOLDER',
                        help='of finished runs. Those of one --seed and one --group, but for _fold<k> at its end, are '
                             'one ensemble')
    what = parser.add_argument_group('what to evaluate').add_argument
    what('--evaluation_metrics', nargs='+', metavar='METRIC', default=['precision_at_1', 'r_precision', 'map_at_r'],
         help='of those of main.py')
    what('--pca', metavar='D', type=command_line.COUNT, default=0,
         help='the first D principal components, fitted on images of classes that do not test; 0: all dimensions')
    what('--untrained', action='store_true', help="also the networks as they were before the training: the backbone's "
                                                  'features, and the embeddings')
    machine = parser.add_argument_group("this machine; by default as the runs'")
    machine.add_argument('--source_path', '--source', help="the folder that holds the data sets' folders")
    machine.add_argument('--device', choices=['auto', 'cpu', 'cuda', 'mps'], help='what to compute on')
    machine.add_argument('--gpu', nargs='+', type=command_line.COUNT, help='index of the NVIDIA GPU')
    machine.add_argument('--kernels', type=command_line.COUNT, help='data workers')
    machine.add_argument('--bs', type=command_line.POSITIVE_INT, help='images that are embedded at a time')
    machine.add_argument('--weights', metavar='FILE', help="for --untrained: the backbone's pretrained weights")
    command_line.switch(machine, '--evaluate_on_gpu', help='compute the metrics on the GPU as well', default=None)
    output = parser.add_argument_group('what to write').add_argument
    output('--save_path', default='Ensembles', help='records go to <save_path>/<dataset>/<group>_ensemble_s<seed>/')
    output('--digits', type=command_line.COUNT, default=2, help='decimals of percentages; other numbers have two more')
    output('--latex', metavar='FILE', help='the table, for booktabs')
    output('--markdown', metavar='FILE', help='the table')
    output('--csv', metavar='FILE', help='the table with all digits, and every test')
    return parser


def network(opt, member, state):
    """(opt, network, data, criterion) of a member, as main.py --evaluate has them, or before its training."""
    given = {name: getattr(opt, name) for name in MACHINE}
    metrics = list(dict.fromkeys([*opt.evaluation_metrics, *member.run.flags['storage_metrics']]))
    start = ['--evaluate', str(member.checkpoint)] if state == 'trained' else ['--reproduce', member.run.where]
    own = parameters.parse([*start, *command_line.tokens(given | {'evaluation_metrics': metrics, 'pca': opt.pca}),
                            '--splits_to_eval', 'test', '--eval_reference', 'self', '--eval_level', 'class'])
    own.evaluation_metrics = opt.evaluation_metrics
    with contextlib.redirect_stdout(io.StringIO()):                      # one line per network would be many
        built = parts.restore(own, member.checkpoint) if state == 'trained' else parts.prepare(own)
    model, data, criterion = built.model, built.data, built.criterion
    if data.description['hash'] != member.config['split_hash']:
        raise UserError(f'{member.run.where}: the classes or numbers of images are not those of this run; '
                        '--source_path must lead to the same data')
    if state == 'untrained_trunk':
        own.eval_features, own.eval_normalize = True, own.eval_normalize or model.normalize
    return own, model, data, criterion


def evaluate(opt, ensemble, shared, bar):
    """
    The rows of log.csv and folds.csv of an ensemble.

    shared: of untrained networks, what was computed for the ensembles before; a method does not change them.
    """
    log, of_folds = [], []
    for state in STATES if opt.untrained else STATES[-1:]:
        key, known = key_of(ensemble, state), {} if state == 'trained' else shared
        if key in known:
            bar.update(len(ensemble.members))
        else:
            known[key] = values_of(opt, ensemble, state, bar)
        separated, forms = known[key]
        epochs = [member.epoch if state == 'trained' else 0 for member in ensemble.members]
        for form, values in forms.items():
            log.append({'form': form, 'trained_status': state, 'n_folds_of': ensemble.n_folds_of,
                        'epochs': ' '.join(map(str, epochs)), 'timestamp': time.strftime('%Y-%m-%d %H:%M:%S')} | values)
        for member, epoch, values in zip(ensemble.members, epochs, separated, strict=True):
            of_folds.append({'fold': member.fold, 'seed': ensemble.seed, 'trained_status': state, 'epoch': epoch,
                             'run': member.run.where, 'run_id': member.config['run_id']} | values)
    return log, of_folds


def values_of(opt, ensemble, state, bar):
    """([scores of each fold's network], {form: scores of them together})."""
    separated, members = [], []
    for member in ensemble.members:
        own, model, data, criterion = network(opt, member, state)
        members.append(ensembles.embed_member(own, model, data))
        separated.append(ensembles.separated(own, members[-1], criterion))
        bar.update()
    return separated, {'separated': ensembles.mean_over_folds(separated),
                       'concatenated': ensembles.concatenated(own, members)}


def key_of(ensemble, state):
    """What the scores of untrained networks are a function of, besides the flags of this program."""
    flags = ensemble.members[0].run.flags
    return (state, ensemble.dataset, *(member.config['split_hash'] for member in ensemble.members),
            *(str(flags.get(name)) for name in OF_THE_NETWORK))


def identity_of(opt, ensemble):
    """What makes two evaluations the same: the networks, and what is computed of them."""
    return {'members': [{'fold': member.fold, 'run_id': member.config['run_id'], 'epoch': member.epoch}
                        for member in ensemble.members],
            'evaluation': {name: getattr(opt, name) for name in ('evaluation_metrics', 'pca', 'untrained')}}


def settings_of(opt, ensemble, arguments):
    """ensemble.yaml."""
    shared = {name: value for name, value in ensemble.members[0].run.flags.items() if name not in folds.OF_A_MEMBER}
    return {'name': ensemble.name, 'dataset': ensemble.dataset, 'seed': ensemble.seed,
            'n_folds_of': ensemble.n_folds_of, 'test_hash': ensemble.members[0].test,
            'identity': identity_of(opt, ensemble),
            'checkpoints': [str(member.checkpoint) for member in ensemble.members], 'flags': shared,
            'command': shlex.join(['python', 'Evaluate_Ensemble.py', *arguments])}


def record(opt, found, arguments):
    """Evaluates what is not recorded yet; returns each ensemble's folder of records."""
    places = {}
    for ensemble in found:
        folder = Path(opt.save_path) / ensemble.dataset / f'{ensemble.name}_ensemble_s{ensemble.seed}'
        places[str(ensemble)] = ensemble_records.find(folder, identity_of(opt, ensemble)), folder
    pending = [ensemble for ensemble in found if places[str(ensemble)][0] is None]
    for member in tqdm([member for ensemble in pending for member in ensemble.members], desc='checkpoints',
                       leave=False, disable=None):
        epoch = checkpoint.load(member.checkpoint)['epoch']
        if epoch != member.epoch:
            raise UserError(f'{member.checkpoint}: it is of epoch {epoch}, but the best one in log.csv is '
                            f'{member.epoch}; copy the run folder again')
    n_networks = sum(len(ensemble.members) for ensemble in pending) * (len(STATES) if opt.untrained else 1)
    shared = {}
    with tqdm(total=n_networks, desc='networks', disable=None if pending else True) as bar:
        for ensemble in pending:
            folder = places[str(ensemble)][1]
            rows = evaluate(opt, ensemble, shared, bar)
            places[str(ensemble)] = ensemble_records.write(folder, settings_of(opt, ensemble, arguments), *rows), folder
    return [place for place, _ in places.values()]


def run(opt, arguments):
    """Checks everything, evaluates, prints the table and writes what is asked for."""
    for flag in ('latex', 'markdown', 'csv'):
        if getattr(opt, flag):
            require_folder(getattr(opt, flag), f'--{flag}')
    above = next(path for path in (Path(opt.save_path), *Path(opt.save_path).absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(f'--save_path {opt.save_path}: no folder can be made in {above}')
    for name in opt.evaluation_metrics:
        if evaluation.parse(name)[1].needs == 'spectrum' and name.endswith('@0'):
            raise UserError(f'--evaluation_metrics {name}: it is no number; leave it out')
    found = folds.gather(opt.runs)
    log, of_folds = [], []
    for ensemble, folder in zip(found, record(opt, found, arguments), strict=True):
        where = {'dataset': ensemble.dataset, 'method': ensemble.method, 'seed': ensemble.seed}
        for rows, part in zip((log, of_folds), ensemble_records.read(folder), strict=True):
            rows += [where | row for row in part]
        print(f'{ensemble}: {folder}')
    texts = ensemble_tables.report(pandas.DataFrame(log), pandas.DataFrame(of_folds),
                                   [f'test_{name}' for name in opt.evaluation_metrics], opt.digits,
                                   folds.notes_on(found))
    print('\n' + texts['markdown'])
    for flag, text in texts.items():
        if getattr(opt, flag):
            write_text(getattr(opt, flag), text)
            print(f'{flag}: {getattr(opt, flag)}')


def main(arguments):
    """Returns the exit code, as main.py's."""
    try:
        run(build().parse_args(arguments), arguments)
    except UserError as error:
        print(f'Evaluate_Ensemble.py: error: {error}', file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f'Evaluate_Ensemble.py: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nStopped. The same command goes on with the ensembles that are not recorded yet.', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
