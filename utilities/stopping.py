"""
The start of a script, and its end by Ctrl-C or SIGTERM. The handler of signals only notes the request; loops call
check() where they can stop, which then raises KeyboardInterrupt. An exception raised by the handler itself could vanish
in a callback whose exceptions Python ignores.
"""
import contextlib
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

NEEDED = ('torch', 'torchvision', 'numpy', 'PIL', 'yaml', 'tqdm')             # packages that every run imports
ENVIRONMENT = Path(__file__).resolve().parents[1] / '.venv'
POLL = 0.2                                           # seconds between two checks while waiting
BOUNCE = 1.0                                         # seconds after a request in which another Ctrl-C is the same one
GRACE = 10                                           # seconds that a process has to end by itself after a request
COMPILING = 5                                        # seconds that a step which may compile goes on after a request
requested = False                              # whether to stop; other code may set it, too
asked_at = 0.0                                 # the time of the first request
immediate = False                              # whether a signal ends the process at once
owner = None                                   # the process that is to stop; data workers inherit the handler
parent = None                                  # the parent of that process, at its first install()


def begin(script):
    """
    To be called before a script imports packages for seconds: until install() is called again, signals end this
    process at once. Requires the packages.
    """
    install(at_once=True)
    if 'RANK' in os.environ:                         # torch prints frames of C++ where a process was killed
        os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    require_packages(script)


def require_packages(script):
    """Ends this process with a line if a package is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        way = ('Use the environment: source .venv/bin/activate' if (ENVIRONMENT / 'installed').exists() else
               'make .venv/installed makes an environment that has it; then: source .venv/bin/activate')
        print(f'{script}: error: {missing[0]} is not installed for {sys.executable or "this Python"}. {way} '
              '(docs/start.md)', file=sys.stderr)
        sys.exit(2)


def install(at_once=False):
    """
    Makes Ctrl-C and SIGTERM requests to stop at the next check(). A second Ctrl-C, after BOUNCE seconds, ends the
    process at once.

    at_once: whether the first signal ends the process at once, with a line and exit code 130: while a program imports
             its packages, nothing checks for requests, and nothing has to be cleaned up.
    """
    global owner, parent, immediate
    if owner != os.getpid():
        owner = os.getpid()
        parent = os.getppid()
    sys.unraisablehook = print_unless_of_workers
    immediate = at_once
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)         # launchers and schedulers send it, sometimes more than once


def on_signal(number, frame):
    global requested, asked_at
    if os.getpid() != owner:                     # a terminal signals data workers as well; the main process ends them
        return
    says_it = os.environ.get('RANK', '0') == '0'                    # one process of a run prints
    if immediate:
        if says_it:
            os.write(2, b'\nStopped while the program was starting.\n')
        os._exit(130)
    before = requested
    requested = True                                   # the flag comes first, since another signal may interrupt this
    if not before:
        asked_at = time.monotonic()
    if number == signal.SIGINT and before and time.monotonic() - asked_at > BOUNCE:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif number == signal.SIGINT and not before and says_it:
        os.write(2, b'\nStopping; press Ctrl-C again to end at once.\n')


def print_unless_of_workers(unraisable):
    """
    As sys.unraisablehook, but without what torch says of a killed data worker at a moment when nothing can catch it:
    schedulers send SIGTERM to the data workers as well. Elsewhere, it ends the run with a sentence.
    """
    if 'DataLoader worker' not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def check():
    """Raises KeyboardInterrupt where a stop was requested."""
    if requested:
        raise KeyboardInterrupt


def checked(items):
    """Yields the items, with a check() before each."""
    for item in items:
        check()
        yield item


@contextlib.contextmanager
def compiling():
    """
    For work in which torch may compile: after a request to stop, the process ends COMPILING seconds later unless the
    block has ended, since compiling takes minutes, and waits for ever for compilers that the same signal has ended.
    Python calls no handler while the main thread waits for torch's threads; so another thread reads the signals.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    ended = threading.Event()
    threading.Thread(target=end_at_signal, args=[reading, ended], daemon=True).start()
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    try:
        yield
    except Exception:
        check()                                      # an error of a compiler that the same signal has ended
        raise
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        writing.close()


def end_at_signal(reading, ended):
    """Ends the process COMPILING seconds after a signal whose number can be read, unless `ended` is set by then."""
    with reading:
        for found in iter(lambda: reading.recv(1), b''):                       # empty at the end of the block
            if found[0] in (signal.SIGINT, signal.SIGTERM) and not ended.wait(COMPILING):
                if os.environ.get('RANK', '0') == '0':
                    os.write(2, b'\nStopped while torch was compiling.\n')
                os._exit(130)


def sleep(seconds):
    """Waits. Raises KeyboardInterrupt within POLL seconds after a stop was requested."""
    end = time.monotonic() + seconds
    check()
    left = seconds
    while left > 0:
        time.sleep(min(POLL, left))
        check()
        left = end - time.monotonic()


def end_with_parent():
    """Requests a stop when the process that has started this one has ended, and ends this one GRACE seconds later."""
    threading.Thread(target=end_after, args=[parent or os.getppid()], daemon=True).start()


def end_after(process):
    global requested
    while os.getppid() == process:
        time.sleep(POLL)
    requested = True
    time.sleep(GRACE)
    os._exit(130)
