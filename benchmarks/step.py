"""
Time and memory of a training step, compared with a bare loop in a process of its own (benchmarks/bare_loop.py): in
micro-batches, in mixed precision, compiled, and by two processes. Then the parts of the plain step.

python -m benchmarks.step [FLAG ...]       # flags of main.py instead of the defaults, as --arch conv4 --bs 224

On the CPU, times are processor times, added up over the processes; on GPUs they are wall-clock times between
synchronisations, and two processes need two GPUs.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import architectures
import batch_mining
import configuration
import criteria
import optimization
from benchmarks.measure import peak_memory
from parts import Parts
from training_step import TrainingStep
from utilities import device, exchange, processes
from utilities.errors import UserError
from utilities.image_size import sides
from utilities.randomness import seed_everything

ON_CPU = ['--arch', 'conv4_frozen_normalize', '--input_size', '32', '--device', 'cpu']
ON_GPU = ['--arch', 'resnet50_frozen_normalize']
ROUNDS = 15
WARM_UP = 2


class Case:
    """A network in training with its criterion and optimizer, and a random batch of two images per class."""

    def __init__(self, flags):
        gpu = on_gpu(flags)
        self.opt = opt = configuration.parse(with_defaults(flags))
        opt.device = torch.device('cuda', processes.rank()) if gpu else device.select(opt)
        device.set_arithmetic(opt)
        device.keep_freed()
        seed_everything(opt.seed)
        model = architectures.select(opt)
        self.number = 0
        self.seconds = {}
        if not gpu or opt.amp != 'none':
            model = model.to(memory_format=torch.channels_last)
        size = model.input_size
        opt.n_classes = -(-opt.bs // 2)
        self.images = torch.rand(opt.bs, 3, *sides(size), device=opt.device)
        self.labels = torch.arange(opt.bs) // 2
        miner = batch_mining.select(opt)
        criterion = criteria.select(opt, miner and self.timed('miner', miner)).to(opt.device)
        self.built = Parts(model.to(opt.device), None, criterion, miner)
        self.built.optimizer, _ = optimization.select(opt, model, criterion)
        self.built.step = TrainingStep(opt, self.built)
        model.start_epoch(model.warmup + 1)

    def step(self):
        self.number += 1
        self.built.step(self.images[exchange.part(self.opt.bs)], self.labels, self.labels, self.number, 1)

    def timed(self, name, function):
        """The function; the time of each call is noted under this name."""
        def call(*arguments, **named):
            began = now()
            result = function(*arguments, **named)
            self.seconds.setdefault(name, []).append(now() - began)
            return result
        return call

    def memory(self):
        """The peak memory of a step in MiB, without the weights and the state of the optimizer."""
        return memory(self.step, self.opt.device)

    def parts(self):
        """{part of the plain step: median seconds}."""
        step = self.built.step
        optimizer = self.built.optimizer
        step.embed = self.timed('forward', step.embed)
        step.loss = self.timed('loss', step.loss)
        step.update = self.timed('update', step.update)
        optimizer.step = self.timed('optimizer', optimizer.step)
        self.seconds.clear()
        for _ in range(ROUNDS):
            self.timed('step', self.step)()
        of = {name: median(times) for name, times in self.seconds.items()}
        miner = of.get('miner', 0.0)
        return {'forward': of['forward'], 'miner': miner, 'loss without miner': of['loss'] - miner,
                'optimizer': of['optimizer'], 'clipping': of['update'] - of['optimizer'],
                'backward and gradient norm': of['step'] - of['forward'] - of['loss'] - of['update']}


def with_defaults(flags):
    """Flags of main.py, after the defaults of this benchmark."""
    return ['--not_pretrained', *(ON_GPU if on_gpu(flags) else ON_CPU), *flags]


def memory(function, where):
    """The peak memory of a call on this device in MiB, beyond what is allocated before."""
    if where.type != 'cuda':
        return peak_memory(function) / 2 ** 20
    before = torch.cuda.memory_allocated(where)
    torch.cuda.reset_peak_memory_stats(where)
    function()
    return (torch.cuda.max_memory_allocated(where) - before) / 2 ** 20


def bare_loop(flags):
    """(seconds per step, peak memory in MiB) of the bare loop, in a process of its own with as many threads."""
    done = subprocess.run([sys.executable, '-m', 'benchmarks.bare_loop', *flags], cwd=Path(__file__).parents[1],
                          env=os.environ | {'OMP_NUM_THREADS': str(torch.get_num_threads())}, stdout=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


def on_gpu(flags):
    """Whether a Case runs on an NVIDIA GPU: if there is one, unless the flags have --device cpu."""
    return torch.cuda.is_available() and configuration.parse(flags).device != 'cpu'


def now():
    """Seconds of processor time; of wall-clock time once the GPU is done, if there is one."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(functions):
    """{name: function} -> {name: median seconds of ROUNDS calls}; the functions are called in turn."""
    for function in functions.values():
        for _ in range(WARM_UP):
            function()
    seconds = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            began = now()
            function()
            seconds[name].append(now() - began)
    return {name: median(taken) for name, taken in seconds.items()}


def shared(rank, n, flags, folder):
    """A process of n that share each batch: saves its seconds per step and its peak memory."""
    torch.set_num_threads(1)
    gpu = on_gpu(flags)
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group('cpu:gloo,cuda:nccl' if gpu else 'gloo', f'file://{folder}/group', rank=rank, world_size=n)
    case = Case(flags)
    torch.save((measure({'step': case.step})['step'], case.memory()), f'{folder}/{rank}.pt')
    dist.destroy_process_group()


def measure_processes(n, flags):
    """(seconds per step, peak memory of a process in MiB) of n processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(shared, (n, flags, folder), n)
        seconds, memory = zip(*(torch.load(f'{folder}/{rank}.pt') for rank in range(n)), strict=True)
    return max(seconds) if on_gpu(flags) else sum(seconds), max(memory)


def line(name, seconds, ratio, n_images, memory):
    print(f'{name:<38}{seconds * 1e3:>10.1f}{ratio:>8.2f}{n_images / seconds:>12.0f}{memory:>12.0f}', flush=True)


def main(flags):
    torch.set_num_threads(1)
    plain = Case(flags)
    opt = plain.opt
    gpus = torch.cuda.device_count() if on_gpu(flags) else 0
    quarter = ['--micro_bs', str(-(-opt.bs // 4))]
    half = ['--amp', 'bfloat16']
    print(f'torch {torch.__version__}, {opt.device}, --arch {opt.arch} --bs {opt.bs} --loss {opt.loss} '
          f'--batch_mining {opt.batch_mining}, images of {plain.images.shape[-1]} pixels, median of {ROUNDS} rounds')
    cases = {'plain step': plain}
    scaled = [['--amp', 'float16']] if gpus else []                          # a hundred times as slow on the CPU
    for more in (quarter, half, [*quarter, *half], *scaled, ['--compile'], [*half, '--compile']):
        try:
            cases[' '.join(more)] = Case([*flags, *more])
        except UserError as error:
            print(error)
    bare, bare_memory = bare_loop(flags)
    seconds = measure({name: case.step for name, case in cases.items()})
    print(f'{"":<38}{"ms":>10}{"ratio":>8}{"images/s":>12}{"peak MiB":>12}')
    line('bare loop', bare, 1, opt.bs, bare_memory)
    for name, taken in seconds.items():
        line(name, taken, taken / bare, opt.bs, cases[name].memory())
    if gpus == 1:
        print('2 processes: need two GPUs')
    else:
        for more in ([], ['--micro_bs', str(-(-opt.bs // 8))]):
            taken, memory = measure_processes(2, [*flags, *more])
            line(' '.join(['2 processes', *more]), taken, taken / bare, opt.bs, memory)
    parts = plain.parts()
    print('the plain step: ' + ', '.join(f'{name} {taken / sum(parts.values()):.1%}' for name, taken in parts.items()))


if __name__ == '__main__':
    main(sys.argv[1:])
