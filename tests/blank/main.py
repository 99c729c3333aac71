"""
main.py with blank plots: what small runs execute that are processes of their own. With --gpu, the processes on several
GPUs are forks.
"""
import itertools
import os
import runpy
import sys
from pathlib import Path

if __name__ == '__main__':
    sys.path[0] = str(Path(__file__).parents[2])
    from tests import forks
    from tests.blank import plots
    plots.install()
    if '--gpu' in sys.argv and 'RANK' not in os.environ:
        values = sys.argv[sys.argv.index('--gpu') + 1:]
        forks.install(len(list(itertools.takewhile(str.isdigit, values))))
    runpy.run_path(f'{sys.path[0]}/main.py', run_name='__main__')
