"""The Runs that the flags of Result_Evaluations.py name, from run folders and from W&B."""
import sys
from pathlib import Path

from records import reading
from records.checkpoint import LAST
from reports import wandb_runs
from utilities.errors import UserError

FILES = {'splits.yaml', 'summary.json', LAST}             # log.csv and config.yaml are written by others as well


def collect(opt):
    """The Runs of --runs or --project that the other flags leave in. Raises UserError where there are none."""
    if bool(opt.runs) == bool(opt.project):
        raise UserError('give --runs FOLDER, or --project ENTITY/PROJECT')
    if opt.project:
        runs = wandb_runs.download(opt.project, opt.cache, lambda name, where: is_chosen(opt, name, where))
    else:
        runs = below(opt.runs, opt.exclude)
    source = opt.project or ' '.join(opt.runs)
    if not runs:
        but_for = ' but those of --exclude' if opt.exclude else ''
        raise UserError(f'{source}: there are no run folders in it{but_for}')
    kept = [run for run in runs if is_wanted(opt, run.dataset, run.name, run.where)]
    if not kept:
        raise UserError(f'{source}: {len(runs)} runs, but none is left by --datasets, --only and --exclude')
    return kept


def planned_by(found, planned, script):
    """The Runs that belong to a script. planned: (data set, group, seed) of its runs. Raises UserError for none."""
    kept = [run for run in found if (run.dataset, run.group, run.seed) in planned]
    if not kept:
        dataset, group, seed = planned[0]
        raise UserError(f'--script {script}: of its {len(planned)} runs, such as {group}_s{seed} on {dataset}, none is '
                        f'among the {len(found)} that were found')
    return kept


def below(folders, exclude):
    """
    The Runs of all run folders below the folders, and of files that --rows wrote. Runs that is_excluded() names are not
    read, so that broken ones can be left out. Prints the folders that are left out since their config.yaml or
    splits.yaml is missing.
    """
    places = {}                                  # keys: resolved paths, so that a run below several folders counts once
    for folder in map(Path, folders):
        if folder.suffix == '.csv' and folder.is_file():
            places[folder.resolve()] = folder
        elif folder.is_dir():
            found = {path.parent for path in folder.rglob('*') if path.name in FILES}
            places |= {place.resolve(): place for place in sorted(found) if not place.name.startswith('.')}
        else:
            raise UserError(f'--runs {folder}: there is no such folder')
    runs = []
    for place in places.values():
        if is_excluded(exclude, place):
            continue
        if place.is_file():
            from reports import final_rows  # imports scipy, which other tables do not need
            runs += final_rows.read(place)
        elif reading.is_run_folder(place):
            runs.append(reading.read(place))
        else:
            missing = [name for name in ('config.yaml', 'splits.yaml') if not (place / name).is_file()]
            print(f'Note: {place}: left out: it has files of a run, but no {" and no ".join(missing)}; copy it again, '
                  'or leave it out with --exclude', file=sys.stderr)
    return runs


def is_wanted(opt, dataset, name, where=''):
    """Whether --datasets, --only and --exclude leave a run in."""
    return (not opt.datasets or dataset in opt.datasets) and is_chosen(opt, name, where)


def is_chosen(opt, name, where=''):
    """Whether --only and --exclude leave a run in."""
    return (not opt.only or any(text in name for text in opt.only)) and not is_excluded(opt.exclude, where, name)


def is_excluded(exclude, where, name=''):
    """Whether a text of --exclude is in a run's name or path. The path of a run folder excludes no A_s0_1 with A_s0."""
    texts = [f'{Path(text)}/' if reading.is_run_folder(Path(text)) else text for text in exclude]
    return any(text in name or text in f'{where}/' for text in texts)
