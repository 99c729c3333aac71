"""
Evaluates the networks of cross-validation folds on the test classes, each alone and all as an ensemble, records the
scores, and makes the table over seeds.
"""
import argparse
import contextlib
import io
import shlex
import time
from pathlib import Path

import pandas
from tqdm import tqdm

import configuration
import criteria
import evaluation
import parameters
import parts
from flags import command_line
from records import checkpoint, run_folder
from records.columns import Column
from reports import ensemble_records, ensemble_tables, ensembles, folds, tables
from utilities.errors import UserError
from utilities.files import require_writable_folder

STATES = ('untrained_trunk', 'untrained_trunk_and_embedder', 'trained')
# flags that Evaluate_Ensemble.py may set for this machine
MACHINE = ('source_path', 'device', 'gpu', 'kernels', 'evaluate_on_gpu', 'bs', 'weights')


def report(opt, arguments):
    """Checks all flags, evaluates, prints the table, writes the files. arguments: of the command line, for records."""
    tables.check_files(opt)
    require_writable_folder(opt.save_path, '--save_path')
    for name in opt.evaluation_metrics:
        metric = evaluation.parse(name)[1]
        if metric.needs == 'spectrum' and name.endswith('@0'):
            raise UserError(f'--evaluation_metrics {name}: it is a vector, not a number; leave it out')
        if metric.summary:
            raise UserError(f'--evaluation_metrics {name}: concatenated embeddings all have norm 1; leave it out')
    found = folds.gather(opt.runs)
    log = []
    of_folds = []
    for ensemble, folder in zip(found, record(opt, found, arguments), strict=True):
        where = {'dataset': ensemble.dataset, 'method': ensemble.method, 'seed': ensemble.seed}
        rows, rows_of_folds = ensemble_records.read(folder)
        log.append(rows.assign(**where))
        of_folds.append(rows_of_folds.assign(**where))
        print(f'{ensemble}: {folder}')
    names = [Column('test', metric).name for metric in opt.evaluation_metrics]
    texts = ensemble_tables.report(pandas.concat(log), pandas.concat(of_folds), names, opt.digits,
                                   folds.notes_on(found))
    texts['markdown'] += '\n' + ensemble_tables.validation(found, opt.evaluation_metrics, opt.digits)
    print('\n' + texts['markdown'])
    tables.write_files(opt, texts)


def record(opt, found, arguments):
    """Evaluates the ensembles that are not recorded yet; returns the folder of each ensemble's records."""
    folders = {}
    pending = []
    for ensemble in found:
        planned = Path(opt.save_path) / ensemble.dataset / f'{ensemble.name}_ensemble_s{ensemble.seed}'
        recorded = ensemble_records.find(planned, evaluation_identity(opt, ensemble))
        folders[str(ensemble)] = recorded or planned
        if recorded is None:
            pending.append(ensemble)
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
            rows = evaluate(opt, ensemble, shared, bar)
            folders[str(ensemble)] = ensemble_records.write(folders[str(ensemble)],
                                                            ensemble_settings(opt, ensemble, arguments), *rows)
    return list(folders.values())


def evaluate(opt, ensemble, shared, bar):
    """
    The rows of log.csv and folds.csv of an ensemble.

    shared: {key: scores} of earlier networks, to which new ones are added. Those of untrained networks do not depend on
            the loss unless it has a distance of its own, so that several ensembles have them in common.
    """
    log = []
    of_folds = []
    for state in STATES if opt.untrained else STATES[-1:]:
        key = str(ensemble) if state == 'trained' else untrained_key(ensemble, state)
        if key in shared:
            bar.update(len(ensemble.members))
        else:
            shared[key] = ensemble_scores(opt, ensemble, state, bar)
        separated, forms = shared[key]
        epochs = [member.epoch if state == 'trained' else 0 for member in ensemble.members]
        for form, values in forms.items():
            log.append({'form': form, 'trained_status': state, 'n_folds_of': ensemble.n_folds_of,
                        'epochs': ' '.join(map(str, epochs)), 'timestamp': time.strftime('%Y-%m-%d %H:%M:%S')} | values)
        for member, epoch, values in zip(ensemble.members, epochs, separated, strict=True):
            of_folds.append({'fold': member.fold, 'seed': ensemble.seed, 'trained_status': state, 'epoch': epoch,
                             'run': member.run.where, 'run_id': member.config['run_id']} | values)
    return log, of_folds


def ensemble_scores(opt, ensemble, state, bar):
    """([scores of each fold's network], {'separated' and 'concatenated': scores of the ensemble})."""
    separated = []
    members = []
    for member in ensemble.members:
        own, built = network(opt, member, state)
        members.append(ensembles.embed_member(own, built.model, built.data))
        separated.append(ensembles.separated(own, members[-1], built.criterion))
        bar.update()
    return separated, {'separated': ensembles.mean_over_folds(separated),
                       'concatenated': ensembles.concatenated(own, members)}


def network(opt, member, state):
    """(opt, Parts) of a member: as main.py --evaluate has them, or as they were before the training."""
    given = {name: getattr(opt, name) for name in MACHINE}
    metrics = list(dict.fromkeys([*opt.evaluation_metrics, *(
        evaluation.metric_and_level(name)[0] for name in member.run.flags['storage_metrics'])]))
    start = ['--evaluate', str(member.checkpoint)] if state == 'trained' else ['--reproduce', member.run.where]
    own = configuration.parse([*start, *command_line.tokens(given | {'evaluation_metrics': metrics, 'pca': opt.pca}),
                            '--splits_to_eval', 'test', '--eval_reference', 'self', '--eval_level', 'class'])
    own.evaluation_metrics = opt.evaluation_metrics
    own.eval_draws = 0
    own.bootstrap = 0
    with contextlib.redirect_stdout(io.StringIO()):                      # one line per network would be many
        built = parts.restore(own, member.checkpoint) if state == 'trained' else parts.prepare(own)
    changed = run_folder.changed_data(member.config, built.data.description)
    if changed:
        raise UserError(f'{member.run.where}: the data have {changed} than this run; --source_path must lead to '
                        'the same data')
    if state == 'untrained_trunk_and_embedder':
        parts.fit_embedding(own, built)
    if state == 'untrained_trunk':
        own.eval_features = True
        own.eval_normalize = own.eval_normalize or built.model.normalize
    return own, built


def untrained_key(ensemble, state):
    """What the scores of untrained networks may depend on, besides the flags of this program."""
    flags = ensemble.members[0].run.flags
    of_groups = sorted(parameters.flags_of_group('data', 'network', 'evaluation'))
    names = ['seed', *of_groups, *parameters.files_among(flags)]
    if criteria.has_own_distance(argparse.Namespace(**flags)):
        names += parameters.flags_of_group('losses')
    return (state, *(member.config['split_hash'] for member in ensemble.members),
            *(str(flags.get(name)) for name in names))


def evaluation_identity(opt, ensemble):
    """The identity of an evaluation: its networks, and the flags that change the scores."""
    return {'members': [{'fold': member.fold, 'run_id': member.config['run_id'], 'epoch': member.epoch}
                        for member in ensemble.members],
            'evaluation': {name: getattr(opt, name) for name in ('evaluation_metrics', 'pca', 'untrained')}}


def ensemble_settings(opt, ensemble, arguments):
    """The content of ensemble.yaml."""
    shared = {name: value for name, value in ensemble.members[0].run.flags.items() if name not in folds.OF_A_MEMBER}
    return {'name': ensemble.name, 'dataset': ensemble.dataset, 'seed': ensemble.seed,
            'n_folds_of': ensemble.n_folds_of, 'test_hash': ensemble.members[0].test,
            'identity': evaluation_identity(opt, ensemble),
            'checkpoints': [str(member.checkpoint) for member in ensemble.members], 'flags': shared,
            'command': shlex.join(['python', 'Evaluate_Ensemble.py', *arguments])}
