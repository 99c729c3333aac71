"""A run of a script, and its run folder."""
from dataclasses import dataclass, field
from pathlib import Path

from records import reading


@dataclass
class Planned:
    """
    A run that a line of a script describes.

    arguments:   the arguments of main.py, without secrets.
    settings:    the value of every flag, as configuration.recorded_settings gives them.
    parent:      the folder of its run folder.
    savename:    the name of its run folder.
    environment: the secrets, which its process gets in addition to the environment of this one.
    chosen:      the flags that were not given, and whose values the run may adapt to its data.
    machine:     the flags that are no settings, in which a run and its run folder may differ.
    files:       those of them that name files, {flag: path}, whose content must be the same.
    """
    arguments: list
    settings: dict
    parent: Path
    savename: str
    environment: dict = field(default_factory=dict, repr=False)
    chosen: tuple = ()
    machine: set = frozenset()
    files: dict = field(default_factory=dict)

    @property
    def name(self):
        return f'{self.parent.name}/{self.savename}'

    @property
    def log(self):
        """The file of its standard output and errors, beside the run folder; locked while the run's process lives."""
        return self.parent / f'{self.savename}.log'

    def folder(self):
        """The run folder with these settings, the one with the most epochs if there are several; or None."""
        settings = {name: value for name, value in self.settings.items() if name not in self.machine}
        return reading.find(self.parent / self.savename, settings, self.chosen, self.files)
