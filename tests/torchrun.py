"""
python torchrun.py FLAGS main.py ARGUMENTS: as torchrun FLAGS main.py ARGUMENTS, with blank plots, and with processes
that are forked instead of started.
"""
import multiprocessing
import sys
import time
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic import multiprocessing as elastic
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.launcher.api import elastic_launch

sys.path[0] = str(Path(__file__).parents[1])
import main  # noqa: E402
from tests.blank import plots  # noqa: E402
from utilities import processes, stopping  # noqa: E402


class Finished:
    """Takes the place of a multiprocessing.Event, whose set() hangs if a process was killed that waits for it."""

    def __init__(self):
        self.value = multiprocessing.RawValue('b', 0)

    def set(self):
        self.value.value = 1

    def wait(self):
        while not (self.value.value or stopping.requested):
            time.sleep(0.02)


class Context(api.MultiprocessContext):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._worker_finished_event = Finished()


def work(arguments):
    time.sleep(0.5)          # torchrun has a thread that resolves names as processes connect: a fork then could hang
    stopping.install()
    if code := main.main(arguments):
        processes.leave(code)


if __name__ == '__main__':
    plots.install()
    elastic.MultiprocessContext = Context
    given = run.parse_args(sys.argv[1:])
    config, _, _ = run.config_from_args(given)
    config.start_method = 'fork'
    elastic_launch(config, work)(given.training_script_args)
