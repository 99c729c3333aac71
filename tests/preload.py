"""Imported by multiprocessing's fork server before its first fork; nothing else imports this module."""
import contextlib
import gc
import importlib
import os
import sys

from benchmarks.runs import PACKAGES

os.setsid()                                                       # Ctrl-C on the terminal is not for it
for stream in range(3):                                           # runs that are left may keep it alive: it holds no
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)               # pipe or terminal of the tests
gc.disable()                                                      # imports leave little garbage
for package in PACKAGES:
    with contextlib.suppress(ImportError):                        # runs work without it, or print what is missing
        importlib.import_module(package)
if not os.fork():
    os._exit(0)                                                   # OpenBLAS ends its threads before a fork
os.wait()
if len(os.listdir('/proc/self/task')) > 1:
    sys.exit('a process with threads cannot be forked')
gc.freeze()                                                       # the garbage collector of runs skips the packages
gc.enable()
