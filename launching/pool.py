"""Several runs at once, each as a process of its own."""
import collections

from launching import process
from utilities.errors import UserError

STARTED = 'started'
ELSEWHERE = 'is being trained by another process'
FINISHED = 'had been finished before'


class Pool:
    """
    Trains runs, as many at once as there are slots.

    runs:  Planned.
    slots: as slots.slot_arguments gives them.

    A run that another process trains takes a slot, too, and is tried again when that process has ended.
    """

    def __init__(self, runs, slots):
        self.waiting = collections.deque(runs)
        self.elsewhere = []
        self.running = {}
        self.slots = list(slots)

    def has_runs(self):
        """Whether there are runs to start or to wait for."""
        return bool(self.waiting or self.elsewhere or self.running)

    def start(self):
        """
        Starts runs while there are free slots. Yields (run, STARTED, ELSEWHERE or FINISHED); for a run that cannot be
        started, since its folder is damaged or its log cannot be written, (run, the UserError or OSError).
        """
        for run in [run for run in self.elsewhere if not process.is_running(run)]:
            self.elsewhere.remove(run)
            self.waiting.appendleft(run)
        while self.waiting and len(self.slots) > len(self.elsewhere):
            run = self.waiting.popleft()
            try:
                started = process.start(run, self.slots[-1])
            except process.Busy:
                self.elsewhere.append(run)
                yield run, ELSEWHERE
            except (UserError, OSError) as error:
                yield run, error
            else:
                if started:
                    self.running[started] = run, self.slots.pop()
                yield run, STARTED if started else FINISHED

    def collect(self):
        """Frees the slots of the processes that have ended. Yields (run, exit code)."""
        for ended in [started for started in self.running if started.poll() is not None]:
            run, slot = self.running.pop(ended)
            self.slots.append(slot)
            process.note_exit(run, ended.returncode)
            yield run, ended.returncode

    def stop(self):
        """Interrupts the processes that run, and waits until they have ended; they can be resumed."""
        process.stop({started: run for started, (run, _) in self.running.items()})
