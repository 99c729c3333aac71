"""Time and memory of competing functions on the CPU."""
import ctypes
import gc
import os
import time
from pathlib import Path
from statistics import median

import torch

WARM_UP = 3e-3                                            # seconds of processor time; at least one call
SLOW = 1.0                                                # seconds of processor time
os.environ.setdefault('KINETO_LOG_LEVEL', '99')           # keeps the profiler from printing its own start and stop


def median_times(competitors, repeats, budget):
    """
    Args:
        competitors: {name: a function without arguments}.
        repeats:     number of timed calls of each.
        budget:      seconds of processor time after which no further round begins; there are at least three rounds.

    Returns: {name: the median processor time of a call, in seconds}.

    Each round times every competitor once, so that disturbances affect all of them alike; a competitor that takes more
    than SLOW seconds is timed in the first round only. Before each timed call, WARM_UP seconds of calls without timing
    remove the previous competitor's effect on caches and allocator. Processor time excludes other processes, but adds
    up threads; torch should use one.
    """
    times = {name: [] for name in competitors}
    started = time.process_time()
    for done in range(repeats):
        if done >= 3 and time.process_time() - started > budget:
            break
        for name, function in competitors.items():
            if max(times[name], default=0) > SLOW:
                continue
            began = time.process_time()
            while time.process_time() - began < WARM_UP:
                function()
            began = time.process_time()
            function()
            times[name].append(time.process_time() - began)
    return {name: median(taken) for name, taken in times.items()}


def peak_memory(function):
    """The peak number of bytes of CPU tensors during a call of `function`, minus the bytes before it."""
    function()                                            # memory that only the first call allocates does not count
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == '[memory]']
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def resident(what):
    """The memory of this process in MB, from Linux: VmRSS, the present one, or VmHWM, the peak since the last reset."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def measure(function):
    """(CPU seconds, peak MB of the process minus the MB before the call), on Linux."""
    ctypes.CDLL(None).malloc_trim(0)                       # else memory freed before would not count when reused
    before = resident('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')
    began = time.process_time()
    function()
    return time.process_time() - began, resident('VmHWM') - before
