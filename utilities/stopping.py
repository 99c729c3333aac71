"""
Ctrl-C and SIGTERM. The handler only notes the request; loops call check() where they can stop, which then raises
KeyboardInterrupt. An exception raised by the handler itself could vanish in a callback whose exceptions Python ignores.
"""
import os
import signal
import time

POLL = 0.2                                           # seconds between two checks while waiting
requested = False
owner = None                                   # the process that is to stop; data workers inherit the handler


def install():
    """Makes Ctrl-C and SIGTERM requests to stop at the next check(). A second Ctrl-C ends the process at once."""
    global owner
    owner = os.getpid()
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)         # launchers and schedulers send it, sometimes more than once


def on_signal(number, frame):
    global requested
    if os.getpid() != owner:                     # a terminal signals data workers as well; the main process ends them
        return
    if number == signal.SIGINT:
        if requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if os.environ.get('RANK', '0') == '0':       # of several processes of a run, the first says it
            os.write(2, b'\nStopping; press Ctrl-C again to end at once.\n')
    requested = True


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
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(POLL, left))
        check()
