"""The processor of this machine, and its cores."""
import os
import platform
import re
import subprocess
from pathlib import Path


def n_cores():
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def processor():
    """The name of the processor, on which the last digits of results depend; if it is not known, the architecture."""
    try:
        if platform.system() == 'Darwin':
            return subprocess.run(['sysctl', '-n', 'machdep.cpu.brand_string'], capture_output=True, text=True,
                                  check=True).stdout.strip()
        found = re.search(r'^model name\s*:\s*(\S.*)$', Path('/proc/cpuinfo').read_text(), re.MULTILINE)
    except (OSError, ValueError, subprocess.SubprocessError):
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
