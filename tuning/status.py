"""The progress of a search, read from its study and the records of its runs."""
import collections
from pathlib import Path

import optuna

from launching import plan, status
from tuning import report, trials
from tuning.study import open_storage
from utilities.errors import UserError


def show(opt):
    """
    Prints the progress of the study of --study_path; on a terminal, again every two seconds while a trial is under way.
    Nothing is written. opt: the flags of Hyperparameter_Search.py. Raises UserError where there is no study.
    """
    study = stored(opt)
    status.show(lambda: table(study, Path(opt.study_path)))


def stored(opt):
    """The Optuna study of these flags, which must exist. Raises UserError."""
    file = Path(opt.study_path) / 'study.sqlite'
    if not opt.storage and not file.is_file():
        raise UserError(f'--status: there is no study in {opt.study_path}')
    name = opt.study_name or Path(opt.study_path).resolve().name
    try:
        return optuna.load_study(study_name=name, storage=open_storage(opt.storage or f'sqlite:///{file}'))
    except KeyError:
        raise UserError(f'--status: the database has no study {name}; --study_name gives another name') from None


def table(study, folder):
    """(the text, whether no trial is under way): the trials by state, the best, and the runs of trials under way."""
    names = {trial.number: trials.trial_name(trial) for trial in study.trials}
    states = collections.Counter('failed' if trial.state.name == 'FAIL' else trial.state.name.lower()
                                 for trial in study.trials if trials.is_counted(trial))
    lines = [f'{study.study_name}: {sum(states.values())} trials over'
             + ''.join(f', {number} {state}' for state, number in sorted(states.items()))]
    best = trials.best_trial(study)
    if best:
        metric = (study.metric_names or ['score'])[0]
        lines.append(f'best: {trials.trial_name(best)}, {metric} {best.value:.4f} with '
                     + ', '.join(report.trial_settings(best)))
    active = [trial for trial in study.trials if trials.is_running(trial)]
    for trial in active:
        script = folder / 'trials' / f'{names[trial.number]}.sh'
        lines += ['', f'{names[trial.number]}, {trial.state.name.lower()}: ' + ', '.join(report.trial_settings(trial))]
        if script.is_file():
            lines.append(status.table(plan.runs_of_script(script))[0])
    return '\n'.join(lines), not active
