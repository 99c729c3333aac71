"""Optuna's study of a search: its database, its sampler and its pruner."""
import json
import re

import optuna

import configuration
import parameters
from evaluation import titles
from records import run_folder
from records.columns import Column
from tuning import ranges, trials
from utilities import stopping
from utilities.errors import UserError
from utilities.randomness import derive


class Seeded(optuna.samplers.BaseSampler):
    """
    A sampler whose proposal for a trial is a function of the seed, the trial's number and the trials before it.

    make: function of a seed; returns one of Optuna's samplers.
    """

    def __init__(self, make, seed):
        self.make = make
        self.seed = seed
        self.sampler = make(seed)

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


def build_sampler(search):
    """--sampler. With tpe and gp, the first quarter of the trials, at most 10, is random."""
    n_random = min(10, max(2, search.opt.n_trials // 4))
    make = {'tpe': lambda seed: optuna.samplers.TPESampler(n_startup_trials=n_random, seed=seed, constant_liar=True),
            'gp': lambda seed: optuna.samplers.GPSampler(n_startup_trials=n_random, seed=seed),
            'random': lambda seed: optuna.samplers.RandomSampler(seed=seed)}
    return Seeded(make.get(search.opt.sampler, make['random']), search.main.seed)     # points of a grid are enqueued


def build_pruner(search):
    """--pruner. A trial's steps are the epochs of its folds, one fold after the other."""
    n_steps = len(search.folds) * (search.main.n_epochs + 1)
    return {'none': optuna.pruners.NopPruner(),
            'median': optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
            'hyperband': optuna.pruners.HyperbandPruner(min_resource=2, max_resource=n_steps)}[search.opt.pruner]


def open_study(search):
    """
    Opens the study or makes it, and writes base.yaml. For a grid, the points are enqueued, and n_trials is at most
    their number.

    Raises UserError where the database cannot be used, or the study was begun with other flags.
    """
    url = search.opt.storage or f'sqlite:///{search.folder / "study.sqlite"}'
    described = {'tune': {flag: ranges.stored(distribution) for flag, distribution in search.tuned.items()},
                 'flags': json.loads(json.dumps(search.settings)), 'first_epoch': search.first_epoch,
                 'files': configuration.checksums_of_files(parameters.files_among(search.settings))}
    direction = 'minimize' if titles.sign(Column('val', search.metric).name) < 0 else 'maximize'
    with search.lock():
        study = optuna.create_study(
            storage=open_storage(url), study_name=search.name, direction=direction, load_if_exists=True,
            sampler=build_sampler(search), pruner=build_pruner(search))
        study.set_metric_names([search.metric])
        require_same(search, study.user_attrs, described)
        for name, value in described.items():
            study.set_user_attr(name, value)
        if search.opt.sampler == 'grid':
            for point in ranges.grid(search.tuned, search.opt.grid_points):
                study.enqueue_trial(point, skip_if_exists=True)
            n_points = sum(trials.is_counted(trial) or not trial.state.is_finished() for trial in study.trials)
            search.opt.n_trials = min(search.opt.n_trials, n_points)
        run_folder.write_yaml(search.folder / 'base.yaml', search.settings)
    return study


def without_password(url):
    """The URL of a database as it may be shown: a password with special characters may reach up to the last @."""
    return re.sub(r'(password=)[^&]*', r'\1***', re.sub(r'(//[^:/@]*).*@', r'\1:***@', url))


def open_storage(url, attempts=5):
    """Optuna's storage at the URL of a database. Raises UserError, without the URL's password."""
    import sqlalchemy
    url_shown = without_password(url)
    try:
        if '@' in (sqlalchemy.make_url(url).host or ''):                # the end of a password, which drivers print
            raise ValueError
        is_sqlite = url.startswith('sqlite')
        return optuna.storages.RDBStorage(
            url, engine_kwargs={'connect_args': {'timeout': 100}} if is_sqlite else {'pool_pre_ping': True},
            heartbeat_interval=trials.HEARTBEAT, grace_period=trials.GRACE,
            heartbeat_stale_trial_callback=trials.requeue)
    except (sqlalchemy.exc.ArgumentError, ValueError):              # ValueError: a port that is no number, too
        raise UserError('--storage: not the URL of a database, such as postgresql://USER@HOST:PORT/NAME; in a '
                        'password, write / as %2F and @ as %40') from None
    except ImportError:
        raise UserError(f'--storage {url_shown}: the driver of this database is not installed; for PostgreSQL: pip '
                        "install 'psycopg[binary]'") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        if attempts and isinstance(error, sqlalchemy.exc.IntegrityError | sqlalchemy.exc.ProgrammingError):
            stopping.sleep(2)              # another worker is making the tables at this moment
            return open_storage(url, attempts - 1)
        reason = str(getattr(error, 'orig', None) or error).strip().splitlines()[-1]
        raise UserError(f'--storage {url_shown}: {reason}') from None


def require_same(search, stored, described):
    """
    Raises UserError where the study has other ranges, flags or contents of files, or its folder the trials of another
    study. stored: what it was described with; {} if it is new.
    """
    if not stored:
        if (search.folder / 'base.yaml').exists():
            raise UserError(f'--study_path {search.folder}: its trials are of another study than {search.name}; give '
                            'its --study_name and --storage, or another --study_path')
        return
    where = f'--study_path {search.folder}: its study was begun with'
    for flag in stored['tune'] | described['tune']:
        old, new = (ranges.range_text(content['tune'].get(flag)) for content in (stored, described))
        if old != new:
            raise UserError(f'{where} --tune {flag} {old}, not {new}; give the same range, or another --study_path')
    for flag, value in configuration.without_removed(search.folder, stored.get('flags', {})).items():
        now = described['flags'].get(flag)
        checksum = stored.get('files', {}).get(flag)
        if checksum and checksum != described['files'].get(flag):
            raise UserError(f'{where} another content of --{flag} {value}; give that file, or another --study_path')
        if not checksum and value != now:
            raise UserError(f'{where} --{flag} {value}, not {now}; give the same flags, or another --study_path')
    if stored.get('first_epoch', search.first_epoch) != search.first_epoch:
        raise UserError(f'{where} --count_epoch_0, which the git tag before-0.2 has; give another --study_path')
