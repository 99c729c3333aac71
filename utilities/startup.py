"""The start of main.py, before it imports packages for seconds: signals end it at once; a missing package is named."""
import importlib.util
import os
import sys
from pathlib import Path

from utilities import stopping

NEEDED = ('torch', 'torchvision', 'numpy', 'PIL', 'yaml', 'tqdm')             # packages that every run imports
ENVIRONMENT = Path(__file__).resolve().parents[1] / '.venv'


def begin(script):
    """Until stopping.install() is called, signals end this process at once. Ends it if a package is not installed."""
    stopping.install(at_once=True)
    if 'RANK' in os.environ:                                 # torch prints frames of C++ where a process was killed
        os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        way = ('Use the environment: source .venv/bin/activate' if (ENVIRONMENT / 'installed').exists() else
               'make .venv/installed makes an environment that has it; then: source .venv/bin/activate')
        print(f'{script}: error: {missing[0]} is not installed for {sys.executable or "this Python"}. {way} '
              '(docs/start.md)', file=sys.stderr)
        sys.exit(2)
