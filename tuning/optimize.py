"""Runs trials until a study has enough of them."""
import optuna
from optuna.trial import TrialState
from tqdm import tqdm

from tuning import report, trials
from tuning.folds import objective
from utilities import stopping
from utilities.errors import UserError

MOST_FAILURES = 3                                # number of failed trials that ends a search without a finished one


def optimize(search, study):
    """
    Runs trials until --n_trials of them are finished, pruned or failed, here or in other workers.

    Raises UserError where the first trials all fail. After Ctrl-C, the trial that was interrupted is requeued before
    KeyboardInterrupt is raised.
    """
    bar = tqdm(total=search.opt.n_trials, unit='trial', disable=None)
    worker = Worker(search, study, bar)
    try:
        worker.run()
    except KeyboardInterrupt:
        worker.requeue_interrupted()
        bar.write('Stopped; start the same command again to go on.')
        raise
    finally:
        bar.close()


class Worker:
    """
    Runs trials of a study, one after the other; other workers may run trials of the same study.

    earlier:       numbers of the trials that were over when it started.
    own:           the number of its current or last trial, or None.
    is_taken_over: whether another worker has failed and requeued this trial, since this one was silent.
    waiting_since: {number: when it began to wait for this trial of another worker}, in seconds.
    """

    def __init__(self, search, study, bar):
        self.search = search
        self.study = study
        self.bar = bar
        self.earlier = {trial.number for trial in study.trials if trials.is_counted(trial)}
        self.own = None
        self.waiting_since = {}

    def run(self):
        while True:
            stopping.check()
            known = self.study.trials
            over = [trial for trial in known if trials.is_counted(trial)]
            running = [trial for trial in known if trial.state == TrialState.RUNNING]
            self.bar.n = min(len(over), self.bar.total)
            self.bar.refresh()
            if len(over) >= self.search.opt.n_trials:
                return
            self.stop_if_all_fail(over)
            if len(over) + len(running) >= self.search.opt.n_trials:
                self.wait(running)
            else:
                self.run_trial()

    def stop_if_all_fail(self, over):
        """Raises UserError where all trials have failed, MOST_FAILURES of them since this worker started."""
        new = [trial for trial in over if trial.number not in self.earlier]
        if len(new) >= MOST_FAILURES and all(trial.state == TrialState.FAIL for trial in over):
            raise UserError(f'all of the first {len(over)} trials failed, the last one: '
                            f'{new[-1].user_attrs["reason"]}')

    def wait(self, running):
        """Waits a second for the trials of other workers, and requeues the trials of dead workers."""
        if not self.waiting_since:
            self.bar.write(f'waiting for {", ".join(map(trials.trial_name, running))}, which other workers are running')
        stopping.sleep(1)
        optuna.storages.fail_stale_trials(self.study)
        trials.requeue_unbegun(self.study, running, self.waiting_since)

    def run_trial(self):
        """Runs a new or requeued trial, and writes the results so far."""
        self.own = None
        self.is_taken_over = False
        self.waiting_since = {}
        try:
            self.study.optimize(self.objective, n_trials=1, catch=trials.TrialFailed)
        except trials.Superfluous:
            trials.requeue(self.study, self.own_trial())              # a larger --n_trials may need this setting
            self.own = None
        except (optuna.exceptions.UpdateFinishedTrialError, ValueError):
            if not self.is_taken_over:
                raise
            self.bar.write(f'{trials.trial_name(self.own_trial())}  another worker has taken it over: this one was '
                           f'silent for more than {trials.GRACE} s')
            self.own = None
        else:
            self.bar.write(report.line(self.search, self.study, self.own_trial()))
            report.summarise(self.search, self.study)

    def objective(self, trial):
        self.own = trial.number
        try:
            return objective(self.search, self.study, trial)
        finally:                                                # its own failure is not in the study yet
            self.is_taken_over = self.own_trial().state == TrialState.FAIL

    def own_trial(self):
        return self.study.trials[self.own]

    def requeue_interrupted(self):
        """Requeues this worker's trial, if it has neither finished nor failed for a reason of its own."""
        trial = None if self.own is None else self.own_trial()
        if trial and trial.state == TrialState.FAIL and not trials.is_counted(trial):
            trials.requeue(self.study, trial)
