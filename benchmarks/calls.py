"""
How many functions of this project a plain run of two steps calls, and in how many files they are.

python -m benchmarks.calls [--list] [FLAGS OF main.py]

--list prints the functions of each file.
"""
import collections
import runpy
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.same_runs import TINY, draw_images

ROOT = Path(__file__).parents[1]
PLAIN = [*TINY, '--loss', 'triplet', '--batch_mining', 'semihard', '--n_epochs', '1', '--iterations_per_epoch', '2']


def called(arguments):
    """{file: names of its functions that main.py calls}, for the files of this project."""
    root = str(ROOT)
    found = collections.defaultdict(set)
    main = runpy.run_path(str(ROOT / 'main.py'))['main']

    def note(frame, event, argument):
        code = frame.f_code
        if event == 'call' and code.co_filename.startswith(root) and '.venv' not in code.co_filename:
            if not code.co_name.startswith('<'):
                found[str(Path(code.co_filename).relative_to(root))].add(code.co_qualname)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def run(arguments):
    with tempfile.TemporaryDirectory() as scratch:
        draw_images(Path(scratch))
        flags = [argument for argument in arguments if argument != '--list']
        sys.argv = ['main.py']
        found = called([*PLAIN, '--source_path', scratch, '--save_path', scratch, *flags])
    if '--list' in arguments:
        for file, names in sorted(found.items()):
            print(f'{file}: {", ".join(sorted(names))}')
    print(f'{sum(map(len, found.values()))} functions in {len(found)} files')


if __name__ == '__main__':
    run(sys.argv[1:])
