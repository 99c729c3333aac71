"""What a run needs to continue exactly, and the best networks on the way. Generators start anew in every epoch."""
import math
from pathlib import Path

import torch

from utilities import columns, run_folder
from utilities.errors import UserError
from utilities.files import atomic, kind_of

LAST = 'checkpoint_last.pt'


class Checkpoint:
    """
    folder:   of the run.
    settings: the flags, kept in every checkpoint so that it can be evaluated on its own.
    metrics:  --storage_metrics: the best network by each, on each split, is kept as checkpoint_<split>_<metric>.pt.
    parts:    {name: part} of what has a state: model, criterion, optimizer, scheduler, and miner, sampler, storage
              where they have one.
    best:     {'<split>_<metric>': the row of log.csv where it was best}.
    """

    def __init__(self, folder, settings, metrics, parts):
        self.folder, self.settings, self.metrics = Path(folder), settings, metrics
        self.parts = parts
        self.best, self.row, self.trained = {}, None, False      # the last row; whether any epoch was trained
        self.last = self.folder / LAST

    def save(self, epoch, row=None):
        """
        Writes the state after `epoch`; with the epoch's row of metrics, also the networks that are now the best.

        The best go first: killed in between, the run repeats the epoch and writes them again.
        """
        states = {name: part.state_dict() for name, part in self.parts.items()}
        common = {'settings': self.settings, 'epoch': epoch, 'row': row}
        self.row = row or self.row
        for name in [columns.Column(split, metric).name for split in columns.SPLITS for metric in self.metrics]:
            value = row[name] if row and name in row else math.nan
            if value > self.best.get(name, {name: -math.inf})[name]:
                self.best[name] = row
                network = {part: states[part] for part in ('model', 'criterion')}
                self.write(f'checkpoint_{name}.pt', common | network)
        self.trained = epoch > 0
        self.write(LAST, common | states | {'best': self.best, 'row': self.row})

    def write(self, name, content):
        with atomic(self.folder / name) as temporary:
            torch.save(content, temporary)

    def resume(self):
        """Restores the last state; returns the epoch that comes next: 0 where there is none yet."""
        if not self.last.exists():
            return 0
        states = load(self.last)
        for name, part in self.parts.items():
            try:
                part.load_state_dict(states[name])
            except (KeyError, RuntimeError, ValueError) as error:
                changed = [f'--{flag} {shown(change["to"])} (was {shown(change["from"])})'
                           for flag, change in run_folder.changes(states['settings'], self.settings).items()]
                reason = (f'{", ".join(changed)}; give it the flags it was saved with, or begin a new run' if changed
                          else ' '.join(str(error).split())[:200])
                raise UserError(f'--resume {self.folder}: its {name} does not fit the flags given now: {reason}'
                                ) from None
        self.best, self.row = states['best'], states['row']
        return states['epoch'] + 1


def shown(value):
    return ' '.join(map(str, value)) if isinstance(value, list) else str(value)


def load(path):
    """A checkpoint file of this program, on the CPU; nothing but tensors and plain values is unpickled."""
    try:
        states = torch.load(path, map_location='cpu', weights_only=True)
    except OSError as error:
        raise UserError(f'{path}: {error.strerror or error}') from None
    except Exception as error:  # the unpickler raises anything on a broken file
        raise UserError(f'{path}: not a checkpoint of this program but {kind_of(path, error)}') from None
    if not isinstance(states, dict) or not {'settings', 'epoch', 'model'} <= states.keys():
        raise UserError(f'{path}: not a checkpoint of this program; weights of a backbone are passed with --weights')
    return states


def find(place):
    """A run folder or a checkpoint file -> the checkpoint file; of a folder, the last."""
    path = Path(place)
    path = path / LAST if path.is_dir() else path
    if not path.is_file():
        raise UserError(f'{place}: there is no checkpoint {path}')
    return path
