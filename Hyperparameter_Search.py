"""Tunes flags of main.py on cross-validation folds of classes, by Optuna. --help is the manual."""
import argparse
import collections
import contextlib
import fcntl
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json
from optuna.trial import TrialState
from tqdm import tqdm

import datasets
import Launch_Runs
import parameters
from utilities import command_line, run_folder, run_records
from utilities.errors import UserError, choose, nearest
from utilities.files import write_text
from utilities.randomness import derive

# what a search takes instead of main.py's defaults
DEFAULTS = {'split_scheme': 'class_folds', 'splits_to_eval': ['val'], 'storage_metrics': ['map_at_r'],
            'evaluation_metrics': ['map_at_r', 'precision_at_1', 'r_precision'], 'pictures': ['none']}
OWN = {'fold', 'group', 'savename'}                               # flags that the search sets for each run
TRAINING = ('training', 'batch creation', 'batch mining', 'losses')         # groups of flags
TUNABLE = ('network', *TRAINING)
NOT_TUNABLE = {'n_epochs', 'patience'}                            # trials are compared epoch by epoch
HEARTBEAT, GRACE = 10, 40                                         # seconds; a worker silent for longer is dead
POLL = 0.5                                                        # seconds between looks at the runs
HOPELESS = 3                                                      # failed trials without a finished one


def build():
    parser = command_line.Parser(
        prog='Hyperparameter_Search.py',
        usage='Hyperparameter_Search.py --study_path FOLDER --tune FLAG LOW HIGH [--tune ...] [FLAG of main.py ...]',
        description='Maximises the mean over folds of the best validation score (the first of --storage_metrics, by '
                    'default map_at_r). All other flags are those of main.py, as --config, --loss, --n_folds. Start it '
                    'again to go on, with a larger --n_trials to extend, and several times at once to share the work.')
    add = parser.add_argument
    add('--study_path', metavar='FOLDER', required=True, help='of the study: its records, runs and plots')
    add('--tune', nargs='+', action='append', metavar=('FLAG', 'LOW HIGH [log] [int] | A,B,C'), default=[],
        help='a flag without dashes, and its range or its choices; repeatable')
    add('--n_trials', type=command_line.POSITIVE_INT, default=50, help='settings to try, failed ones included')
    add('--sampler', choices=['tpe', 'gp', 'random', 'grid'], default='tpe', help='what proposes the settings')
    add('--grid_points', metavar='N', type=command_line.number(int, 2), default=5,
        help='of --sampler grid: values of each range of numbers')
    add('--pruner', choices=['none', 'median', 'hyperband'], default='none',
        help='what stops hopeless trials, by the validation scores so far')
    add('--storage', metavar='URL',
        help='database of the study, as postgresql://HOST/NAME; by default an SQLite file in its folder')
    add('--study_name', help='in the database; by default the name of the folder')
    add('--reproductions', metavar='N', type=command_line.COUNT, default=0,
        help='at the end, train the best setting with N new seeds on all folds')
    add('--keep_checkpoints', action='store_true', help='of all trials; by default only those of the best one are kept')
    add('--workers', type=command_line.POSITIVE_INT, metavar='N', help='that many runs at once, on the CPU')
    add('--gpus', metavar='0,1', help='runs on these GPUs')
    add('--per_gpu', type=command_line.POSITIVE_INT, metavar='N', default=1, help='that many runs at once on each GPU')
    return parser


class TrialFailed(Exception):
    """A setting that does not train; the reason is in the study."""


class Superfluous(Exception):
    """A trial more than asked for: another worker began the last one at the same time."""


@dataclass
class Search:
    """
    opt:     what build() declares.
    main:    main.py's flags, as they hold for all trials.
    tuned:   {flag: Optuna's distribution}.
    slots:   what is appended to the arguments of the runs that may run at once.
    """
    opt: argparse.Namespace
    main: argparse.Namespace
    tuned: dict
    slots: list

    @property
    def folder(self):
        return Path(self.opt.study_path)

    @property
    def name(self):
        return self.opt.study_name or self.folder.resolve().name

    @property
    def folds(self):
        return range(self.main.n_training_folds or self.main.n_folds)

    @property
    def metric(self):
        return self.main.storage_metrics[0]

    @property
    def settings(self):
        """The flags of base.yaml: all but those that the trials, the folds and the machine set."""
        return {name: value for name, value in parameters.settings_of(self.main).items()
                if name not in OWN | run_folder.MACHINE | self.tuned.keys()}

    def commands(self, params, group, folder, seed=None):
        """The arguments of main.py for each fold, with the tuned flags `params`."""
        machine = {name: value for name, value in vars(self.main).items()
                   if name in run_folder.MACHINE and value != parameters.build().get_default(name)}
        return [['--config', str(self.folder / 'base.yaml'), *command_line.tokens(params), f'--fold={fold}',
                 *([] if seed is None else [f'--seed={seed}']), *command_line.tokens(machine),
                 f'--save_path={folder}', f'--group={group}_fold{fold}'] for fold in self.folds]

    @contextlib.contextmanager
    def lock(self):
        """Held by one process at a time, on one machine."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f'--study_path {self.folder}: no folder can be made there ({error.strerror})') from None
        with open(self.folder / '.lock', 'w') as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def read(arguments):
    """The command line -> Search, checked as far as it goes without the study. Raises UserError."""
    parser = build()
    opt, others = parser.parse_known_args(arguments)
    given = parameters.build().parse_args(others)
    for mode in parameters.MODES:
        if mode != 'config' and getattr(given, mode):
            raise UserError(f'--{mode} goes with main.py, not with a search')
    for name in sorted(OWN | {'save_path'}):
        if getattr(given, name) != parameters.build().get_default(name):
            raise UserError(f'--{name}: a search sets it itself; its runs are below --study_path')
    main = parameters.parse(others, DEFAULTS)
    if main.wandb_key:
        os.environ['WANDB_API_KEY'] = main.wandb_key              # of the runs; never written into a command
    if main.split_scheme not in datasets.splits.FOLDED:
        raise UserError(f'--split_scheme {main.split_scheme} has no folds; a search needs one of '
                        f'{", ".join(datasets.splits.FOLDED)}')
    if main.splits_to_eval != ['val']:
        raise UserError(f'--splits_to_eval {" ".join(main.splits_to_eval)}: a search looks at validation classes only; '
                        'Evaluate_Ensemble.py judges its best runs on the test classes')
    if not opt.tune:
        raise UserError('give at least one --tune FLAG LOW HIGH')
    tuned = {}
    for words in opt.tune:
        flag, distribution = read_tuned(words)
        if flag in tuned:
            raise UserError(f'--tune {flag}: given twice')
        tuned[flag] = distribution
    search = Search(opt, main, tuned, Launch_Runs.slots_of(opt))
    for ends in zip(*(ends_of(distribution) for distribution in tuned.values()), strict=True):
        parameters.parse([*others, *command_line.tokens(dict(zip(tuned, ends, strict=True)))], DEFAULTS)
    table = choose(datasets.DATASETS, main.dataset, '--dataset').load(main)
    for fold in search.folds:
        datasets.splits.split(argparse.Namespace(**vars(main) | {'fold': fold}), table)
    return search


def read_tuned(words):
    """The words after --tune -> (flag, Optuna's distribution). Raises UserError."""
    parser, (flag, *rest) = parameters.build(), words
    where = f'--tune {" ".join(words)}'
    flags = {name: action for action in parser._actions for name in (action.dest,)}
    if flag not in flags:
        raise UserError(f'--tune {flag}: unknown flag{nearest(flag, flags)}')
    if flag in NOT_TUNABLE or flag not in [*command_line.of_groups(parser, *TUNABLE), 'augmentation']:
        raise UserError(f'--tune {flag}: not a flag to tune; choose one of the network, the training, the batches, the '
                        'miner or the loss')
    if len(rest) == 1:
        choices = rest[0].split(',')
        if len(set(choices)) < 2:
            raise UserError(f'{where}: expected two choices or more, as --tune {flag} A,B')
        for choice in choices:
            accepted(parser, flag, choice, where)
        return flag, CategoricalDistribution(choices)
    scale = rest[2:]
    if len(rest) < 2 or set(scale) - {'log', 'int'} or len(set(scale)) < len(scale):
        raise UserError(f'{where}: expected --tune {flag} LOW HIGH [log] [int], or --tune {flag} A,B,C; negative '
                        'numbers as -0.1, without an exponent, and not first in a list')
    kind = int if 'int' in scale else float
    try:
        low, high = map(kind, rest[:2])
    except ValueError:
        raise UserError(f'{where}: expected two {"whole " if kind is int else ""}numbers, not {rest[0]} and '
                        f'{rest[1]}') from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f'{where}: LOW must be less than HIGH')
    if 'log' in scale and low <= 0:
        raise UserError(f'{where}: a log range must begin above 0')
    if kind is float and getattr(flags[flag].type, '__name__', '') == 'INT':
        raise UserError(f'{where}: --{flag} takes whole numbers; write --tune {flag} {rest[0]} {rest[1]} int')
    for end in (low, high):
        accepted(parser, flag, end, where)
    make = IntDistribution if kind is int else FloatDistribution
    return flag, make(low, high, log='log' in scale)


def accepted(parser, flag, value, where):
    """Raises UserError where main.py would refuse the value of the flag."""
    try:
        parser.parse_args(command_line.tokens({flag: value}))
    except UserError as error:
        raise UserError(f'{where}: {error}') from None


def ends_of(distribution):
    """Two values between which the others are."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0], distribution.choices[-1]
    return distribution.low, distribution.high


def grid(tuned, n_points):
    """All combinations: every choice, up to n_points values of each range."""
    axes = {}
    for flag, of in tuned.items():
        if isinstance(of, CategoricalDistribution):
            axes[flag] = of.choices
            continue
        values = np.geomspace(of.low, of.high, n_points) if of.log else np.linspace(of.low, of.high, n_points)
        whole = isinstance(of, IntDistribution)
        axes[flag] = list(dict.fromkeys(int(round(value)) if whole else min(max(float(value), of.low), of.high)
                                        for value in values))
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


class Seeded(optuna.samplers.BaseSampler):
    """A sampler whose draws for a trial are a function of the seed, the trial's number and the trials before it."""

    def __init__(self, make, seed):
        self.make, self.seed, self.sampler = make, seed, make(seed)

    def before_trial(self, study, trial):
        self.sampler = self.make(derive(self.seed, trial.number) % 2 ** 32)
        self.sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study, trial):
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study, trial, search_space):
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(self, study, trial, name, distribution):
        return self.sampler.sample_independent(study, trial, name, distribution)

    def after_trial(self, study, trial, state, values):
        self.sampler.after_trial(study, trial, state, values)


def sampler_of(search):
    """--sampler. Of tpe and gp, the first quarter of the trials, at most 10, is drawn at random."""
    n_random = min(10, max(2, search.opt.n_trials // 4))
    make = {'tpe': lambda seed: optuna.samplers.TPESampler(n_startup_trials=n_random, seed=seed, constant_liar=True),
            'gp': lambda seed: optuna.samplers.GPSampler(n_startup_trials=n_random, seed=seed),
            'random': lambda seed: optuna.samplers.RandomSampler(seed=seed)}
    return Seeded(make.get(search.opt.sampler, make['random']), search.main.seed)


def pruner_of(search):
    """--pruner. A trial's steps are the epochs of its folds, one fold after the other."""
    n_steps = len(search.folds) * (search.main.n_epochs + 1)
    return {'none': optuna.pruners.NopPruner(),
            'median': optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
            'hyperband': optuna.pruners.HyperbandPruner(min_resource=2, max_resource=n_steps)}[search.opt.pruner]


def open_study(search):
    """The study, made or found. Raises UserError where it cannot be had, or was begun with other flags."""
    url = search.opt.storage or f'sqlite:///{search.folder / "study.sqlite"}'
    described = {'tune': {flag: json.loads(distribution_to_json(of)) for flag, of in search.tuned.items()},
                 'flags': json.loads(json.dumps(search.settings))}
    with search.lock():
        study = optuna.create_study(
            storage=storage_of(url), study_name=search.name, direction='maximize', load_if_exists=True,
            sampler=sampler_of(search), pruner=pruner_of(search))
        study.set_metric_names([search.metric])
        require_same(search, study.user_attrs, described)
        for name, value in described.items():
            study.set_user_attr(name, value)
        if search.opt.sampler == 'grid':
            points = grid(search.tuned, search.opt.grid_points)
            for point in points:
                study.enqueue_trial(point, skip_if_exists=True)
            search.opt.n_trials = min(search.opt.n_trials, sum(counted(t) or under_way(t) for t in study.trials))
        run_folder.write_yaml(search.folder / 'base.yaml', search.settings)
    return study


def storage_of(url, attempts=5):
    """Optuna's storage at the URL of a database. Raises UserError, without the URL's password."""
    import sqlalchemy
    try:
        shown = sqlalchemy.make_url(url).render_as_string(hide_password=True)
        sqlite = url.startswith('sqlite')
        return optuna.storages.RDBStorage(
            url, engine_kwargs={'connect_args': {'timeout': 100}} if sqlite else {'pool_pre_ping': True},
            heartbeat_interval=HEARTBEAT, grace_period=GRACE, heartbeat_stale_trial_callback=requeue)
    except sqlalchemy.exc.ArgumentError:
        raise UserError('--storage: not the URL of a database, as postgresql://USER@HOST/NAME') from None
    except ImportError:
        raise UserError(f'--storage {shown}: the driver of this database is not installed; for PostgreSQL: pip install '
                        "'psycopg[binary]'") from None
    except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError) as error:
        if attempts:                       # another worker is making the tables at this moment
            time.sleep(2)
            return storage_of(url, attempts - 1)
        raise UserError(f'--storage {shown}: {str(error.orig).strip().splitlines()[-1]}') from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = str(getattr(error, 'orig', None) or error).strip().splitlines()[-1]
        raise UserError(f'--storage {shown}: {reason}') from None


def require_same(search, stored, described):
    """Raises UserError where the study that is there has other ranges or flags."""
    where = f'--study_path {search.folder}: its study was begun with'
    for flag in dict.fromkeys([*stored.get('tune', {}), *(described['tune'] if 'tune' in stored else {})]):
        old, new = (shown(content['tune'].get(flag)) for content in (stored, described))
        if old != new:
            raise UserError(f'{where} --tune {flag} {old}, not {new}; give the same range, or another --study_path')
    for flag, value in stored.get('flags', {}).items():
        now = described['flags'].get(flag)
        if value != now:
            raise UserError(f'{where} --{flag} {value}, not {now}; give the same flags, or another --study_path')


def shown(distribution):
    """A stored distribution as it is written after --tune."""
    if distribution is None:
        return 'nothing'
    of = optuna.distributions.json_to_distribution(json.dumps(distribution))
    if isinstance(of, CategoricalDistribution):
        return ','.join(of.choices)
    return ' '.join([str(of.low), str(of.high), *['log'][:of.log], *['int'][:isinstance(of, IntDistribution)]])


def requeue(study, trial):
    """Lets the trial of a worker that was killed or interrupted be run again; what its runs have done is kept."""
    optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)


def requeue_unbegun(study, trials, since):
    """
    The same for trials whose worker died before they had a heartbeat, which Optuna does not see.

    since: {number: when it was first met}, in seconds; kept by the caller.
    """
    for trial in trials:
        if trial.user_attrs.get('begun') != trial.number and \
                time.monotonic() - since.setdefault(trial.number, time.monotonic()) > GRACE:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            requeue(study, study.trials[trial.number])


def name_of(trial):
    """Of the trial's runs; that of the first try, where it was begun before."""
    first = trial.system_attrs.get('failed_trial')
    return f'trial_{trial.number if first is None else first:04d}'


def counted(trial):
    """Whether it is one of the --n_trials that are over: finished, pruned, or failed for a reason of its own."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or (
        trial.state == TrialState.FAIL and 'reason' in trial.user_attrs)


def under_way(trial):
    return trial.state in (TrialState.RUNNING, TrialState.WAITING)


def suggest(trial, tuned):
    """{flag: value} of the trial."""
    return {flag: trial.suggest_categorical(flag, of.choices) if isinstance(of, CategoricalDistribution)
            else (trial.suggest_int if isinstance(of, IntDistribution) else trial.suggest_float)(
                flag, of.low, of.high, log=of.log) for flag, of in tuned.items()}


def objective(search, study, trial):
    """Trains the folds of a trial; returns the mean of their best validation scores."""
    trial.set_user_attr('begun', trial.number)             # from here on, Optuna sees it die
    frozen = study.trials[trial.number]
    before = [other for other in study.trials[:trial.number] if counted(other) or under_way(other)]
    if len(before) >= search.opt.n_trials:
        raise Superfluous
    params, name = suggest(trial, search.tuned), name_of(frozen)
    commands = search.commands(params, name, search.folder / 'trials')
    write_lines(search.folder / 'trials' / f'{name}.sh', commands)
    try:
        return Folds(search, trial, [Launch_Runs.planned(arguments) for arguments in commands]).run()
    except (TrialFailed, UserError) as error:
        trial.set_user_attr('reason', str(error))
        raise TrialFailed(str(error)) from None


def write_lines(file, commands):
    """A script of runs, for bash or for Launch_Runs.py."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, ''.join(f'{shlex.join(["python", "main.py", *arguments])}\n' for arguments in commands))


class Folds:
    """The runs of one trial, and what their log.csv have said so far."""

    def __init__(self, search, trial, runs):
        self.search, self.trial, self.runs = search, trial, runs
        self.waiting, self.running, self.slots = collections.deque(runs), {}, list(search.slots)
        self.column, self.reported, self.over, self.folders = f'val_{search.metric}', -1, set(), {}

    def run(self):
        """Runs them, resumed where they were; returns the mean of the best scores. Raises TrialFailed, TrialPruned."""
        try:
            while self.waiting or self.running:
                self.start()
                time.sleep(POLL)
                self.collect()
                self.report()
            return self.report()
        finally:
            Launch_Runs.stop(self.running)

    def start(self):
        """As many as there are slots. A run that a process of a killed worker still has is waited for."""
        while self.waiting and self.slots:
            run = self.waiting[0]
            try:
                process = Launch_Runs.start(run, [*self.slots[-1], *self.untrained(run)])
            except Launch_Runs.Busy:
                return
            self.waiting.popleft()
            if process is None:
                self.over.add(run.name)
            else:
                self.running[process] = run, self.slots.pop()

    def untrained(self, run):
        """--untrained with a run of another trial that has evaluated the same untrained network, if there is one."""
        free = {*command_line.of_groups(parameters.build(), *TRAINING)}
        losses = [self.search.main.loss, *getattr(self.search.tuned.get('loss'), 'choices', [])]
        if self.search.tuned.keys() - free or any('hyperbolic' in loss for loss in losses) or run.folder():
            return []                              # other networks, a distance of its own, or begun before
        fold = run.settings['fold']
        for folder in sorted(run.parent.glob(f'trial_*_fold{fold}_s{run.settings["seed"]}')):
            log = folder / 'log.csv'
            if log.exists() and run_records.rows_of(log)[0]['epoch'] == 0:
                return ['--untrained', str(folder)]
        return []

    def collect(self):
        """Looks after the processes that have ended."""
        for process in [process for process in self.running if process.poll() is not None]:
            run, slot = self.running.pop(process)
            self.slots.append(slot)
            if not Launch_Runs.ended(run, process.returncode):
                raise TrialFailed(f'{run.savename}: exit code {process.returncode}: '
                                  + Launch_Runs.last_lines(run, 1).strip())
            self.over.add(run.name)

    def report(self):
        """
        Tells the study the objective as far as it is earned: the sum of the best scores so far over the number of
        folds, one fold after the other, so that equal steps of two trials have seen the same. Returns it.
        """
        earned, n_steps = 0.0, self.search.main.n_epochs + 1
        for place, run in enumerate(self.runs):
            folder = self.folders.get(run.name) or run.folder()
            if folder:
                self.folders[run.name] = folder
            rows = run_records.rows_of(folder / 'log.csv') if folder else []
            best = -math.inf
            for row in rows:
                best = max(best, row.get(self.column, -math.inf))
                self.tell(place * n_steps + row['epoch'] + 1, (earned + best) / len(self.runs))
            if run.name not in self.over:
                return None
            if not math.isfinite(best):
                raise TrialFailed(f'{run.savename}: {self.column} is not a number in any epoch')
            earned += best
            self.tell((place + 1) * n_steps, earned / len(self.runs))
        return earned / len(self.runs)

    def tell(self, step, value):
        if step <= self.reported or not math.isfinite(value):
            return
        self.reported = step
        self.trial.report(value, step)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def optimize(search, study):
    """Runs trials until --n_trials are over, here or in other workers. Raises UserError where none can be run."""
    bar = tqdm(total=search.opt.n_trials, unit='trial', disable=None)
    asked, waiting_since = None, {}
    before = {trial.number for trial in study.trials if counted(trial)}

    def one(trial):
        nonlocal asked
        asked = trial.number
        return objective(search, study, trial)

    try:
        while True:
            trials = study.trials
            over = [trial for trial in trials if counted(trial)]
            bar.n = min(len(over), bar.total)
            bar.refresh()
            if len(over) >= search.opt.n_trials:
                return
            new = [trial for trial in over if trial.number not in before]
            if len(new) >= HOPELESS and all(trial.state == TrialState.FAIL for trial in over):
                raise UserError(f'all of the first {len(over)} trials failed, the last one: '
                                f'{new[-1].user_attrs["reason"]}')
            alive = [trial for trial in trials if under_way(trial)]
            if len(over) + len(alive) >= search.opt.n_trials and all(t.state == TrialState.RUNNING for t in alive):
                if not waiting_since:
                    bar.write(f'waiting for {", ".join(map(name_of, alive))}, which other workers have')
                time.sleep(1)                                      # they may die
                optuna.storages.fail_stale_trials(study)
                requeue_unbegun(study, alive, waiting_since)
                continue
            asked, waiting_since = None, {}
            try:
                study.optimize(one, n_trials=1, catch=(TrialFailed, Superfluous))
            except (optuna.exceptions.UpdateFinishedTrialError, ValueError):
                if asked is None or study.trials[asked].state != TrialState.FAIL:
                    raise
                bar.write(f'{name_of(study.trials[asked])}  another worker has taken it over: this one was silent for '
                          f'more than {GRACE} s')
            say(search, study, asked, bar)
            summarise(search, study)
    except KeyboardInterrupt:
        trial = None if asked is None else study.trials[asked]
        if trial and trial.state == TrialState.FAIL and not counted(trial):
            requeue(study, trial)
        bar.write('Stopped; start the same command again to go on.')
        raise
    finally:
        bar.close()


def say(search, study, number, bar):
    """A line about the trial that has ended."""
    trial = study.trials[number]
    if not counted(trial):
        return
    what = {TrialState.PRUNED: 'pruned', TrialState.FAIL: f'failed: {trial.user_attrs.get("reason")}'}.get(
        trial.state, f'{search.metric} {trial.value:.4f}' if trial.value is not None else '')
    best = best_of(study)
    bar.write(f'{name_of(trial)}  ' + '  '.join(f'{flag} {short(value)}' for flag, value in trial.params.items())
              + f'  {what}' + (f'; best {best.value:.4f}, {name_of(best)}' if best else ''))


def short(value):
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def best_of(study):
    """The finished trial of the highest value, the first of equals; or None."""
    finished = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    return max(finished, key=lambda trial: trial.value, default=None)


def summarise(search, study):
    """trials.csv and best.yaml; the checkpoints of trials that are not the best are removed."""
    import pandas
    with search.lock():
        over, best = [trial for trial in study.trials if counted(trial)], best_of(study)
        rows = [{'trial': name_of(trial), 'state': trial.state.name.lower(), search.metric: trial.value}
                | trial.params | {'seconds': round((trial.datetime_complete - trial.datetime_start).total_seconds(), 1),
                                  'reason': trial.user_attrs.get('reason', '')} for trial in over]
        write_text(search.folder / 'trials.csv', pandas.DataFrame(rows).to_csv(index=False, lineterminator='\n'))
        if best:
            write_text(search.folder / 'best.yaml', f'# {name_of(best)}, the best of {len(over)} of the study '
                       f'{search.name}: {search.metric} {best.value:.4f} on the validation classes of '
                       f'{len(search.folds)} folds. Tuned: {", ".join(search.tuned)}.\n'
                       + yaml.safe_dump(best.params | search.settings, sort_keys=False, allow_unicode=True, width=120))
        if not search.opt.keep_checkpoints:
            for trial in over:
                if trial is not best and name_of(trial) != (best and name_of(best)):
                    for file in (search.folder / 'trials').glob(f'*/{name_of(trial)}_fold*/checkpoint_*.pt'):
                        file.unlink(missing_ok=True)


def plot(search, study):
    """Optimisation history, slices, contours and importances into plots/: PNG, and HTML where Plotly is installed."""
    import importlib.util

    import matplotlib
    matplotlib.use('Agg')
    finished = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    several = [flag for flag in search.tuned if len({trial.params[flag] for trial in finished}) > 1]
    wanted = {'history': ('plot_optimization_history', {})} | (
        {'slice': ('plot_slice', {'params': several})} if several else {}) | (
        {'contour': ('plot_contour', {'params': several}),
         'importances': ('plot_param_importances', {'params': several})} if len(several) > 1 else {})
    prefix = os.path.commonprefix(several).rpartition('_')[0] + '_' if len(several) > 1 else ''
    folder = search.folder / 'plots'
    folder.mkdir(exist_ok=True)
    for name, (function, options) in wanted.items():
        options |= {'target_name': f'validation {search.metric}'}
        axes = np.atleast_1d(getattr(optuna.visualization.matplotlib, function)(study, **options))
        figure, shape = axes.flat[0].figure, axes.shape if axes.ndim > 1 else (1, len(axes))
        figure.set_size_inches(3.6 * max(shape[1], 2), 3.2 * max(shape[0], 1.3))
        for axis in [axis for one in axes.flat for axis in (one.xaxis, one.yaxis)]:
            if axis.get_label_text() in several:                      # names of flags are long and begin alike
                axis.set_label_text(axis.get_label_text().removeprefix(prefix), fontsize='small')
        for axis in [axis for one in axes.flat for axis in (one.xaxis, one.yaxis) if axis.get_scale() == 'log']:
            axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 3), numticks=5))
            axis.set_major_formatter(lambda value, _: f'{value:g}')
            axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        if name == 'history':
            axes[0].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        figure.savefig(folder / f'{name}.png', dpi=150, bbox_inches='tight')
        matplotlib.pyplot.close(figure)
        if importlib.util.find_spec('plotly'):
            getattr(optuna.visualization, function)(study, **options).write_html(folder / f'{name}.html')
    print(f'plots: {folder}' + ('' if len(several) > 1 else ' (contours and importances need two tuned flags)'))


def reproduce(search, study):
    """Trains the best setting with new seeds on all folds. Returns the exit code."""
    best = best_of(study)
    folder = search.folder / 'reproductions' / name_of(best)
    seeds = range(search.main.seed + 1, search.main.seed + 1 + search.opt.reproductions)
    commands = [arguments for seed in seeds for arguments in search.commands(best.params, search.name, folder, seed)]
    write_lines(folder.with_suffix('.sh'), commands)
    print(f'reproductions of {name_of(best)}, seeds {seeds[0]} to {seeds[-1]}: {folder.with_suffix(".sh")}')
    code = Launch_Runs.launch([Launch_Runs.planned(arguments) for arguments in commands], search.slots)
    for older in sorted(set(folder.parent.glob('*/')) - {folder}):
        print(f'{older}: of a setting that was the best before; leave it out of tables')
    print(f'To judge them on the test classes: python Evaluate_Ensemble.py {folder / search.main.dataset}/*_fold*_s*/')
    return code


def run(search):
    """Searches, plots and reproduces; returns the exit code."""
    is_new = not search.folder.exists()
    try:
        study = open_study(search)
    except UserError:
        if is_new:
            shutil.rmtree(search.folder, ignore_errors=True)
        raise
    optimize(search, study)
    summarise(search, study)
    best = best_of(study)
    if best is None:
        raise UserError(f'{search.folder}: no trial has finished; see its trials.csv')
    states = collections.Counter(trial.state.name.lower() for trial in study.trials if counted(trial))
    print(f'{search.name}: ' + ', '.join(f'{n} {state}' for state, n in states.items())
          + f'; best {name_of(best)}, {search.metric} {best.value:.4f} with '
          + ', '.join(f'{flag} {short(value)}' for flag, value in best.params.items())
          + f'\nconfig: {search.folder / "best.yaml"}\ntrials: {search.folder / "trials.csv"}')
    plot(search, study)
    return reproduce(search, study) if search.opt.reproductions else 0


def main(arguments):
    """Returns the exit code: 0, 1 where a reproduction failed, 2 for what the user must change, 130 after Ctrl-C."""
    with contextlib.suppress(ValueError):                            # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return run(read(arguments))
    except UserError as error:
        print(f'Hyperparameter_Search.py: error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
