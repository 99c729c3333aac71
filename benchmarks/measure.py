"""Time and memory of competing functions on the CPU, as the measurements of this folder take them."""
import gc
import os
import time
from statistics import median

import torch

WARM_UP = 3e-3                                            # seconds of processor time, or one call if that takes longer
os.environ.setdefault('KINETO_LOG_LEVEL', '99')           # else the profiler reports its own starts and stops


def median_times(competitors, repeats=9, budget=30.0):
    """
    Args:
        competitors: {name: a function without arguments}.
        repeats:     calls of each that are timed.
        budget:      seconds of processor time after which no other round begins; three rounds are always made.

    Returns: {name: the median processor time of a call, in seconds}. The calls are interleaved: each round times every
    competitor once, so that all of them meet the same disturbances, right after WARM_UP seconds of calls that are not
    timed, so that none finds the caches and the allocator as another one left them. Processor time does not count what
    other processes take away, but adds up threads: torch should use one.
    """
    times = {name: [] for name in competitors}
    started = time.process_time()
    for done in range(repeats):
        if done >= 3 and time.process_time() - started > budget:
            break
        for name, function in competitors.items():
            began = time.process_time()
            while time.process_time() - began < WARM_UP:
                function()
            began = time.process_time()
            function()
            times[name].append(time.process_time() - began)
    return {name: median(taken) for name, taken in times.items()}


def peak_memory(function):
    """The most bytes of CPU tensors that are alive at once during a call of `function`, beyond those before it."""
    function()                                            # what is allocated once, at the first call, does not count
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == '[memory]']
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
