"""
One run as a process of its own: started or resumed, and visible to other launchers by the lock on its log.

The process outlives the launcher. It holds the lock of the log as long as it lives, so that no run is started twice.
"""
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from records import reading
from records.lock import fcntl, note_unlocked

MAIN = Path(__file__).resolve().parents[1] / 'main.py'
EXIT = 'Launch_Runs.py: exit code'                                # the last line of a log whose run has ended
STARTED = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ')           # the first line of each process in the log
SENTENCE = re.compile(r'main\.py: (?:error|the run failed): (.+)')
STOPPED = 130                                                     # exit code of a run that was interrupted
GRACE = 60                                                        # seconds for an interrupted run to end by itself


class Busy(Exception):
    """The run is being trained by another process."""


def start(run, more):
    """
    Starts the run, or resumes it, with the arguments `more` after its own; returns the process, or None for a run that
    is finished already. Raises Busy while another process trains it.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log, 'a', encoding='utf-8') as log:
        if fcntl and not could_lock(log, fcntl.LOCK_EX):               # the process inherits the lock with the log
            raise Busy
        folder = run.folder()
        if folder and reading.is_finished(folder):
            return None
        found = ['--resume', str(folder)] if folder else []
        command = [sys.executable, str(MAIN), *run.arguments, *more, *found]
        print(f'\n{time.strftime("%Y-%m-%d %H:%M:%S")} {shlex.join(command)}', file=log, flush=True)
        return new_process(command, run, log)


def new_process(command, run, log):
    # a group, which Ctrl-C on a terminal does not reach, and not a session, for which nice is another scale
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                            env={'PYTHONUNBUFFERED': '1'} | os.environ | run.environment)


def is_running(run):
    """Whether a process holds the lock of the run's log."""
    try:
        with open(run.log, encoding='utf-8') as log:
            return bool(fcntl) and not could_lock(log, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def could_lock(log, kind):
    """
    Locks an open log. Returns whether no other process holds its lock. Where the file system has no locks, prints a
    note and returns True.
    """
    try:
        fcntl.flock(log, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        note_unlocked(Path(log.name).parent, error.strerror)
    return True


def stop(running):
    """Interrupts the processes as Ctrl-C does, and waits until they have ended. running: {process: run}."""
    for process in running:
        process.terminate()                     # a process that a script started in the background ignores SIGINT
    for process, run in running.items():
        try:
            code = process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        note_exit(run, code and STOPPED)


def note_exit(run, code):
    """Writes the exit code of the run's process at the end of its log."""
    with open(run.log, 'a', encoding='utf-8') as log:
        print(f'{EXIT} {code}', file=log)


def exit_code(run):
    """The exit code at the end of the log; None where no process has ended, or one was started since."""
    found = re.fullmatch(rf'{EXIT} (-?\d+)', ''.join(lines_of_log(run)[-1:]))
    return int(found[1]) if found else None


def last_lines(run):
    """The last five lines that the run printed, indented."""
    return '\n'.join(f'    {line}' for line in printed_lines(run)[-5:])


def reason(run):
    """Why the last process of the run failed, from its log: the error sentence of main.py, or else the last line."""
    printed = printed_lines(run)
    started = max((number for number, line in enumerate(printed) if STARTED.match(line)), default=-1)
    printed = printed[started + 1:] or ['it printed nothing']
    sentences = [match[1] for match in map(SENTENCE.match, printed) if match]
    return (sentences or printed)[-1].strip()


def printed_lines(run):
    return [line for line in lines_of_log(run) if line.strip() and EXIT not in line]


def lines_of_log(run):
    return run.log.read_text(encoding='utf-8', errors='replace').splitlines() if run.log.exists() else []
