"""
Time and memory of a training step, compared with a bare loop of forward, backward and optimizer step on a batch in
memory: in micro-batches, in mixed precision, compiled, and by two processes. Then, what the plain step consists of.

python -m benchmarks.step [FLAG ...]       # flags of main.py instead of the defaults, as --arch conv4 --bs 224

On the CPU, times are processor times, added up over the processes; on GPUs they are wall-clock times between
synchronisations, and two processes need two GPUs.
"""
import sys
import tempfile
import time
from statistics import median

import torch
import torch.distributed as dist

import architectures
import batch_mining
import criteria
import optimization
import parameters
import training_step
from benchmarks.measure import peak_memory
from parts import Parts
from utilities import device, exchange, processes
from utilities.errors import UserError
from utilities.randomness import seed_everything

ON_CPU = ['--arch', 'conv4_frozen_normalize', '--input_size', '32', '--device', 'cpu']
ON_GPU = ['--arch', 'resnet50_frozen_normalize']
ROUNDS, WARM_UP = 9, 3


class Case:
    """A network in training with its criterion and optimizer, and a random batch of two images per class."""

    def __init__(self, flags):
        gpu = torch.cuda.is_available()
        self.opt = opt = parameters.parse(['--not_pretrained', *(ON_GPU if gpu else ON_CPU), *flags])
        opt.device = torch.device('cuda', processes.rank()) if gpu else device.select(opt)
        device.set_arithmetic(opt)
        seed_everything(opt.seed)
        model, self.number, self.seconds = architectures.select(opt), 0, {}
        if not gpu or opt.amp != 'none':
            model = model.to(memory_format=torch.channels_last)
        size = model.input_size
        opt.n_classes = -(-opt.bs // 2)
        self.images, self.labels = torch.rand(opt.bs, 3, size, size, device=opt.device), torch.arange(opt.bs) // 2
        miner = batch_mining.select(opt)
        criterion = criteria.select(opt, miner and self.timed('miner', miner)).to(opt.device)
        self.built = Parts(model.to(opt.device), None, criterion, miner)
        self.built.optimizer, _ = optimization.select(opt, model, criterion)
        self.built.step = training_step.TrainingStep(opt, self.built)
        model.start_epoch(warming_up=False)

    def bare(self):
        model, optimizer = self.built.model, self.built.optimizer
        embeddings, features = model(self.images)
        loss = self.built.criterion(batch=embeddings, labels=self.labels.to(self.opt.device), batch_features=features,
                                    f_embed=model.f_embed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def step(self):
        self.number += 1
        self.built.step(self.number, self.images[exchange.part(self.opt.bs)], self.labels)

    def now(self):
        if self.opt.device.type != 'cuda':
            return time.process_time()
        torch.cuda.synchronize(self.opt.device)
        return time.perf_counter()

    def timed(self, name, function):
        """The function, whose time is noted under this name."""
        def call(*arguments, **named):
            began = self.now()
            result = function(*arguments, **named)
            self.seconds.setdefault(name, []).append(self.now() - began)
            return result
        return call

    def measure(self, functions):
        """{name: function} -> {name: median seconds of a call}, in turn."""
        for function in functions.values():
            for _ in range(WARM_UP):
                function()
        self.seconds.clear()
        for _ in range(ROUNDS):
            for name, function in functions.items():
                self.timed(name, function)()
        return {name: median(self.seconds[name]) for name in functions}

    def memory(self, function):
        """The peak memory of a call in MiB, without the weights and the state of the optimizer."""
        if self.opt.device.type != 'cuda':
            return peak_memory(function) / 2 ** 20
        before = torch.cuda.memory_allocated(self.opt.device)
        torch.cuda.reset_peak_memory_stats(self.opt.device)
        function()
        return (torch.cuda.max_memory_allocated(self.opt.device) - before) / 2 ** 20

    def parts(self):
        """{part of the plain step: median seconds}."""
        step, optimizer = self.built.step, self.built.optimizer
        step.embed, step.loss = self.timed('forward', step.embed), self.timed('loss', step.loss)
        step.update = self.timed('update', step.update)
        optimizer.step = self.timed('optimizer', optimizer.step)
        self.measure({'step': self.step})
        of = {name: median(times[-ROUNDS:]) for name, times in self.seconds.items()}
        miner = of.get('miner', 0.0)
        return {'forward': of['forward'], 'miner': miner, 'loss without miner': of['loss'] - miner,
                'optimizer': of['optimizer'], 'clipping': of['update'] - of['optimizer'],
                'backward and gradient norm': of['step'] - of['forward'] - of['loss'] - of['update']}


def shared(rank, n, flags, folder):
    """A process of n that share each batch: saves its seconds per step and its peak memory."""
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group('nccl' if gpu else 'gloo', f'file://{folder}/group', rank=rank, world_size=n)
    case = Case(flags)
    torch.save((case.measure({'step': case.step})['step'], case.memory(case.step)), f'{folder}/{rank}.pt')
    dist.destroy_process_group()


def of_processes(n, flags):
    """(seconds per step, peak memory of a process in MiB) of n processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(shared, (n, flags, folder), n)
        seconds, memory = zip(*(torch.load(f'{folder}/{rank}.pt') for rank in range(n)), strict=True)
    return max(seconds) if torch.cuda.is_available() else sum(seconds), max(memory)


def line(name, seconds, bare, n_images, memory):
    print(f'{name:<38}{seconds * 1e3:>10.1f}{seconds / bare:>8.2f}{n_images / seconds:>12.0f}{memory:>12.0f}',
          flush=True)


def main(flags):
    torch.set_num_threads(1)
    case = Case(flags)
    opt, quarter = case.opt, ['--micro_bs', str(-(-case.opt.bs // 4))]
    times = case.measure({'bare loop': case.bare, 'step': case.step})
    bare = times['bare loop']
    print(f'torch {torch.__version__}, {opt.device}, --arch {opt.arch} --bs {opt.bs} --loss {opt.loss} '
          f'--batch_mining {opt.batch_mining}, images of {case.images.shape[-1]} pixels, median of {ROUNDS} steps')
    print(f'{"":<38}{"ms":>10}{"ratio":>8}{"images/s":>12}{"peak MiB":>12}')
    line('bare loop', bare, bare, opt.bs, case.memory(case.bare))
    line('plain step', times['step'], bare, opt.bs, case.memory(case.step))
    half = [['--amp', 'float16']] if torch.cuda.is_available() else []      # a hundred times as slow on the CPU
    for more in (quarter, ['--amp', 'bfloat16'], *half, ['--compile'], [*quarter, '--amp', 'bfloat16'],
                 ['--amp', 'bfloat16', '--compile']):
        try:
            variant = Case([*flags, *more])
            seconds = variant.measure({'step': variant.step})['step']
        except UserError as error:
            print(f'{" ".join(more):<38}  {error}')
            continue
        line(' '.join(more), seconds, bare, opt.bs, variant.memory(variant.step))
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        print('2 processes: need two GPUs')
    else:
        for more in ([], ['--micro_bs', str(-(-opt.bs // 8))]):
            seconds, memory = of_processes(2, [*flags, *more])
            line(' '.join(['2 processes', *more]), seconds, bare, opt.bs, memory)
    print('the plain step: ' + ', '.join(f'{name} {seconds / times["step"]:.1%}'
                                         for name, seconds in case.parts().items()))


if __name__ == '__main__':
    main(sys.argv[1:])
