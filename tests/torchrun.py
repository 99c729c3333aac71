"""
python torchrun.py FLAGS main.py ARGUMENTS: as torchrun FLAGS main.py ARGUMENTS, with blank plots, and with processes
that are forked instead of started.
"""
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.launcher.api import elastic_launch

sys.path[0] = str(Path(__file__).parents[1])
import main  # noqa: E402
from tests.blank import plots  # noqa: E402
from utilities import processes, stopping  # noqa: E402


def work(arguments):
    stopping.install()
    if code := main.main(arguments):
        processes.leave(code)


if __name__ == '__main__':
    plots.install()
    given = run.parse_args(sys.argv[1:])
    config, _, _ = run.config_from_args(given)
    config.start_method = 'fork'
    elastic_launch(config, work)(given.training_script_args)
