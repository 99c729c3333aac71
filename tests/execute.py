"""
python execute.py ERRORS CODE ARGUMENTS ...: as python -c CODE ARGUMENTS ..., with its errors in the file ERRORS, and
with blank plots.
"""
import os
import sys
from pathlib import Path

if __name__ == '__main__':                      # multiprocessing imports this file again in processes that CODE starts
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.path[0], sys.argv[:3] = str(Path(__file__).parents[1]), [sys.argv[2]]
    code, sys.argv[0] = sys.argv[0], '-c'
    from tests.blank import plots

    plots.install()
    exec(code)
