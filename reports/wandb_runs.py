"""Runs of a project at the server of W&B."""
import contextlib
import json
import math
import re
from pathlib import Path

from tqdm import tqdm

from records import columns
from records.reading import FINISHED, Run, reached
from utilities.errors import UserError
from utilities.files import write_text
from utilities.libraries import reason


def download(project, cache, is_wanted):
    """
    The runs of the project 'ENTITY/PROJECT' at the server, with their full histories.

    is_wanted: function of a run's name and path; runs that are not wanted are not loaded.
    cache:     a folder with a file per run; such a run is not loaded again, unless it has gone on since.

    Raises UserError where the project does not exist or is empty, or the server does not answer.
    """
    try:
        import wandb
    except ImportError:
        raise UserError('--project needs W&B: pip install wandb') from None
    problems = (wandb.errors.Error, OSError, ValueError)     # errors of requests and TimeoutError are OSErrors
    if not re.fullmatch(r'[^/\s]+/[^/\s]+', project):
        raise UserError(f'--project {project}: expected ENTITY/PROJECT, as confusezius/RevisitDML')
    folder = Path(cache) / project
    try:
        found = wandb.Api(timeout=60).runs(project, per_page=100)
        n_runs = len(found)
    except problems as error:
        raise UserError(f'--project {project}: W&B does not give it ({reason(error)})') from None
    if not n_runs:
        raise UserError(f'--project {project}: there are no runs in it')
    folder.mkdir(parents=True, exist_ok=True)
    runs, n_seen = [], 0
    try:
        for run in tqdm(found, total=n_runs, unit='run', desc=project, disable=None):
            where = f'{project}/{run.id}'
            if is_wanted(run.name, where):
                loaded = cached(folder / f'{run.id}.json', run)
                runs.append(build_run(run.name, where, loaded['config'], loaded['rows'], loaded['state'], run.group))
            n_seen += 1
    except problems as error:
        raise UserError(f'--project {project}: W&B stopped answering after {n_seen} of {n_runs} runs '
                        f'({reason(error)}); what was loaded is kept in {folder}: start again') from None
    return runs


def cached(file, run):
    """{'config', 'state', 'rows', 'last_step'} of a run at the server, from the file where that is up to date."""
    version = {'state': run.state, 'last_step': run.lastHistoryStep}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):     # not there, or of another program version
        loaded = json.loads(file.read_text(encoding='utf-8'))
        is_whole = {'config', 'rows'} <= loaded.keys()
        if is_whole and version == {name: loaded[name] for name in version} and run.state != 'running':
            return loaded
    loaded = version | {'config': {name: value for name, value in run.config.items() if not name.startswith('_')},
                        'rows': epoch_rows(run.scan_history(page_size=1000))}
    write_text(file, json.dumps(loaded))
    return loaded


def build_run(name, where, config, rows, state, group):
    """A Run. Raises UserError if its config lacks the data set, the group or the seed, or has another kind of value."""
    flags = {'group': group or None} | config
    hashes = ('test_hash', 'test_images_hash')
    for flag, kind in {'dataset': str, 'group': str, 'seed': int, **dict.fromkeys(hashes, str | None)}.items():
        if not isinstance(flags.get(flag), kind):
            raise UserError(f'{where} ({name}): its config at W&B has no {flag}, or one of another kind, so it cannot '
                            'be grouped; leave it out')
    tests = [flags.pop(name, None) for name in hashes]
    merged = bool(flags.pop('merged', None))
    return Run(name, where, flags, rows, state if state == FINISHED else f'{state}: {reached(flags, rows)}', *tests,
               merged, flags.pop('other_data', ''))


def epoch_rows(history):
    """
    A history, dicts in the order of logging -> rows as in log.csv, only the rows with a metric of a split.

    Several entries of one epoch are merged into one row; of two values for the same column the later one is used.
    """
    rows = {}
    for logged in history:
        values = {columns.from_backend(key): number(value) for key, value in logged.items() if not key.startswith('_')}
        values = {name: value for name, value in values.items() if value is not None}
        epoch = values.pop('epoch', values.pop('epochs', logged.get('_step')))
        if epoch is not None and math.isfinite(epoch):
            rows.setdefault(int(epoch), {}).update(values)
    return [{'epoch': epoch} | rows[epoch] for epoch in sorted(rows) if any(map(is_metric, rows[epoch]))]


def is_metric(name):
    """Whether a column comes from an evaluation; training logs other things on its split, such as train_grad_norm."""
    column = columns.parse(name)
    return column is not None and (column.split != 'train' or '@' in column.metric)


def number(value):
    """A value of a history as a float, or None if it is no number (histograms, pictures, words)."""
    if isinstance(value, str) and value in ('NaN', 'Infinity', '-Infinity'):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
