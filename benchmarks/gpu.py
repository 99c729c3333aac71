"""
All benchmarks and tests that need a GPU, the most important first. Run this first on a machine with a GPU.

python -m benchmarks.gpu [PART ...]
python -m benchmarks.gpu --device cpu --quick     runs every part on the CPU at tiny sizes, to test this script

Each part runs in a process of its own, with a time limit. Times are wall-clock seconds between synchronisations.
pytorch-metric-learning and faiss are compared if installed.
"""
import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch

import evaluation
from benchmarks import figures, step
from benchmarks.embeddings import SIZES, embeddings
from benchmarks.evaluation import peers
from benchmarks.figures import Row
from benchmarks.runs import draw_classes
from evaluation import clustering
from records import reading
from utilities import errors, stopping
from utilities.errors import RunFailed, UserError

ROOT = Path(__file__).parents[1]
COMPILING = 60               # seconds that compiling a step may take
N_PROCESSES = 2
METRICS = ['precision_at_1', 'r_precision', 'map_at_r', 'e_recall@10', 'e_recall@1000', 'mAP']
TOLERANCE = 1e-6             # largest difference of a metric on the GPU from the CPU's
SYNCHRONISED = 'called a synchronizing CUDA operation'               # torch's words
# (loss, miner): how often the host waits in a step, by the list in docs/development.md
WAITS = {('multisimilarity', 'none'): 0, ('proxyanchor', 'none'): 0, ('margin', 'distance'): 1,
         ('triplet', 'semihard'): 1}


def tests(run):
    """make test-gpu. One is added to the number of failed tests, which should be 0."""
    counted = {'PASSED': 0, 'FAILED': 0, 'ERROR': 0}
    with subprocess.Popen(['bash', str(ROOT / 'tests' / 'gpu.sh')], env=os.environ | {'PYTHON': sys.executable},
                          stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(f'  {line}', end='', file=sys.stderr, flush=True)
            for word in re.findall(r'\[ *\d+%\] (PASSED|FAILED|ERROR) ', line):
                counted[word] += 1
    failed = counted['FAILED'] + counted['ERROR']
    yield Row(f'1 + failed tests of make test-gpu, {counted["PASSED"]} passed; 1', 1 + failed, 1, 1.0)
    if process.returncode not in (0, 1):
        raise RunFailed(f'make test-gpu ended with {process.returncode}')


def steps(run):
    """A training step beside a bare loop, in PyTorch's precision and in full float32; the share of loss and miner."""
    case = step.Case(run.flags)
    ours = step.measure({'step': case.step})['step']
    yield Row(f"training step, {run.job}, PyTorch's precision; bare loop", ours, step.bare_loop(run.flags)[0], 1.05)
    parts = case.parts()
    yield Row(f'loss and miner, forward, {run.job}; the whole step', parts['miner'] + parts['loss without miner'],
              sum(parts.values()), 0.1)
    full = step.Case([*run.flags, '--tf32', 'false'])
    peer = step.measure({'step': full.step})['step']
    yield Row(f"training step, {run.job}, PyTorch's precision; --tf32 false", ours, peer, 1.0)


def waits(run):
    """How often the host waits for the GPU in a step; on the CPU, never. One is added to both numbers: most are 0."""
    for (loss, miner), listed in WAITS.items():
        case = step.Case([*run.flags, '--loss', loss, '--batch_mining', miner])
        for _ in range(step.WARM_UP):                          # the first steps set up things
            case.step()
        counting = synchronisations() if run.device.type == 'cuda' else contextlib.nullcontext([])
        with counting as found:
            case.step()
        yield Row(f'1 + waits of a step, {loss}, miner {miner}; 1 + those listed', 1 + len(found), 1 + listed, 1.0)


@contextlib.contextmanager
def synchronisations():
    """Yields a list that contains, after the block, the warnings of all synchronisations with an NVIDIA GPU in it."""
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode('default')
    found += [str(warning.message) for warning in caught if SYNCHRONISED in str(warning.message)]


def half(run):
    """A training step in bfloat16, and its memory, beside float32."""
    cases = [step.Case([*run.flags, *flags]) for flags in (['--amp', 'bfloat16'], [])]
    seconds = step.measure({number: case.step for number, case in enumerate(cases)})
    yield Row(f'training step, {run.job}, --amp bfloat16; float32', *seconds.values(), 0.6)
    memory = [case.memory() for case in cases]
    yield Row(f'training step, {run.job}, --amp bfloat16, MiB; float32', *memory, 0.8)


def runs(run):
    """Several runs at once by Launch_Runs.py, beside one: the time of an epoch, divided by the number of runs."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        draw_classes(folder / 'images', run.bs, 2, run.side)   # half of them to train on, two images of each per batch
        together, alone = (median(seconds_of_epochs(run, folder, n)) for n in (run.n_runs, 1))
        yield Row(f'epoch of {run.n_steps} steps per run, {run.n_runs} runs at once; one run alone',
                  together / run.n_runs, alone, 1.0)


def seconds_of_epochs(run, folder, n):
    """The seconds of the epochs of n runs at once, without the first, which includes the start."""
    flags = ['--dataset folder --source_path', str(folder), '--not_pretrained --pictures none --n_epochs 3',
             '--eval_every 3 --no_train_metrics --check_untrained_accuracy false --iterations_per_epoch',
             str(run.n_steps), '--save_path', str(folder / f'{n}_runs'), '--input_size', str(run.side), '--bs',
             str(run.bs), *run.of_runs]
    lines = [f'python main.py {" ".join(flags)} --group run --seed {seed}\n' for seed in range(n)]
    (folder / f'{n}.sh').write_text(''.join(lines))
    slots = ['--gpus', '0', '--per_gpu', str(n)] if run.device.type == 'cuda' else ['--workers', str(n)]
    subprocess.run([sys.executable, 'Launch_Runs.py', str(folder / f'{n}.sh'), *slots], cwd=ROOT, check=True,
                   stdout=sys.stderr)
    for log in (folder / f'{n}_runs').glob('*/*/log.csv'):
        yield from (row['seconds'] for row in reading.read_rows(log) if row['epoch'] == 2)


def ranking(run):
    """Ranking on the GPU, beside AccuracyCalculator, faiss, and the CPU, which must give the same metrics."""
    for dim in run.dims:
        points, labels, _ = embeddings(*run.size, dim)
        moved = points.to(run.device)
        job = f'ranking, {len(points):,} x {dim}'
        ours, found = timed(partial(evaluation.compute, METRICS, moved, labels, backend='torch'))
        for name, function in libraries(moved, labels).items():
            yield Row(f'{job}; {name}', ours, timed(function)[0], 0.5)
        peer, expected = timed(partial(evaluation.compute, METRICS, points, labels))
        yield Row(f'{job}; on the CPU, {torch.get_num_threads()} threads', ours, peer, 1.0)
        for name in METRICS:
            if abs(found[name] - expected[name]) > TOLERANCE:
                raise RunFailed(f'{job}: {name} is {found[name]} on the GPU, {expected[name]} on the CPU')


def libraries(moved, labels):
    """The peers of benchmarks.evaluation, where both are installed."""
    try:
        return peers(moved, labels)
    except (ImportError, UserError) as error:
        print(f'ranking is not compared with faiss and pytorch-metric-learning: {error}', file=sys.stderr)
        return {}


def clusters(run):
    """k-means on the GPU, beside the CPU, which uses faiss if it is installed."""
    for dim in run.dims:
        points, labels, _ = embeddings(*run.size, dim)
        k = int(labels.max()) + 1
        ours, _ = timed(partial(clustering.kmeans_torch, points.to(run.device), k, 0))
        peer, _ = timed(partial(clustering.kmeans, points, k, 0))
        yield Row(f'k-means, {len(points):,} x {dim}; on the CPU, {torch.get_num_threads()} threads', ours, peer, 0.5)


def timed(function):
    """(median seconds of three calls, by step.now(); the result), after a call without timing."""
    taken = []
    function()
    for _ in range(3):
        began = step.now()
        result = function()
        taken.append(step.now() - began)
    return median(taken), result


def processes(run):
    """A batch that two processes share, on NCCL, beside one process."""
    if run.device.type == 'cuda' and torch.cuda.device_count() < N_PROCESSES:
        raise UserError('two processes need two GPUs, and there is one')
    shared, _ = step.measure_processes(N_PROCESSES, run.flags)
    alone = step.measure({'step': step.Case(run.flags).step})['step']
    yield Row(f'training step, {run.job}, {N_PROCESSES} processes; one process', shared, alone, 0.75)


def compiled(run):
    """How long compiling a step takes, at most COMPILING seconds; then the compiled step, beside the plain one."""
    plain = step.Case(run.flags)
    began = time.monotonic()
    limit = threading.Timer(COMPILING, end_compiling, [run.job])
    limit.daemon = True
    limit.start()
    case = step.Case([*run.flags, '--compile'])
    case.step()
    limit.cancel()
    yield Row(f'compiling a training step, {run.job}; its limit', time.monotonic() - began, COMPILING, 1.0)
    seconds = step.measure({'compiled': case.step, 'plain': plain.step})
    yield Row(f'training step, {run.job}, --compile; without', *seconds.values(), 1.0)


def end_compiling(job):
    """Prints a row that says that compiling exceeded its limit, and ends this process."""
    row = Row(f'compiling a training step, {job}, not done when ended; its limit', COMPILING + 1, COMPILING, 1.0)
    figures.print_rows([row])
    os._exit(0)


# {name: (generator of its Rows, time limit in seconds)}
PARTS = {'tests': (tests, 250), 'step': (steps, 90), 'ranking': (ranking, 120), 'waits': (waits, 60),
         'bfloat16': (half, 60), 'runs': (runs, 150), 'clusters': (clusters, 60), 'processes': (processes, 90),
         'compile': (compiled, 120)}


def prepare(options):
    """The settings that the parts read: device, flags of main.py, name of the step, sizes of evaluation and runs."""
    if options.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('there is no NVIDIA GPU here, or this PyTorch cannot use it; --device cpu --quick tests this '
                        'script without one')
    flags = ['--device', options.device] + ['--bs', '8'] * options.quick
    network = 'resnet50, batch of 112' if options.device == 'cuda' else 'conv4'
    run = SimpleNamespace(device=torch.device(options.device), flags=flags, job=network, size=SIZES['SOP'],
                          dims=(128, 512), n_runs=8, n_steps=27, side=224, bs=112, of_runs=['--kernels', '1'])
    if options.quick:
        vars(run).update(size=(300, 60, 8, 0), dims=(4, 8), n_runs=2, n_steps=2, side=32, bs=8,
                         of_runs=['--kernels', '0', '--arch', 'conv4_normalize'])
    return run


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.gpu', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='*', choices=[*PARTS, []], metavar='PART',
                        help=f'{", ".join(PARTS)}; all by default')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='where to run')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, whose times mean nothing')
    parser.add_argument('--rows', action='store_true', help='print the rows of one part as JSON, measured here')
    options = parser.parse_args(arguments)
    stopping.install()
    run = prepare(options)
    if options.rows:
        stopping.end_with_parent()
        part, = options.parts
        return figures.print_rows(PARTS[part][0](run))
    command = [sys.executable, '-m', 'benchmarks.gpu', '--rows', '--device', options.device]
    command += ['--quick'] * options.quick
    benchmarks = {f'gpu {part}': ([*command, part], PARTS[part][1]) for part in options.parts or PARTS}
    name = torch.cuda.get_device_name() if options.device == 'cuda' else None
    figures.measure_all(benchmarks, figures.machine(name))


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks.gpu', lambda: main(sys.argv[1:])))
