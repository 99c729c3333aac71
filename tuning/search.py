"""A search: its flags, and its steps from the first trial to the reproductions of the best one."""
import argparse
import collections
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import optuna

import configuration
import datasampler
import datasets
import parameters
from flags import command_line
from flags.namespace import changed
from launching import local, plan, script, slots
from records import lock, run_folder
from tuning import ranges, report, trials
from tuning.optimize import optimize
from tuning.study import open_study
from utilities import stopping
from utilities.errors import UserError, choose

# the defaults of a search, where they differ from main.py's
DEFAULTS = {'split_scheme': 'class_folds', 'splits_to_eval': ['val'], 'storage_metrics': ['map_at_r'],
            'evaluation_metrics': ['map_at_r', 'precision_at_1', 'r_precision'], 'pictures': ['none']}
OWN = {'fold', 'group', 'savename'}                               # flags that the search sets for each run


@dataclass
class Search:
    """
    opt:   the flags of Hyperparameter_Search.py.
    main:  the flags of main.py that all trials share.
    tuned: {flag: Optuna's distribution}.
    slots: as launching.slots.slot_arguments gives them.
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
    def first_epoch(self):
        """The first epoch whose score counts: a pretrained network that training only harms has no score."""
        return 1 if self.main.n_epochs else 0

    @property
    def settings(self):
        """The flags of base.yaml: all settings and files but those that the trials and the folds set."""
        recorded = configuration.recorded_settings(self.main)
        settings = parameters.settings_among(recorded) | parameters.files_among(recorded)
        return {name: value for name, value in settings.items() if name not in OWN | self.tuned.keys()}

    def commands(self, params, group, folder):
        """
        The arguments of main.py for each fold.

        params: {flag: value} of the tuned flags. group: --group without _fold<k>. folder: --save_path.
        """
        machine = {name: value for name, value in configuration.recorded_settings(self.main).items()
                   if name in parameters.beside_settings() and value != parameters.defaults()[name]}
        return [['--config', str(self.folder / 'base.yaml'), *command_line.tokens(ranges.tuned_settings(params)),
                 f'--fold={fold}', *command_line.tokens(machine), f'--save_path={folder}',
                 f'--group={group}_fold{fold}'] for fold in self.folds]

    def lock(self):
        """A block that only one process on this machine executes at a time."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f'--study_path {self.folder}: no folder can be made there ({error.strerror})') from None
        return lock.held(self.folder, '')


def parse(opt, others):
    """
    opt: the flags of Hyperparameter_Search.py; others: the remaining arguments, for main.py -> Search. A default batch
    that is too large for a fold becomes smaller for all folds.

    Raises UserError for flags that can be refused before the study is opened.
    """
    main = parse_main(others)
    tuned = ranges.parse_all(opt.tune)
    given = command_line.given(parameters.build(), others)
    for name in tuned:
        flag, _, argument = name.partition('.')
        is_argument_given = argument and any(argument in mapping for mapping in getattr(main, flag))
        if name in given or is_argument_given:
            raise UserError(f'--tune {name} and --{name}: the flag is tuned, or has the given value; leave one out')
    search = Search(opt, main, tuned, slots.slot_arguments(opt))
    if opt.reproductions:
        try:
            run_folder.check_names(changed(main, group=f'{search.name}_fold{search.folds[-1]}'))
        except UserError as error:
            raise UserError(f'--study_name {search.name}: not a name for its --reproductions: {error}') from None
    # main.py must accept all lowest values together, and all highest
    for ends in zip(*(ranges.lowest_and_highest(distribution) for distribution in tuned.values()), strict=True):
        settings = ranges.tuned_settings(dict(zip(tuned, ends, strict=True)))
        configuration.parse([*others, *command_line.tokens(settings)], DEFAULTS)
    table = choose(datasets.DATASETS, main.dataset, '--dataset').load(main)
    for fold in search.folds:
        train = datasets.splits.split(changed(main, fold=fold), table)['train']
        if not tuned.keys() & set(datasampler.BATCH):
            datasampler.choose_batch(main, datasets.ImageSet(table, train, transform=None))
    return search


def parse_main(arguments):
    """The flags of main.py that all trials share. Raises UserError for flags that do not go with a search."""
    parser = parameters.build()
    given = parser.parse_args(arguments)
    for mode in sorted(parameters.modes()):
        if mode != 'config' and getattr(given, mode):
            raise UserError(f'--{mode} goes with main.py, not with a search')
    for name in sorted(OWN | {'save_path'}):
        if getattr(given, name) != parser.get_default(name):
            raise UserError(f'--{name}: a search sets it itself; its runs are below --study_path')
    main = configuration.parse(arguments, DEFAULTS)
    os.environ.update(configuration.secret_variables(main))       # secrets of the runs; never written into a command
    if main.split_scheme not in datasets.splits.FOLDED:
        given = f'--splits {main.splits}' if main.splits else f'--split_scheme {main.split_scheme}'
        raise UserError(f'{given} has no folds; a search needs --split_scheme {" or ".join(datasets.splits.FOLDED)}')
    if main.splits_to_eval != ['val']:
        raise UserError(f'--splits_to_eval {" ".join(main.splits_to_eval)}: a search uses validation classes only; '
                        'Evaluate_Ensemble.py evaluates its best runs on the test classes')
    return main


def run(opt, others):
    """Searches, writes the results and reproduces the best setting. Arguments as for parse(). Returns the exit code."""
    warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = parse(opt, others)
    is_new = not search.folder.exists()
    try:
        study = open_study(search)
    except UserError:
        if is_new and not (search.folder / 'base.yaml').exists():         # or another machine has made it meanwhile
            shutil.rmtree(search.folder, ignore_errors=True)
        raise
    optimize(search, study)
    report.summarise(search, study)
    best = trials.best_trial(study)
    over = [trial for trial in study.trials if trials.is_counted(trial)]
    if best is None:
        reasons = [trial.user_attrs['reason'] for trial in over if 'reason' in trial.user_attrs]
        last = f', the last one that failed: {reasons[-1]}' if reasons else ''
        raise UserError(f'{search.folder}: none of the {len(over)} trials has succeeded{last}; trials.csv has all '
                        'reasons')
    states = collections.Counter(trial.state.name.lower() for trial in over)
    print(f'{search.name}: {", ".join(f"{n} {state}" for state, n in states.items())}; best {trials.trial_name(best)}, '
          f'{search.metric} {best.value:.4f} with {", ".join(report.trial_settings(best))}\n'
          f'config: {search.folder / "best.yaml"}\ntrials: {search.folder / "trials.csv"}')
    stopping.check()
    report.plot(search, study)
    return reproduce(search, best) if search.opt.reproductions else 0


def reproduce(search, best):
    """Trains the setting of the best trial with new seeds on all folds. Returns the exit code."""
    name = trials.trial_name(best)
    folder = search.folder / 'reproductions' / name
    file = folder.with_suffix('.sh')
    seeds = range(search.main.seed + 1, search.main.seed + 1 + search.opt.reproductions)
    commands = [arguments for seed in seeds
                for arguments in search.commands(best.params | {'seed': seed}, search.name, folder)]
    script.write(file, commands)
    print(f'reproductions of {name}, seeds {", ".join(map(str, seeds))}: {file}')
    code = local.launch([plan.planned_run(arguments) for arguments in commands], search.slots)
    for older in sorted(set(folder.parent.glob('*/')) - {folder}):
        print(f'{older}: reproductions of the former best setting; leave them out of tables')
    print(f'To evaluate on the test classes: python Evaluate_Ensemble.py {folder / search.main.dataset}/*_fold*_s*/')
    return code
