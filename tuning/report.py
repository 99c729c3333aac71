"""The output of a search: a line per trial, trials.csv, best.yaml, and the plots."""
import os

import numpy as np
import optuna
import yaml
from optuna.trial import TrialState

import parameters
from flags import command_line
from tuning import ranges, trials
from utilities import plotting
from utilities.files import write_csv, write_text


def line(search, study, trial):
    """A line about a trial that is over: its setting, its score, and the best trial so far."""
    outcome = {TrialState.PRUNED: 'pruned', TrialState.FAIL: f'failed: {trial.user_attrs.get("reason")}'}.get(
        trial.state, f'{search.metric} {trial.value:.4f}' if trial.value is not None else '')
    best = trials.best_trial(study)
    return (f'{trials.trial_name(trial)}  {"  ".join(trial_settings(trial))}  {outcome}'
            + (f'; best {best.value:.4f}, {trials.trial_name(best)}' if best else ''))


def trial_settings(trial):
    """['<flag> <value>', ...] with numbers of four digits."""
    return [f'{flag} {value:.4g}' if isinstance(value, float) else f'{flag} {value}'
            for flag, value in trial.params.items()]


def summarise(search, study):
    """Writes trials.csv and best.yaml; without --keep_checkpoints, removes all trials' checkpoints but the best's."""
    with search.lock():
        over = [trial for trial in study.trials if trials.is_counted(trial)]
        best = trials.best_trial(study)
        write_csv(search.folder / 'trials.csv', [trial_row(search, trial) for trial in over])
        if best:
            write_text(search.folder / 'best.yaml', f'# {trials.trial_name(best)}, the best of {len(over)} of the '
                       f'study {search.name}: {search.metric} {best.value:.4f} on the validation classes of '
                       f'{len(search.folds)} folds. Tuned: {", ".join(search.tuned)}.\n'
                       '# A fold of it: main.py --config best.yaml --fold 0. A plain run on the test classes: '
                       'main.py --config best.yaml --split_scheme half --splits_to_eval test\n'
                       + yaml.safe_dump(all_settings(search, best), sort_keys=False, allow_unicode=True, width=120))
        if not search.opt.keep_checkpoints:
            name_of_best = best and trials.trial_name(best)
            for name in {trials.trial_name(trial) for trial in over} - {name_of_best}:
                for file in (search.folder / 'trials').glob(f'*/{name}_fold*/checkpoint_*.pt'):
                    file.unlink(missing_ok=True)


def all_settings(search, trial):
    """{flag: value}: the tuned flags of a trial, then the other flags of its runs."""
    tuned = ranges.tuned_settings(trial.params)
    merged = command_line.merged(parameters.build(), search.settings, tuned)
    return {name: merged[name] for name in tuned | search.settings}


def trial_row(search, trial):
    """The row of a trial in trials.csv."""
    seconds = (trial.datetime_complete - trial.datetime_start).total_seconds()
    return {'trial': trials.trial_name(trial), 'state': trial.state.name.lower(), search.metric: trial.value,
            'best_epochs': ' '.join(map(str, trial.user_attrs.get('best_epochs', ()))), **trial.params,
            'seconds': round(seconds, 1), 'reason': trial.user_attrs.get('reason', '')}


def plot(search, study):
    """Optimisation history, slices, contours and importances into plots/."""
    if not plotting.is_possible():
        return
    import matplotlib
    matplotlib.use('Agg')
    several = [flag for flag in search.tuned if len({trial.params[flag] for trial in trials.finished(study)}) > 1]
    prefix = os.path.commonprefix(several).rpartition('_')[0] + '_' if len(several) > 1 else ''
    folder = search.folder / 'plots'
    folder.mkdir(exist_ok=True)
    for name, (function, options) in optuna_plots(several).items():
        draw = getattr(optuna.visualization.matplotlib, function)
        axes = np.atleast_1d(draw(study, **options, target_name=f'validation {search.metric}'))
        n_rows, n_columns = axes.shape if axes.ndim > 1 else (1, len(axes))
        figure = axes.flat[0].figure
        figure.set_size_inches(3.6 * max(n_columns, 2), 3.2 * max(n_rows, 1.3))
        for axis in [axis for panel in axes.flat for axis in (panel.xaxis, panel.yaxis)]:
            if axis.get_label_text() in several:                          # long names would overlap
                axis.set_label_text(axis.get_label_text().removeprefix(prefix), fontsize='small')
        figure.savefig(folder / f'{name}.png', dpi=150, bbox_inches='tight')
        matplotlib.pyplot.close(figure)
    print(f'plots: {folder}')


def optuna_plots(flags):
    """{name: (function of Optuna, its options)} of the plots for these flags with several values."""
    found = {'history': ('plot_optimization_history', {})}
    if flags:
        found['slice'] = 'plot_slice', {'params': flags}
    if len(flags) > 1:
        found['contour'] = 'plot_contour', {'params': flags}
        found['importances'] = 'plot_param_importances', {'params': flags}
    return found
