"""Scalars of every training step, copied from the GPU in a few transfers per epoch, so that no step waits for it."""
import math

import torch

from utilities.errors import RunFailed, UserError


class Trace:
    """
    Collects the scalars of each step of an epoch; a loss or gradient that is not finite stops the run.

    skipped_in_a_row: number of consecutive skipped steps up to now; the previous epoch's last steps count.
    """

    COPY_EVERY = 50                          # steps
    MOST_SKIPPED = 50                        # steps in a row

    def __init__(self, epoch, skipped_in_a_row=0):
        self.epoch = epoch
        self.pending = []                                    # the scalars of steps, not copied yet
        self.values = {}                                     # {name: the values of all steps before them}
        self.skipped_in_a_row = skipped_in_a_row

    def add(self, **scalars):
        """
        One step's scalars: 0-d tensors or numbers, loss and grad_norm among them. Raises UserError for another value.
        """
        self.pending.append({name: scalar(name, value) for name, value in scalars.items()})
        if len(self.pending) >= self.COPY_EVERY:
            self.copy_to_cpu()

    def copy_to_cpu(self):
        """
        Copies the pending scalars to the CPU. Raises RunFailed for the first step that is not finite, unless it was
        skipped, and where MOST_SKIPPED steps in a row were skipped.
        """
        if not self.pending:
            return
        columns = {}
        for name in dict.fromkeys(name for step in self.pending for name in step):
            values = [step[name] for step in self.pending if name in step]
            device = max((value.device for value in values), key=lambda device: device.type != 'cpu')
            columns[name] = torch.stack([value.to(device) for value in values]).cpu().tolist()
        n_before = len(self.values.get('loss', []))
        marks = iter(columns.get('skipped_steps', []))
        skipped = ['skipped_steps' in step and next(marks) for step in self.pending]
        steps = zip(columns['loss'], columns['grad_norm'], skipped, strict=True)
        for step, (loss, grad_norm, is_skipped) in enumerate(steps, start=n_before + 1):
            if not (math.isfinite(loss) and (math.isfinite(grad_norm) or is_skipped)):
                raise RunFailed(f'Epoch {self.epoch}, step {step}: the loss is {loss}, its gradient norm {grad_norm}.'
                                ' A lower --lr or other parameters of the loss may help; to continue with them, add '
                                '--merge_argparse_when_resuming.')
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if is_skipped else 0
            if self.skipped_in_a_row >= self.MOST_SKIPPED:
                raise RunFailed(f'Epoch {self.epoch}, step {step}: in each of {self.skipped_in_a_row} consecutive '
                                'steps, a float16 gradient was not finite, at every scale of the loss. --amp bfloat16 '
                                'may help.')
        columns['grad_norm'] = [norm for norm, is_skipped in zip(columns['grad_norm'], skipped, strict=True)
                                if not is_skipped]
        for name, column in columns.items():
            self.values.setdefault(name, []).extend(column)
        self.pending = []

    def summary(self):
        """
        {'train_<name>': mean over the steps that have it}, and the fraction of active tuples where tuples are counted.
        For skipped_steps it is their number, and grad_norm is averaged over the other steps.
        """
        self.copy_to_cpu()
        sums = {name: sum(values) for name, values in self.values.items()}
        means = {f'train_{name}': sums[name] / len(values) for name, values in self.values.items() if values}
        if 'skipped_steps' in sums:
            means['train_skipped_steps'] = sums['skipped_steps']
        if 'active_tuples' in sums:
            means['train_active_share'] = sums['active_tuples'] / max(1, sums['tuples'])
        return means


def scalar(name, value):
    """A value of the log as a 0-d tensor without graph. Raises UserError for one of another shape."""
    try:
        found = torch.as_tensor(value).detach()
        kind = f'a value of the shape {[*found.shape]}'
    except (TypeError, ValueError, RuntimeError):
        found = None
        kind = f'of the type {type(value).__name__}'
    if found is None or found.dim():
        raise UserError(f'self.log of a loss or miner: {name} is {kind}; expected a number or a tensor without '
                        'dimensions, such as a mean')
    return found


@torch.no_grad()
def hard_pairs(batch, labels):
    """
    Args:
        batch:  [B, D] embeddings.
        labels: [B] int64.

    Returns: {'hard_positives': the number of positive pairs (anchor, positive) that are farther apart than the anchor
    and its nearest negative, 'hard_negatives': the number of negative pairs (anchor, negative) that are nearer than the
    anchor and its farthest positive}, tensors. The distance is Euclidean.

    >>> found = hard_pairs(torch.tensor([[0.], [2.], [3.], [9.]]), torch.tensor([0, 0, 1, 1]))
    >>> found['hard_positives'].item(), found['hard_negatives'].item()
    (2, 3)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    distances = torch.cdist(batch, batch)
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    nearest = distances.masked_fill(same, torch.inf).amin(dim=1, keepdim=True)
    farthest = distances.masked_fill(~positives, -torch.inf).amax(dim=1, keepdim=True)
    return {'hard_positives': (positives & (distances > nearest)).count_nonzero(),
            'hard_negatives': (~same & (distances < farthest)).count_nonzero()}
