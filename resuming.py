"""What --resume allows, by groups of flags: never, merge or free; and the run that --auto_resume continues."""
from pathlib import Path

import datasampler
import parameters
from records import reading, run_folder
from utilities import processes
from utilities.command_line import as_list, shown
from utilities.errors import UserError


def check(opt, before, now):
    """Raises UserError for flags that cannot change within a run. before, now: its settings, and those of --resume."""
    merging = opt.merge_argparse_when_resuming
    never = changes(before, now, 'never')
    merge = [] if merging or never else changes(before, now, 'merge')
    if never or merge:
        instead = '' if never else 'add --merge_argparse_when_resuming, '
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(never or merge)}; give it the '
                        f'flags it was started with, {instead}or start a new run by --reproduce {opt.resume}')


def changes(before, now, *kinds):
    """The flags of these kinds, 'never' or 'merge', that differ between two settings, as texts with both values."""
    kind, before = parameters.flags_with('resume'), parameters.defaults() | before
    return [f'--{name} {shown(value)} (was {shown(before[name])})' for name, value in now.items()
            if kind.get(name) in kinds and as_list(value) != as_list(before[name])]


def find_run(opt, recorded):
    """
    --auto_resume: the run with the `recorded` settings as (its folder, whether it is finished); None if there is none.
    --n_epochs and flags that are no settings may differ; with another --n_epochs, it does not count as finished.
    Process 0 looks for it, and all processes know what it has found.
    """
    return processes.run_on_rank_zero(look_for_run, opt, recorded)


def look_for_run(opt, recorded):
    """The work of find_run()."""
    chosen = datasampler.chosen_later(opt)
    settings = {name: value for name, value in parameters.settings_among(recorded).items()
                if name not in {'n_epochs', *chosen}}
    folder = reading.find(Path(opt.save_path) / opt.dataset / run_folder.savename(opt), settings, chosen,
                          parameters.files_among(recorded))
    if folder is None:
        return None
    return folder, reading.is_finished(folder) and run_folder.read(folder)['flags']['n_epochs'] == opt.n_epochs
