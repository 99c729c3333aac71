"""The number and devices of the runs that are trained in parallel: their flags, and one slot for each run."""
import os
import re

from flags.command_line import POSITIVE_INT
from utilities.errors import UserError


def add_flags(parser):
    """Declares --workers, --gpus, --per_gpu and --gpus_per_run."""
    add = parser.add_argument
    add('--workers', type=POSITIVE_INT, metavar='N', help='number of runs at once on the CPU')
    add('--gpus', metavar='0,1', help='indices of the GPUs to run on, separated by commas')
    add('--per_gpu', type=POSITIVE_INT, metavar='N', default=1, help='number of runs at once on each of the --gpus')
    add('--gpus_per_run', type=POSITIVE_INT, metavar='N', default=1,
        help='number of the --gpus that each run uses, with one process on each GPU')


def slot_arguments(opt):
    """
    One list per slot: the arguments that a run gets, after its own, when it takes the slot.

    By default there is one slot, which appends nothing. With --workers or --gpus, the processor cores are divided among
    the processes of all slots by OMP_NUM_THREADS, if it is not set.
    """
    if opt.gpus and opt.workers:
        raise UserError('--gpus and --workers: give one of them')
    for flag in ('per_gpu', 'gpus_per_run'):
        if getattr(opt, flag) > 1 and not opt.gpus:
            raise UserError(f'--{flag} {getattr(opt, flag)} needs --gpus with the indices of the GPUs, such as 0,1,2,3')
    if opt.gpus:
        if not re.fullmatch(r'\d+(,\d+)*', opt.gpus):
            raise UserError(f'--gpus {opt.gpus}: expected indices separated by commas, such as 0,1')
        gpus = opt.gpus.split(',')
        n = opt.gpus_per_run
        if len(gpus) % n:
            raise UserError(f'--gpus {opt.gpus} --gpus_per_run {n}: the number of GPUs must be a multiple of {n}')
        divide_cores(len(gpus) * opt.per_gpu)
        return [['--gpu', *gpus[i:i + n]] for _ in range(opt.per_gpu) for i in range(0, len(gpus), n)]
    if opt.workers:
        divide_cores(opt.workers)
        return [['--device', 'cpu']] * opt.workers
    return [[]]


def divide_cores(n_processes):
    from utilities.processes import n_cores  # imported here, since --help does not need torch
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, n_cores() // n_processes)))
