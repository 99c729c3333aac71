"""
python run_after.py STATEMENTS ARGUMENTS ...: as python main.py ARGUMENTS ..., after the statements, which may refer to
the number of this process among those of the run as `rank`.
"""
import os
import sys

import main
from retrieval import actions  # noqa: F401
from utilities import processes, stopping

if __name__ == '__main__':
    rank = int(os.environ['RANK'])
    stopping.install()
    before = sys.argv.pop(1)
    exec(before)
    processes.leave(main.main(sys.argv[1:]))
