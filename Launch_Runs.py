"""Runs the lines of a script of runs in parallel, on this machine or on a SLURM cluster. --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.require_packages('Launch_Runs.py')

from flags import command_line
from launching import script, slots
from utilities import errors
from utilities.errors import UserError

SLURM = 'SLURM (needs submitit)'                                        # the title of the flags of jobs
HERE = {'workers', 'gpus', 'per_gpu', 'gpus_per_run'}                   # flags of runs on this machine
OF_A_LINE = {'line', 'gpus_per_job'}                                    # a job of SLURM runs one line with them


def build():
    parser = command_line.Parser(
        prog='Launch_Runs.py', usage='Launch_Runs.py SCRIPT [FLAG ...] [-- FLAG of main.py ...]',
        description='Runs the lines of a script in parallel. Finished runs are skipped, and stopped ones are resumed: '
                    'the same command continues after any interruption. The flags after -- go to every run, and '
                    'override those of its line, as in -- --source_path DATA.')
    add = parser.add_argument
    add('script', nargs='?', metavar='SCRIPT',
        help=f'Revisit_Runs.sh, or lines python main.py ...; executed only if its second line is "{script.MARKER}"')
    add('--only', nargs='+', metavar='TEXT', default=[],
        help='only the runs whose name, <dataset>/<group>_s<seed>, contains one of these texts')
    add('--skip_refused', action='store_true',
        help='leave out the lines that main.py would refuse, and name them; by default such a line stops everything')
    slots.add_flags(parser)
    add('--dry_run', action='store_true', help='check every line, print what would be done with it, and train nothing')
    add('--status', action='store_true', help='print a table of all runs, and train nothing')
    add('--line', metavar='ARGUMENTS',
        help='train one run in the foreground, given by the arguments of main.py in quotes instead of a script')
    add = parser.add_argument_group(SLURM).add_argument
    add('--slurm', action='store_true', help='submit the runs as a job array, and return')
    add('--partition', metavar='P', help='the partition of the cluster')
    add('--time', default='12:00:00', metavar='HH:MM:SS',
        help='time limit of a job, as for sbatch; a job that reaches it is queued again and resumes')
    add('--at_once', type=command_line.POSITIVE_INT, default=64, help='largest number of jobs that run at once')
    add('--cpus', type=command_line.POSITIVE_INT, default=4, help='number of processor cores of each job')
    add('--gpus_per_job', type=command_line.COUNT, default=1,
        help='number of GPUs of each job; its run has one process on each GPU')
    add('--memory', metavar='32GB', help="memory of each job; by default the cluster's own default")
    add('--slurm_args', nargs='+', metavar='NAME=VALUE', default=[],
        help='further options of sbatch, such as account=lab qos=long')
    return parser


def refuse_unused(opt, parser):
    """Raises UserError for flags that would do nothing."""
    changed = {name for name, value in vars(opt).items() if value != parser.get_default(name)}
    if opt.line:
        unused = changed - OF_A_LINE
        where = 'with --line'
    elif opt.slurm:
        unused = changed & HERE
        where = 'with --slurm'
    else:
        unused = changed & {*command_line.flags_in_groups(parser, SLURM)}
        where = 'without --slurm'
    if unused:
        raise UserError(f'--{", --".join(sorted(unused))}: without effect {where}; leave it out')


def launch(opt, more):
    """
    Lists, submits or trains the runs, as the flags say; returns the exit code of the runs, if any were trained.

    more: arguments of main.py that follow those of each run.
    """
    if opt.script and opt.line:
        raise UserError('give a script of runs or --line, not both')
    if not opt.script and not opt.line:
        raise UserError('give a script of runs, such as Revisit_Runs.sh')
    refuse_unused(opt, build())
    from launching import local, plan, slurm, status  # import torch, which --help does not need
    if opt.line:
        return local.run_line(opt.line, opt.gpus_per_job, more)
    at_once = slots.slot_arguments(opt)
    runs = plan.runs_of_script(opt.script, opt.only, opt.skip_refused, more)
    if opt.dry_run:
        return status.dry_run(runs)
    if opt.status:
        return status.show(runs)
    if opt.slurm:
        return slurm.submit(opt, runs)
    return local.launch(runs, at_once)


def main(arguments):
    """Returns the exit code: 0, 1 where a run failed, 2 after a UserError, 130 after Ctrl-C."""
    own, more = command_line.parted(arguments)
    return errors.exit_code('Launch_Runs.py', lambda: launch(build().parse_args(own), more))


if __name__ == '__main__':
    stopping.install()
    sys.exit(main(sys.argv[1:]))
