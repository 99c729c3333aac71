"""
python execute.py ERRORS CODE ARGUMENTS ...: as python -c CODE ARGUMENTS ..., with its errors in the file ERRORS, and
with blank plots.
"""
import os
import sys
from pathlib import Path

os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
sys.path[0], sys.argv[:3] = str(Path(__file__).parents[1]), [sys.argv[2]]
code, sys.argv[0] = sys.argv[0], '-c'
from tests.blank import plots  # noqa: E402

plots.install()
exec(code)
