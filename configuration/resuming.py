"""
Which flags --resume lets change, by their groups (never, merge or free); how a run is continued; and which run
--auto_resume continues.
"""
from pathlib import Path

import datasampler
import parameters
from flags.command_line import as_list, text_of
from records import reading, run_folder
from utilities import processes
from utilities.errors import UserError
from utilities.files import remove_temporary


def check(opt, before, now):
    """Raises UserError for flags that cannot change within a run. before, now: its settings, and those of --resume."""
    merging = opt.merge_argparse_when_resuming
    never = changes(before, now, 'never')
    merge = [] if merging or never else changes(before, now, 'merge')
    if never or merge:
        instead = '' if never else 'add --merge_argparse_when_resuming, '
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(never or merge)}; give the '
                        f'flags that it was started with, {instead}or start a new run by --reproduce {opt.resume}')


def changes(before, now, *kinds):
    """The flags of these kinds, 'never' or 'merge', that differ between two settings, as texts with both values."""
    kind = parameters.flags_with('resume')
    before = parameters.defaults() | before
    return [f'--{name} {text_of(value)} (was {text_of(before[name])})' for name, value in now.items()
            if kind.get(name) in kinds and as_list(value) != as_list(before[name])]


def require_unchanged(folder, description, files):
    """Raises UserError if the data or the files of the run to continue have changed since it began."""
    run_folder.require_same_data(folder, description)
    not_compared = {'csv', 'splits'}                         # their contents are in the description of the data
    if (folder / run_folder.LAST).exists():
        not_compared.add('start_from')                       # no longer read, and that run may have gone on
    run_folder.require_same_files(folder, {name: files[name] for name in files if name not in not_compared})


def continue_run(opt, state, arguments, description):
    """
    Restores the run of --resume, whose Checkpoint is `state`, and records that it goes on.

    description: the description of the data by datasets.select. Raises UserError where there is nothing to continue.
    """
    begins = {entry['at_epoch'] for entry in run_folder.read(state.folder).get('merged', [])}

    def merges(epoch):
        return opt.merge_argparse_when_resuming or epoch in begins

    def differences(before, merging):
        kinds = ['never'] if merging else ['never', 'merge']
        return changes(before, state.settings, *kinds)

    first = state.resume(differences, merges)
    if first == 0:
        last = reading.last_epoch(state.folder)
        if last > 0:
            raise UserError(f'--resume {state.folder}: it has records up to epoch {last}, but no {run_folder.LAST} to '
                            f'continue from; start a new run with its settings by --reproduce {state.folder}')
    if opt.n_epochs < first - 1:
        raise UserError(f'--n_epochs {opt.n_epochs}: {state.folder} has trained {first - 1} epochs already')
    note_resumption(opt, state, arguments, description)


@processes.rank_zero_only
def note_resumption(opt, state, arguments, description):
    """Writes down in config.yaml that the run goes on, and which settings change."""
    remove_temporary(state.folder)
    merged = parameters.flags_with('resume', 'merge') if opt.merge_argparse_when_resuming else ()
    run_folder.note_resumption(state.folder, state.settings, arguments, state.next_epoch, description, merged)


def find_run(opt, recorded):
    """
    --auto_resume: the run with the `recorded` settings as (its folder, whether it is finished); None if there is none.
    --n_epochs and flags that are no settings may differ; with another --n_epochs, it does not count as finished.
    """
    chosen = datasampler.chosen_later(opt)
    settings = {name: value for name, value in parameters.settings_among(recorded).items()
                if name not in {'n_epochs', *chosen}}
    folder = reading.find(Path(opt.save_path) / opt.dataset / run_folder.savename(opt), settings, chosen,
                          parameters.files_among(recorded))
    if folder is None:
        return None
    return folder, reading.is_finished(folder) and run_folder.read(folder)['flags']['n_epochs'] == opt.n_epochs
