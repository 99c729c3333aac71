"""
The processor of this machine, its cores, its GPUs, and what glibc, the C library of Linux, does with freed memory.

By default, glibc returns large blocks to the operating system as soon as they are freed. It gets them back page by
page, with a page fault for each 4 kB. On the CPU, this takes up to half of the time of a step with large batches.
"""
import ctypes
import os
import platform
import re
import subprocess
from pathlib import Path

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3                           # the parameters' numbers in glibc's malloc.h
KEPT = 2 ** 31 - 1                                                # bytes of freed memory that a process keeps at most
MAPPED_FROM = 2 ** 30                                             # bytes; larger blocks are returned when freed

# values of --device, and their meanings
DEVICES = {'auto': 'an NVIDIA GPU if available, else an Apple GPU, else the CPU', 'cpu': 'the CPU',
           'cuda': 'an NVIDIA GPU', 'mps': 'an Apple GPU'}


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


def accelerator():
    """
    The type of the GPUs that --device cuda means: 'cuda', or the type of the accelerator for which this torch was built
    or extended. None if there is no such GPU; an Apple GPU, which --device mps means, does not count.
    """
    import torch  # imported here, since reading run folders does not need it
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type == 'mps' else found.type


def keep_freed():
    """Makes this process and its forked data workers keep freed memory, with glibc."""
    if has_glibc():
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT)
        library.mallopt(MMAP_THRESHOLD, MAPPED_FROM)


def has_glibc():
    name = 'CS_GNU_LIBC_VERSION'
    return name in getattr(os, 'confstr_names', ()) and (os.confstr(name) or '').startswith('glibc')
