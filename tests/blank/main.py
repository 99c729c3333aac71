"""main.py with blank plots: what small runs execute that are processes of their own."""
import runpy
import sys
from pathlib import Path

if __name__ == '__main__':
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.blank import plots
    plots.install()
    runpy.run_path(f'{sys.path[0]}/main.py', run_name='__main__')
