"""Runs the lines of a script of runs in parallel, on this machine or on a SLURM cluster. --help is the manual."""
import collections
import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

import architectures
import batch_mining
import criteria
import datasampler
import datasets
import parameters
from utilities import checkpoint, command_line, run_folder, run_records, run_script
from utilities.errors import UserError, choose

ROOT = Path(__file__).resolve().parent
PATIENCE = 120                                                    # seconds
EXIT = 'Launch_Runs.py: exit code'                                # the last line of a log whose run has ended


@dataclass
class Planned:
    """A line of the script. arguments: of main.py; settings: the flags it amounts to; parent: of its run folder."""
    arguments: list
    settings: dict
    parent: Path
    savename: str

    @property
    def name(self):
        return f'{self.parent.name}/{self.savename}'

    @property
    def log(self):
        """Standard output and errors, beside the run folder. Locked for as long as the run's process lives."""
        return self.parent / f'{self.savename}.log'

    def folder(self):
        """The run folder with this line's settings, or None; of several the one that came farthest."""
        found = [folder for folder in self.parent.glob(f'{glob_escaped(self.savename)}*')
                 if re.fullmatch(re.escape(self.savename) + r'(_\d+)?', folder.name)
                 and run_records.is_run_folder(folder) and self.is_mine(run_folder.read(folder)['flags'])]
        return max(found, default=None, key=lambda folder: ((folder / checkpoint.LAST).exists(), progress(folder)))

    def is_mine(self, flags):
        return all(flags[name] == value for name, value in self.settings.items()
                   if name in flags.keys() - run_folder.MACHINE)


def glob_escaped(text):
    return re.sub(r'([\[\]*?])', r'[\1]', text)


def progress(folder):
    """(finished or not, last recorded epoch)."""
    run = run_records.read(folder)
    return run.state == run_records.FINISHED, run.rows[-1]['epoch'] if run.rows else -1


def build():
    parser = command_line.Parser(prog='Launch_Runs.py',
                               description='Runs the lines of a script in parallel. Finished runs are skipped, stopped '
                                           'ones go on where they were; start it again after whatever happened.')
    add = parser.add_argument
    add('script', nargs='?', metavar='SCRIPT', help='Revisit_Runs.sh, or a file of lines python main.py ...')
    add('--only', nargs='+', metavar='TEXT', default=[],
        help='lines whose <dataset>/<group>_s<seed> contains one of these')
    add('--workers', type=command_line.POSITIVE_INT, metavar='N', help='that many runs at once, on the CPU')
    add('--gpus', metavar='0,1', help='runs on these GPUs')
    add('--per_gpu', type=command_line.POSITIVE_INT, metavar='N', default=1, help='that many runs at once on each GPU')
    add('--dry_run', action='store_true', help='check every line, say what would be done, and do nothing')
    add('--status', action='store_true', help='a table of all runs; on a terminal it stays and is kept up to date')
    add('--line', metavar='ARGUMENTS', help='instead of a script, one run: the arguments of main.py in quotes')
    slurm = parser.add_argument_group('SLURM (needs submitit)')
    slurm.add_argument('--slurm', action='store_true', help='submit the runs as a job array, and return')
    slurm.add_argument('--partition', metavar='P', help='of the cluster')
    slurm.add_argument('--time', default='12:00:00', metavar='HH:MM:SS',
                       help='limit of a job; it is queued again when it is over, and the run goes on')
    slurm.add_argument('--at_once', type=command_line.POSITIVE_INT, default=64, help='jobs of the array that may run')
    slurm.add_argument('--cpus', type=command_line.POSITIVE_INT, default=4, help='processor cores of a job')
    slurm.add_argument('--gpus_per_job', type=command_line.COUNT, default=1, help='GPUs of a job')
    slurm.add_argument('--memory', metavar='32GB', help="of a job; by default the cluster's own")
    slurm.add_argument('--slurm_args', nargs='+', metavar='NAME=VALUE', default=[],
                       help='more of sbatch, such as account=lab qos=long')
    return parser


def plan(script, only=()):
    """The Planned runs of a script. Raises UserError that names each line which main.py would refuse."""
    runs, problems, taken = [], [], {}
    for number, arguments in enumerate(run_script.commands(script), start=1):
        try:
            run = planned(arguments)
        except UserError as error:
            problems.append(f'{script}, run {number}: {error}')
            continue
        if run.log in taken:
            problems.append(f'{script}, runs {taken[run.log]} and {number}: both would be {run.name}; give them '
                            'different --group, --seed or --savename')
        taken[run.log] = number
        runs.append(run)
    if problems:
        raise UserError('\n'.join(problems))
    chosen = [run for run in runs if not only or any(text in run.name for text in only)]
    if not chosen:
        raise UserError(f'--only {" ".join(only)}: none of the {len(runs)} runs of {script}, such as {runs[0].name}')
    return chosen


def planned(arguments):
    """A line's arguments -> Planned, checked as far as it goes without data."""
    opt = parameters.parse(arguments)
    for mode in ('resume', 'reproduce', 'evaluate', 'embed', 'draw'):
        if getattr(opt, mode):
            raise UserError(f'--{mode}: a line to launch must train from the start')
    settings = parameters.settings_of(opt)
    opt.n_classes = 2
    criteria.select(opt, batch_mining.select(opt))
    choose(datasampler.SAMPLERS, opt.data_sampler, '--data_sampler')
    choose(datasets.DATASETS, opt.dataset, '--dataset')
    architectures.find(opt.arch)
    return Planned(arguments, settings, Path(opt.save_path) / opt.dataset, run_folder.savename(opt))


class Busy(Exception):
    """Another process has the run."""


def start(run, more=()):
    """
    Starts the run, or continues it, as a process that outlives this one; returns it, or None for a finished run.

    more: arguments after its own. The process holds the lock of its log, even if this one is killed. Raises Busy.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log, 'a', encoding='utf-8') as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy from None
        folder = run.folder()
        if folder and progress(folder)[0]:
            return None
        arguments = [*run.arguments, *more] + (['--resume', str(folder)] if folder else [])
        command = [sys.executable, str(ROOT / 'main.py'), *arguments]
        shown = shlex.join(run_folder.without_secrets(command, parameters.SECRETS))
        print(f'\n{time.strftime("%Y-%m-%d %H:%M:%S")} {shown}', file=log, flush=True)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                env={'PYTHONUNBUFFERED': '1'} | os.environ)


def is_running(run):
    """Whether a process holds the lock of the run's log."""
    try:
        with open(run.log, encoding='utf-8') as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def ended(run, code):
    """Notes the exit code at the end of the log; returns whether the run is finished."""
    with open(run.log, 'a', encoding='utf-8') as log:
        print(f'{EXIT} {code}', file=log)
    return code == 0


def last_lines(run, n=5):
    """The end of the run's log, for people."""
    lines = run.log.read_text(encoding='utf-8', errors='replace').splitlines() if run.log.exists() else []
    return '\n'.join(f'    {line}' for line in [line for line in lines if line.strip() and EXIT not in line][-n:])


def exit_code(run):
    """Of the last process that ended, as the log has it; None where none did, or a later one was started."""
    lines = run.log.read_text(encoding='utf-8', errors='replace').splitlines() if run.log.exists() else []
    return int(lines[-1].split()[-1]) if lines and lines[-1].startswith(EXIT) else None


def slots_of(opt):
    """What is appended to the arguments of the runs that may run at once: one list each."""
    if opt.gpus and opt.workers:
        raise UserError('--gpus and --workers: give one of them')
    if opt.gpus:
        if not re.fullmatch(r'\d+(,\d+)*', opt.gpus):
            raise UserError(f'--gpus {opt.gpus}: expected numbers with commas, as 0,1')
        return [['--gpu', gpu] for _ in range(opt.per_gpu) for gpu in opt.gpus.split(',')]
    if opt.workers:
        threads = max(1, len(os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else range(os.cpu_count()))
                      // opt.workers)
        os.environ.setdefault('OMP_NUM_THREADS', str(threads))
        return [['--device', 'cpu']] * opt.workers
    return [[]]


def launch(runs, slots):
    """
    Runs them, as many at once as there are slots. Returns the exit code: 0, or 1 where a run failed.

    A run that another process has counts as one of those at once, and is looked at again when that process is gone.
    """
    waiting, elsewhere, running, slots = collections.deque(runs), [], {}, list(slots)
    failed, n_skipped = [], 0
    bar = tqdm(total=len(runs), unit='run', disable=None)
    try:
        while waiting or elsewhere or running:
            for run in [run for run in elsewhere if not is_running(run)]:
                elsewhere.remove(run)
                waiting.appendleft(run)
            while waiting and len(slots) > len(elsewhere):
                run = waiting.popleft()
                try:
                    process = start(run, slots[-1])
                except Busy:
                    bar.write(f'{run.name}: another process has it')
                    elsewhere.append(run)
                    continue
                if process is None:
                    n_skipped += 1
                    bar.update()
                else:
                    bar.write(f'{run.name}: started')
                    running[process] = run, slots.pop()
            for process in [process for process in running if process.poll() is not None]:
                run, slot = running.pop(process)
                slots.append(slot)
                bar.update()
                if ended(run, process.returncode):
                    bar.write(f'{run.name}: finished')
                else:
                    failed.append(run)
                    bar.write(f'{run.name}: FAILED with exit code {process.returncode}, {run.log} ends with\n'
                              f'{last_lines(run)}')
            time.sleep(0.2 if running or elsewhere else 0)
    except KeyboardInterrupt:
        stop(running)
        bar.write(f'Stopped {len(running)} run(s); start Launch_Runs.py again to go on.')
        raise
    finally:
        bar.close()
    print(f'{len(runs) - n_skipped - len(failed)} finished, {n_skipped} had been finished before, {len(failed)} failed'
          + ''.join(f'\n  failed: {run.name}, {run.log}' for run in failed))
    return int(bool(failed))


def stop(running):
    """Interrupts the processes as Ctrl-C does, and waits for them."""
    for process in running:
        process.terminate()                         # SIGINT does not reach what a script started in the background
    for process, (run, _) in running.items():
        try:
            ended(run, process.wait(timeout=60))
        except subprocess.TimeoutExpired:
            process.kill()
            ended(run, process.wait())


def run_line(text):
    """One run in the foreground, resumed where it was stopped; returns its exit code. What a job of SLURM executes."""
    run = planned(shlex.split(text))
    for attempt in range(PATIENCE + 1):             # a pre-empted job may come back before its process is gone
        try:
            process = start(run)
            break
        except Busy:
            if attempt == PATIENCE:
                print(f'{run.name}: another process has it')
                return 0
            time.sleep(1)
    if process is None:
        print(f'{run.name}: had been finished before')
        return 0
    try:
        code = process.wait()
    except KeyboardInterrupt:
        stop({process: (run, None)})
        raise
    if not ended(run, code):
        print(f'{run.name}: exit code {code}, {run.log} ends with\n{last_lines(run)}', file=sys.stderr)
    return code


def status_rows(runs):
    """
    A dict per run: run, state, epoch, n_epochs, score (the first storage metric on test, or on validation where that
    alone is evaluated), seconds (still to go).
    """
    rows = []
    for run in runs:
        folder, busy = run.folder(), is_running(run)
        records = run_records.read(folder) if folder else None
        last = records.rows[-1] if records and records.rows else {}
        done = records is not None and records.state == run_records.FINISHED
        code = exit_code(run)
        state = ('finished' if done else 'running' if busy else
                 'failed' if code not in (None, 0, 130) else 'stopped' if folder else 'waiting')
        metric = run.settings['storage_metrics'][0]
        times = [row['seconds'] for row in (records.rows if records else []) if row['epoch'] and 'seconds' in row][-5:]
        rows.append({'run': run, 'state': state, 'epoch': last.get('epoch'), 'n_epochs': run.settings['n_epochs'],
                     'score': last.get(f'test_{metric}', last.get(f'val_{metric}')),
                     'pace': sum(times) / len(times) if times else None})
    paces = [row['pace'] for row in rows if row['pace']]
    for row in rows:
        pace = row['pace'] or (sum(paces) / len(paces) if paces else None)
        left = 0 if row['state'] == 'finished' else row['n_epochs'] - max(row['epoch'] or 0, 0)
        row['seconds'] = left * pace if pace is not None or not left else None
    return rows


def status_table(runs):
    """The table as text, and whether nothing is left to wait for."""
    rows = status_rows(runs)
    width = max(len(run.name) for run in runs)
    lines = [f'{"run":{width}}  {"state":8}  {"epoch":>9}  {"score":>6}  {"left":>9}']
    for row in rows:
        epoch = f'{"-" if row["epoch"] is None else row["epoch"]}/{row["n_epochs"]}'
        left = '' if row['state'] == 'finished' or row['seconds'] is None else clock(row['seconds'])
        score = '' if row['score'] is None else f'{row["score"]:.4f}'
        lines.append(f'{row["run"].name:{width}}  {row["state"]:8}  {epoch:>9}  {score:>6}  {left:>9}'.rstrip())
    counts = collections.Counter(row['state'] for row in rows)
    total = ''
    if any(row['state'] != 'finished' for row in rows) and all(row['seconds'] is not None for row in rows):
        at_once = max(1, counts['running'])
        total = f'; about {clock(sum(row["seconds"] for row in rows) / at_once)} left with {at_once} at once'
    lines.append(f'{len(rows)} runs: ' + ', '.join(f'{n} {state}' for state, n in counts.items()) + total)
    for row in rows:
        if row['state'] == 'failed':
            lines += [f'{row["run"].name} failed, {row["run"].log} ends with', last_lines(row['run'])]
    return '\n'.join(lines), counts['finished'] == len(rows)


def clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f'{minutes // 60}:{minutes % 60:02d}:{seconds:02d}'


def show_status(runs):
    """Prints the table; on a terminal, again every two seconds until all runs are finished."""
    while True:
        table, done = status_table(runs)
        live = sys.stdout.isatty()
        print(('\033[2J\033[H' if live else '') + table, flush=True)
        if done or not live:
            return
        time.sleep(2)


def dry_run(runs):
    for run in runs:
        folder = run.folder()
        done = folder and progress(folder)[0]
        what = 'finished' if done else f'would be resumed, {folder}' if folder else 'would be started'
        print(f'{run.name}: {what}')
    print(f'{len(runs)} runs, and main.py takes the flags of each.')


def main(arguments):
    """Returns the exit code: 0, 1 where a run failed, 2 for what the user must change, 130 after Ctrl-C."""
    with contextlib.suppress(ValueError):                            # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        opt = build().parse_args(arguments)
        if bool(opt.script) == bool(opt.line):
            raise UserError('give a script of runs, such as Revisit_Runs.sh')
        if opt.line:
            return run_line(opt.line)
        slots = slots_of(opt)
        runs = plan(opt.script, opt.only)
        if opt.dry_run:
            dry_run(runs)
        elif opt.status:
            show_status(runs)
        elif opt.slurm:
            from utilities import slurm
            slurm.submit(opt, [[sys.executable, str(ROOT / 'Launch_Runs.py'), '--line', shlex.join(run.arguments)]
                               for run in runs], ROOT)
        else:
            return launch(runs, slots)
    except UserError as error:
        print(f'Launch_Runs.py: error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
