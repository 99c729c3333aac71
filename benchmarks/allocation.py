"""
Processor time and peak memory of a step, with the memory that is freed kept for reuse, and with --system_malloc.

python -m benchmarks.allocation
"""
import json
import resource
import subprocess
import sys
from statistics import median

import torch

import parameters
from benchmarks import Row, losses, networks
from utilities import allocator

ROUNDS, STEPS = 3, 5


def loss():
    batch, labels = losses.random_batch(4096, 4, 128)
    return losses.ours(losses.CASES['multisimilarity'], batch, labels, None, len(batch) // 4)


def network():
    model, optimizer = networks.build('mobilenet_v2', 128, torch.channels_last)
    images = torch.rand(56, 3, 128, 128)
    return lambda: networks.train(model, optimizer, images)


JOBS = {'loss multisimilarity, 4,096 x 128': loss, 'training step, mobilenet_v2, 56 images of 128 pixels': network}


def used():
    """Seconds of this process in user mode and in the system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def measure(job, flags):
    """In this process: medians of a step's seconds in user mode and in the system, and the peak memory in MB."""
    torch.set_num_threads(1)
    allocator.keep_freed(parameters.parse(flags))
    step, times = JOBS[job](), []
    for _ in range(STEPS + 2):
        before = used()
        step()
        times.append([after - start for start, after in zip(before, used(), strict=True)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [median(column) for column in zip(*times[2:], strict=True)] + [peak]


def compare(job):
    """Medians over processes: (kept, with --system_malloc), each [user, system, peak]."""
    runs = {'kept': [], '--system_malloc': []}
    for _ in range(ROUNDS):
        for name, found in runs.items():
            command = [sys.executable, '-m', 'benchmarks.allocation', job, *([name] if name.startswith('-') else [])]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return [[median(column) for column in zip(*found, strict=True)] for found in runs.values()]


def short():
    for job in JOBS:
        (user, system, peak), (their_user, their_system, their_peak) = compare(job)
        yield Row(f'{job}; --system_malloc', user + system, their_user + their_system, 0.9)
        yield Row(f'{job}, system time; --system_malloc', system, their_system, 0.25)
        yield Row(f'{job}, MB; --system_malloc', peak, their_peak, 1.6)


def main(arguments):
    if arguments:
        print(json.dumps(measure(arguments[0], arguments[1:])))
        return
    print(f'{"":<54}{"user":>8}{"system":>8}{"MB":>7}')
    for job in JOBS:
        for name, (user, system, peak) in zip(('', '--system_malloc'), compare(job), strict=True):
            print(f'{name or job:<54}{user:>8.3f}{system:>8.3f}{peak:>7.0f}')


if __name__ == '__main__':
    main(sys.argv[1:])
