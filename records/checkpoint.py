"""Checkpoints: the state for an exact resumption, and the best networks. Each epoch seeds the generators anew."""
import copy
import hashlib
import math
import zipfile
import zlib
from pathlib import Path

import torch

from records import columns, public_code, published, run_folder, state
from records.run_folder import LAST
from utilities import processes
from utilities.errors import RunFailed, UserError
from utilities.files import atomic, describe_kind


class OtherFile(UserError):
    """A file of weights that no run of this program wrote."""


class Checkpoint:
    """
    folder:   the run folder.
    settings: the flags, kept in every checkpoint so that it can be evaluated on its own.
    metrics:  --storage_metrics: the best network by each, on each split, is kept as checkpoint_<split>_<metric>.pt.
    lowest:   those of the metrics that are best where they are lowest.
    parts:    {name: part with a state dict}: model, criterion, optimizer and, where the run has them, further
              optimizers and the moving average of the weights (ema).
    state:    the State of the run: all else that its parts keep.
    best:     {'<split>_<metric>': the row of log.csv where it was best}.
    row:      the last row that has metrics.
    records:  the result of Records.contents() at the last save; None for a new run.
    origin:   the result of origin(): the id of the run, and the hashes of its data.
    next_epoch: the epoch after the one that resume() has restored; 0 for a new run.

    Process 0 alone saves; all processes resume.
    """

    def __init__(self, folder, settings, metrics, parts, state, origin=None, lowest=()):
        self.folder = Path(folder)
        self.last = self.folder / LAST
        self.settings = settings
        self.metrics = metrics
        self.parts = parts
        self.state = state
        self.origin = origin
        self.lowest = lowest
        self.best = {}
        self.row = None
        self.records = None
        self.trained = False                                 # whether it has the state after an epoch or more
        self.next_epoch = 0

    def save(self, epoch, row, records=None):
        """
        Writes the state after `epoch`, and the network for each metric whose value in `row` is the best so far, in
        process 0. All processes call it.

        The last state is written first, so that the earlier best networks stay if the disk has no room for it. It
        replaces the earlier one after the best networks are written: a run that is killed in between repeats the epoch
        and writes them again.
        """
        self.trained = epoch > 0
        kept = self.state.save()
        if not processes.is_main():
            return
        states = {name: part.state_dict() for name, part in self.parts.items()}
        common = {'settings': self.settings, 'epoch': epoch, 'row': row} | (self.origin or {})
        if any(map(columns.parse, row)):
            self.row = row
        names = {columns.Column(split, metric).name: metric for split in columns.SPLITS for metric in self.metrics}
        better = [name for name, metric in names.items() if self.is_best(name, metric, row)]
        self.best |= dict.fromkeys(better, row)
        self.records = records
        more = {'state': kept, 'best': self.best, 'row': self.row, 'records': records}
        trained = {part: states[part] for part in state.TRAINED if part in states}
        trained['state'] = state.limited(kept, state.TRAINED)
        with atomic(self.last) as file:
            write(file, common | states | more)
            for name in better:
                with atomic(self.folder / f'checkpoint_{name}.pt') as best:
                    write(best, common | trained)

    def is_best(self, name, metric, row):
        """Whether a row has a metric, in the column `name`, and it is better than in all earlier rows."""
        value = row.get(name, math.nan)
        if name not in self.best:
            return not math.isnan(value)
        best = self.best[name][name]
        return value < best if metric in self.lowest else value > best

    def resume(self, differences, merges):
        """
        Restores the last state; returns the next epoch, which is 0 if there is no checkpoint yet. Raises UserError if
        the checkpoint is damaged or does not fit the flags.

        differences: function of a checkpoint's settings and of what `merges` says; returns sentences on the settings
                     that differ, although no resumption can have changed them.
        merges:      function of the next epoch; returns whether settings of the kind `merge` may have changed there.
                     Parts other than the network then start fresh where their states do not fit, and are named.
        """
        if self.last.exists():
            self.restore(load(self.last), differences, merges)
        if self.next_epoch != processes.run_on_rank_zero(lambda: self.next_epoch):
            raise RunFailed(f'The processes of the run do not see the same {self.last}: the run folder must be in a '
                            'file system that all machines share.')
        return self.next_epoch

    def restore(self, states, differences, merges):
        """Takes over the content of a checkpoint."""
        merging = merges(states['epoch'] + 1)
        different = differences(states['settings'], merging)
        if different:
            raise UserError(f'{self.last}: it was written by a run with other settings than those in config.yaml: '
                            f'{", ".join(different)}; copy the run folder again')
        if merging:
            states.setdefault('ema', states['model'])        # a new moving average begins at the weights
        saved = states.get('state', {})
        fresh = []
        for name, part in self.parts.items():
            replaceable = merging and name != 'model'
            before = copy.deepcopy(part.state_dict()) if replaceable else None
            try:
                content = states[name]
                if isinstance(part, torch.nn.Module):
                    content = self.state.fitting(saved, part, content)
                elif 'criterion' in fresh and isinstance(part, torch.optim.Optimizer):
                    content = without_state_of(self.parts['criterion'], part, content)
                if content is not None:
                    part.load_state_dict(content)
                if isinstance(part, torch.optim.Optimizer) and content is not states[name]:
                    fresh.append(f"the criterion's part of {name}")
            except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
                if replaceable:
                    part.load_state_dict(before)             # some of its parts may have fitted
                    fresh.append(name)
                    continue
                raise UserError(f'--resume {self.folder}: its {name} does not fit the flags given now: '
                                f'{" ".join(str(error).split())[:200]}') from None
        try:
            fresh = self.state.restore(saved, fresh if merging else None)
        except (KeyError, ValueError) as error:
            raise UserError(f'--resume {self.folder}: its checkpoint has the state of {error}, which this run does not '
                            'build; give the flags and the code that it was started with, or add '
                            '--merge_argparse_when_resuming to leave this state out') from None
        if fresh:
            print(f'Note: {self.folder}: with the changed flags, these parts start fresh: {", ".join(fresh)}')
        self.best = states['best']
        self.row = states['row']
        self.records = states.get('records')
        self.trained = states['epoch'] > 0
        self.next_epoch = states['epoch'] + 1

    def patience_is_over(self, patience):
        """Whether more than `patience` epochs lie between the best validation score and the last evaluation."""
        best = self.best.get(columns.Column('val', self.metrics[0]).name)
        return processes.run_on_rank_zero(
            lambda: bool(patience and best and self.row['epoch'] - best['epoch'] > patience))


def write(file, content):
    with open(file, 'wb') as opened:                         # with a path alone, torch does not say that a disk is full
        torch.save(content, opened)


def without_state_of(module, optimizer, state):
    """
    The state dict of an optimizer without what it holds for the parameters of a module that starts fresh; None for an
    optimizer of the module alone.
    """
    own = {*module.parameters()}
    if own.issuperset(parameter for group in optimizer.param_groups for parameter in group['params']):
        return None
    kept = dict(state['state'])
    for saved, group in zip(state['param_groups'], optimizer.param_groups, strict=True):
        for number, parameter in zip(saved['params'], group['params'], strict=True):
            if parameter in own:
                kept.pop(number, None)
    return state if kept.keys() == state['state'].keys() else state | {'state': kept}


@processes.rank_zero_only
def origin(folder, description):
    """
    The id of a run, and the hashes of its data from a description by datasets.select; None in the other processes,
    which may not see a new folder yet.
    """
    return {'run_id': run_folder.read(folder)['run_id'], 'split_hash': description['hash'],
            'image_hashes': description['image_hashes']}


def note_changed_data(place, states, description):
    """
    Prints how the data, described by datasets.select, differ from the data of the run that wrote a run folder or
    checkpoint file with these `states`. Nothing is printed for exported weights, which do not record their data.
    """
    file = find(place).with_name('config.yaml')
    if 'split_hash' not in states and file.is_file():        # a checkpoint of an earlier version
        states = run_folder.read(file.parent)
    changed = run_folder.changed_data(states, description) if 'split_hash' in states else ''
    if changed:
        print(f'Note: the data have {changed} than the run of {place} began with; metrics on them cannot be compared '
              'with those that it recorded.')


def load(path):
    """
    The content of a checkpoint file of this program, on the CPU; nothing but tensors and plain values is unpickled.
    records.published reads exported weights instead, and records.public_code a file of the public code.

    Raises UserError if it is not one, or damaged: torch saves zip archives, whose members have CRC-32 checksums.
    """
    path = Path(path)
    if path.suffix == '.safetensors':
        if path.name != published.BACKBONE or not published.is_folder(path.parent):
            raise OtherFile(f'{path}: not the {published.BACKBONE} of an exported network')
        return published.read(path.parent)
    if public_code.is_file(path):
        if zipfile.is_zipfile(path):                         # files of torch before 1.6 are no archives
            require_whole(path)
        states = public_code.read(path)
    else:
        require_whole(path)
        try:
            states = torch.load(path, map_location='cpu', weights_only=True)
        except Exception as error:  # the unpickler raises anything on a broken file
            raise OtherFile(f'{path}: not a checkpoint of this program but {describe_kind(path, error)}') from None
    if not isinstance(states, dict) or not {'settings', 'epoch', 'model'} <= states.keys():
        raise OtherFile(f'{path}: not a checkpoint of this program; weights of a backbone are passed with --weights')
    return states


def require_whole(path):
    """Raises UserError where the CRC-32 checksums in a file of torch.save do not fit its content."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError as error:
        raise UserError(f'{path}: {error.strerror or error}') from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        damaged = type(error).__name__
    if damaged:
        raise UserError(f'{path}: damaged, or not a checkpoint of this program ({damaged}); copy it again, or use '
                        'another checkpoint of the run')


def checksum(state, text=''):
    """The SHA-256 of a text and of the names, shapes, types and bytes of the tensors in a state dict."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in state.items():
        digest.update(f'{name} {list(tensor.shape)} {tensor.dtype}'.encode())
        digest.update(tensor.contiguous().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def find(place):
    """
    A run folder or a checkpoint file -> the checkpoint file; for a folder, its last checkpoint. A folder that was
    exported -> the weights in it.
    """
    path = Path(place)
    if path.is_dir():
        name = published.BACKBONE if published.is_folder(path) else LAST
        path = path / name
    if not path.is_file():
        raise UserError(f'{place}: there is no checkpoint {path}')
    return path
