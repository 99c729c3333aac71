"""The number and devices of the runs that are trained in parallel: their flags, and one slot for each run."""
import os
import re

from utilities.command_line import POSITIVE_INT
from utilities.errors import UserError


def add_flags(parser):
    """Declares --workers, --gpus and --per_gpu."""
    add = parser.add_argument
    add('--workers', type=POSITIVE_INT, metavar='N', help='number of runs at once on the CPU')
    add('--gpus', metavar='0,1', help='indices of the GPUs to run on, separated by commas')
    add('--per_gpu', type=POSITIVE_INT, metavar='N', default=1, help='number of runs at once on each of the --gpus')


def of_flags(opt):
    """
    One list per slot: the arguments that are appended to those of the run which takes the slot.

    By default there is one slot, which appends nothing. With --workers, the processor cores are divided among the runs
    by OMP_NUM_THREADS, if it is not set.
    """
    if opt.gpus and opt.workers:
        raise UserError('--gpus and --workers: give one of them')
    if opt.gpus:
        if not re.fullmatch(r'\d+(,\d+)*', opt.gpus):
            raise UserError(f'--gpus {opt.gpus}: expected numbers with commas, as 0,1')
        return [['--gpu', gpu] for _ in range(opt.per_gpu) for gpu in opt.gpus.split(',')]
    if opt.workers:
        from utilities.processes import n_cores  # imports torch, which the flags do not need
        os.environ.setdefault('OMP_NUM_THREADS', str(max(1, n_cores() // opt.workers)))
        return [['--device', 'cpu']] * opt.workers
    return [[]]
