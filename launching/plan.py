"""The runs of a script: checked before anything starts, and matched with their run folders."""
import sys
from dataclasses import dataclass, field
from pathlib import Path

import configuration
import datasampler
import parameters
import parts
from launching import script
from records import reading, run_folder
from utilities import stopping
from utilities.errors import UserError

NOT_FROM_THE_START = sorted(parameters.modes() - {'config', 'auto_resume'})


@dataclass
class Planned:
    """
    A run that a line of a script describes.

    arguments:   the arguments of main.py, without secrets.
    settings:    the value of every flag but the chosen ones, as configuration.recorded_settings gives them.
    parent:      the folder of its run folder.
    savename:    the name of its run folder.
    environment: the secrets, which its process gets in addition to the environment of this one.
    chosen:      the flags that were not given, and whose values the run may adapt to its data.
    """
    arguments: list
    settings: dict
    parent: Path
    savename: str
    environment: dict = field(default_factory=dict, repr=False)
    chosen: tuple = ()

    @property
    def name(self):
        return f'{self.parent.name}/{self.savename}'

    @property
    def log(self):
        """The file of its standard output and errors, beside the run folder; locked while the run's process lives."""
        return self.parent / f'{self.savename}.log'

    def folder(self):
        """The run folder with these settings, the one with the most epochs if there are several; or None."""
        return reading.find(self.parent / self.savename, parameters.settings_among(self.settings), self.chosen,
                            parameters.files_among(self.settings))

    def is_finished(self):
        folder = self.folder()
        return folder is not None and reading.is_finished(folder)


def runs_of_script(file, only=(), skip_refused=False, more=()):
    """
    The Planned runs of a script, in its order.

    only: pieces of text; if there are any, only runs with one of them in their name are returned.
    more: arguments of main.py that follow those of each line.

    Raises a UserError that lists every line which main.py would refuse; with skip_refused, prints the list and leaves
    these lines out.
    """
    runs = []
    problems = []
    taken = {}
    for number, arguments in enumerate(stopping.checked(script.commands(file)), start=1):
        try:
            run = planned_run([*arguments, *more])
        except UserError as error:
            problems.append(f'{file}, run {number}: {error}')
            continue
        if run.log in taken:
            problems.append(f'{file}, runs {taken[run.log]} and {number}: both would be {run.name}; give them '
                            'different --group, --seed or --savename')
            continue
        taken[run.log] = number
        runs.append(run)
    if problems and not (skip_refused and runs):
        if runs:
            problems.append(f'--skip_refused leaves out {len(problems)} of {number} lines')
        raise UserError('\n'.join(problems))
    if problems:
        print('\n'.join(['Left out:', *problems]), file=sys.stderr, flush=True)
    chosen = [run for run in runs if not only or any(text in run.name for text in only)]
    if not chosen:
        raise UserError(f'--only {" ".join(only)}: none of the {len(runs)} runs of {file}, such as {runs[0].name}')
    return chosen


def planned_run(arguments):
    """The Planned run with these arguments of main.py. Raises UserError where no data are needed to refuse them."""
    opt = configuration.parse(arguments)
    for mode in NOT_FROM_THE_START:
        if getattr(opt, mode):
            raise UserError(f'--{mode}: a line to launch must train from the start')
    chosen = datasampler.chosen_later(opt)
    settings = {name: value for name, value in configuration.recorded_settings(opt).items() if name not in chosen}
    parts.check_names(opt)
    shown = run_folder.without_secrets(arguments, parameters.flags_with('secret'))
    return Planned(shown, settings, Path(opt.save_path) / opt.dataset, run_folder.savename(opt),
                   configuration.secret_variables(opt), chosen)
