"""
Ctrl-C and SIGTERM. The handler only notes the request; loops call check() where they can stop, which then raises
KeyboardInterrupt. An exception raised by the handler itself could vanish in a callback whose exceptions Python ignores.
"""
import os
import signal
import threading
import time

POLL = 0.2                                           # seconds between two checks while waiting
GRACE = 10                                           # seconds that a process has to end by itself after a request
requested = False                              # whether to stop; other code may set it, too
immediate = False                              # whether a signal ends the process at once
owner = None                                   # the process that is to stop; data workers inherit the handler
parent = None                                  # the process that had started it, at the first install()


def install(at_once=False):
    """
    Makes Ctrl-C and SIGTERM requests to stop at the next check(). A second Ctrl-C ends the process at once.

    at_once: whether the first signal ends the process at once, with a line and exit code 130: while a program imports
             its packages, nothing checks for requests, and nothing has to be cleaned up.
    """
    global owner, parent, immediate
    if owner != os.getpid():
        owner = os.getpid()
        parent = os.getppid()
    immediate = at_once
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)         # launchers and schedulers send it, sometimes more than once


def on_signal(number, frame):
    global requested
    if os.getpid() != owner:                     # a terminal signals data workers as well; the main process ends them
        return
    says_it = os.environ.get('RANK', '0') == '0'                    # only one of a run's processes prints
    if immediate:
        if says_it:
            os.write(2, b'\nStopped while the program was starting.\n')
        os._exit(130)
    again = requested
    requested = True                                                # before all else: another signal may interrupt this
    if number == signal.SIGINT and again:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif number == signal.SIGINT and says_it:
        os.write(2, b'\nStopping; press Ctrl-C again to end at once.\n')


def check():
    """Raises KeyboardInterrupt where a stop was requested."""
    if requested:
        raise KeyboardInterrupt


def checked(items):
    """Yields the items, with a check() before each."""
    for item in items:
        check()
        yield item


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
