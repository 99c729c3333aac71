"""
Short forms of all benchmarks, a table each, one after the other, since two at once would slow each other down. Each
runs in a process of its own, with one thread.

python -m benchmarks [NAME ...]
"""
import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks
from benchmarks import figures

FOLDER = Path(benchmarks.__file__).parent
NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)
         if not module.ispkg and module.name != '__main__'
         and 'def short()' in (FOLDER / f'{module.name}.py').read_text(encoding='utf-8')]


def main(arguments):
    """Returns the exit code: the highest of the benchmarks'."""
    parser = argparse.ArgumentParser(prog='benchmarks', description='Short forms of the benchmarks, a table each.')
    parser.add_argument('names', nargs='*', choices=[*NAMES, []], metavar='NAME',
                        help=f'{", ".join(NAMES)}; all by default')
    names = parser.parse_args(arguments).names or NAMES
    if len(names) > 1:
        print(f'{figures.machine(threads=1)}. Medians, in seconds of processor time where the job names no other unit.')
        environment = os.environ | {'OMP_NUM_THREADS': '1'}
        return max(subprocess.call([sys.executable, '-m', 'benchmarks', name], cwd=FOLDER.parent, env=environment)
                   for name in names)
    print(f'\n{names[0]}\n\n' + figures.markdown(importlib.import_module(f'benchmarks.{names[0]}').short()), flush=True)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
