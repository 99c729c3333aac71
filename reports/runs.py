"""The Runs that the flags of Result_Evaluations.py name, from run folders and from W&B."""
from pathlib import Path

from records import reading, wandb_files
from reports import wandb_runs
from utilities.errors import UserError


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
        raise UserError(f'{source}: there are no run folders in it, and no offline runs of W&B')
    kept = [run for run in runs if is_wanted(opt, run.dataset, run.name, run.where)]
    if not kept:
        raise UserError(f'{source}: {len(runs)} runs, but none is left by --datasets, --only and --exclude')
    return kept


def below(folders, exclude):
    """
    The Runs of all run folders below the folders, of W&B's offline runs outside these run folders, and of files that
    --rows wrote. Those whose path contains a text of `exclude` are not read, so that broken ones can be left out.
    """
    def read_too(path):
        return not any(text in str(path) for text in exclude)

    runs = []
    for folder in map(Path, folders):
        if folder.suffix == '.csv' and folder.is_file():
            from reports import final_rows  # imports scipy, which other tables do not need
            runs += final_rows.read(folder)
            continue
        if not folder.is_dir():
            raise UserError(f'--runs {folder}: there is no such folder')
        found = [path.parent for path in sorted(folder.rglob('config.yaml'))
                 if reading.is_run_folder(path.parent) and not path.parent.name.startswith('.')]
        runs += [reading.read(path) for path in found if read_too(path)]
        offline = [file for file in wandb_files.offline_files(folder)
                   if not set(file.parents) & set(found) and read_too(file)]
        runs += wandb_runs.read_offline(offline) if offline else []
    return runs


def is_wanted(opt, dataset, name, where=''):
    """Whether --datasets, --only and --exclude leave a run in."""
    return (not opt.datasets or dataset in opt.datasets) and is_chosen(opt, name, where)


def is_chosen(opt, name, where=''):
    """Whether --only and --exclude leave a run in."""
    return ((not opt.only or any(text in name for text in opt.only))
            and not any(text in name or text in where for text in opt.exclude))
