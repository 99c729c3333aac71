"""The processor cores of this machine."""
import os


def n_cores():
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
