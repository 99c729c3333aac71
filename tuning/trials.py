"""The states of a study's trials, and what happens to a trial whose worker has died."""
import time

import optuna
from optuna.trial import TrialState

HEARTBEAT = 10                                                    # seconds between two heartbeats of a worker
GRACE = 40                                                        # seconds after which a silent worker is dead


class TrialFailed(Exception):
    """A setting that cannot be trained; the study records the reason."""


class Superfluous(Exception):
    """A trial beyond --n_trials: another worker began the last one at the same time."""


def trial_name(trial):
    """The name in the trial's runs; a trial that is run again keeps the name of its first attempt."""
    first = trial.system_attrs.get('failed_trial')
    return f'trial_{trial.number if first is None else first:04d}'


def is_counted(trial):
    """Whether the trial is one of --n_trials: finished, pruned, or failed for a reason of its own."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or (
        trial.state == TrialState.FAIL and 'reason' in trial.user_attrs)


def finished(study):
    return [trial for trial in study.trials if trial.state == TrialState.COMPLETE]


def best_trial(study):
    """The finished trial with the best score, the first of equals; or None."""
    sign = -1 if study.direction == optuna.study.StudyDirection.MINIMIZE else 1
    return max(finished(study), key=lambda trial: sign * trial.value, default=None)


def requeue(study, trial):
    """Lets the trial of a worker that was killed or interrupted be run again; its runs will be resumed."""
    optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)


def requeue_unbegun(study, running, since):
    """
    Requeues running trials whose worker died before its first heartbeat, which Optuna does not notice.

    since: {number: when the trial was first seen here}, in seconds; filled by this function, kept by the caller.
    """
    for trial in running:
        if trial.user_attrs.get('begun') != trial.number and \
                time.monotonic() - since.setdefault(trial.number, time.monotonic()) > GRACE:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            requeue(study, study.trials[trial.number])
