"""
The thresholds of the C library's memory allocator, glibc's.

By default glibc returns large blocks to the operating system as soon as they are freed, and gets them back page by
page, with a page fault for each 4 kB: up to half of the time of a step on the CPU with large batches.
"""
import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3                           # the parameters' numbers in glibc's malloc.h
KEPT = 2 ** 31 - 1                                                # bytes of freed memory that a process keeps
MAPPED_FROM = 2 ** 30                                             # bytes of a block that is returned when it is freed


def keep_freed(opt):
    """Lets this process and the data workers that it forks reuse freed memory, unless --system_malloc; glibc only."""
    if not opt.system_malloc and has_glibc():
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT)
        library.mallopt(MMAP_THRESHOLD, MAPPED_FROM)


def has_glibc():
    name = 'CS_GNU_LIBC_VERSION'
    return name in getattr(os, 'confstr_names', ()) and (os.confstr(name) or '').startswith('glibc')
