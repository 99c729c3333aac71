"""One trial: trains a setting on each fold, and reports its validation scores to the study."""
import math

import optuna
from optuna.trial import TrialState
from tqdm import tqdm

from evaluation import titles
from launching import plan, process, script
from launching.pool import FINISHED, Pool
from records import reading
from records.columns import Column
from tuning import ranges
from tuning.trials import Superfluous, TrialFailed, is_counted, trial_name
from utilities import stopping
from utilities.errors import UserError

POLL = 0.5                                                        # seconds between looks at the runs


def objective(search, study, trial):
    """
    Trains the folds of a trial; returns the mean of their best validation scores, from search.first_epoch on.

    Raises TrialFailed, whose reason the study records, optuna.TrialPruned, and Superfluous.
    """
    trial.set_user_attr('begun', trial.number)             # Optuna notices from here on when the worker dies
    before = [other for other in study.trials[:trial.number] if is_counted(other) or other.state == TrialState.RUNNING]
    if len(before) >= search.opt.n_trials:
        raise Superfluous
    params = ranges.suggest(trial, search.tuned)
    name = trial_name(study.trials[trial.number])
    commands = search.commands(params, name, search.folder / 'trials')
    script.write(search.folder / 'trials' / f'{name}.sh', commands)
    try:
        runs = [plan.planned_run(arguments) for arguments in commands]
        return Folds(search, trial, runs).run()
    except (TrialFailed, UserError) as error:
        trial.set_user_attr('reason', str(error))
        raise TrialFailed(str(error)) from None


class Folds:
    """
    The runs of one trial, one per fold.

    over:     names of the runs that are finished.
    folders:  {name of a run: its run folder}.
    reported: the last step whose value the study knows.
    """

    def __init__(self, search, trial, runs):
        self.search = search
        self.trial = trial
        self.runs = runs
        self.pool = Pool(runs, search.slots)
        self.column = Column('val', search.metric).name
        self.over = set()
        self.folders = {}
        self.reported = -1

    def run(self):
        """Trains or resumes the runs; returns the mean of the best scores. Raises TrialFailed, optuna.TrialPruned."""
        try:
            while self.pool.has_runs():
                for run, state in self.pool.start():
                    if isinstance(state, Exception):
                        raise state
                    if state == FINISHED:
                        self.over.add(run.name)
                stopping.sleep(POLL)
                for run, code in self.pool.collect():
                    if code:
                        raise TrialFailed(f'{run.savename}: exit code {code}: {process.reason(run)}')
                    self.over.add(run.name)
                self.report()
            if self.trial.number == 0:
                self.print_notes()
            return self.report()
        finally:
            self.pool.stop()

    def print_notes(self):
        """Prints the notes of the first run, such as on flags without effect; the other runs have the same."""
        for line in dict.fromkeys(process.printed_lines(self.runs[0])):           # a resumed run prints them again
            if line.startswith('Note: '):
                tqdm.write(f'{self.runs[0].savename}: {line}')

    def folder(self, run):
        """The run folder, once there is one; found once, since it is looked for by its settings."""
        if self.folders.get(run.name) is None:
            self.folders[run.name] = run.folder()
        return self.folders[run.name]

    def report(self):
        """
        Reports the value at each new step: the sum of the folds' best scores so far, divided by the number of folds.
        Steps count the epochs of one fold after the other, so that equal steps of two trials have the same folds and
        epochs behind them.

        Returns the mean of the best scores, or None while a run is not finished. Raises TrialFailed,
        optuna.TrialPruned.
        """
        sum_of_best = 0.0
        best_epochs = []
        n_steps = self.search.main.n_epochs + 1
        sign = titles.sign(self.column)
        for index, run in enumerate(self.runs):
            folder = self.folder(run)
            rows = reading.read_rows(folder / 'log.csv') if folder else []
            best = -sign * math.inf
            best_epoch = None
            for row in rows:
                value = row.get(self.column, math.nan)
                if row['epoch'] >= self.search.first_epoch and sign * value > sign * best:
                    best = value
                    best_epoch = row['epoch']
                self.tell(index * n_steps + row['epoch'] + 1, (sum_of_best + best) / len(self.runs))
            if run.name not in self.over:
                return None
            if not math.isfinite(best):
                raise TrialFailed(f'{run.savename}: {self.column} is not a number in any epoch')
            sum_of_best += best
            best_epochs.append(best_epoch)
            self.tell((index + 1) * n_steps, sum_of_best / len(self.runs))
        self.trial.set_user_attr('best_epochs', best_epochs)
        return sum_of_best / len(self.runs)

    def tell(self, step, value):
        """Reports the value at a step to the study, once. Raises optuna.TrialPruned where the pruner says so."""
        if step <= self.reported or not math.isfinite(value):
            return
        self.reported = step
        self.trial.report(value, step)
        if self.trial.should_prune():
            raise optuna.TrialPruned
