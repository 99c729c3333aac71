"""
Everything that needs a GPU, in less than ten minutes: the first thing to run where one can be had.

python -m benchmarks.gpu [PART ...] [--json FILE]
python -m benchmarks.gpu --device cpu --quick     runs every part on the CPU at tiny sizes, to test this script

Times are wall-clock seconds between synchronisations. pytorch-metric-learning and faiss are compared if installed.
"""
import argparse
import contextlib
import sys
import time
import traceback
import warnings
from statistics import median
from types import SimpleNamespace

import torch

import evaluation
from benchmarks import Row, figures, step
from benchmarks.embeddings import SIZES, embeddings
from benchmarks.evaluation import peers
from evaluation import clustering
from utilities import errors, stopping
from utilities.errors import RunFailed, UserError

LAST = 480                   # seconds after the start from which no further part begins
N_PROCESSES, RECALL = 2, 0.53
METRICS = ['precision_at_1', 'r_precision', 'map_at_r', 'e_recall@10', 'e_recall@1000', 'mAP']
SYNCHRONISED = 'called a synchronizing CUDA operation'               # torch's words
TOLERANCE = 1e-6             # largest difference of a metric on the GPU from the CPU's
# (loss, miner): how often the host waits in a step, by the list in docs/development.md
WAITS = {('multisimilarity', 'none'): 0, ('proxyanchor', 'none'): 0, ('margin', 'distance'): 1,
         ('triplet', 'semihard'): 1}


def steps(run):
    """A training step beside a bare loop, and the share of the loss and the miner in it."""
    case = step.Case(run.flags)
    seconds = step.measure({'step': case.step, 'bare': case.bare})
    yield Row(f'training step, {run.job}; bare loop', median(seconds['step']), median(seconds['bare']), 1.1)
    parts = case.parts()
    yield Row(f'loss and miner, forward, {run.job}; the whole step', parts['miner'] + parts['loss without miner'],
              sum(parts.values()), 0.1)


def waits(run):
    """How often the host waits for the GPU in a step. One is added to both numbers, since most are 0."""
    if run.device.type != 'cuda':
        print('  on the CPU, nothing waits: no waits are counted', file=sys.stderr)
    for (loss, miner), listed in WAITS.items():
        case = step.Case([*run.flags, '--loss', loss, '--batch_mining', miner])
        for _ in range(step.WARM_UP):                          # the first steps set up things
            case.step()
        with synchronisations(run.device) as found:
            case.step()
        yield Row(f'1 + waits of a step, {loss}, miner {miner}; 1 + those listed', 1 + len(found), 1 + listed, 1.0)


@contextlib.contextmanager
def synchronisations(device):
    """
    Gives a list, which has the warnings of all synchronisations with the GPU after the block; none on the CPU. The
    warning about the debug mode itself, which torch prints once, does not count.
    """
    found, on_gpu = [], device.type == 'cuda'
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        if on_gpu:
            torch.cuda.set_sync_debug_mode('warn')
        try:
            yield found
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode('default')
    found += [str(warning.message) for warning in caught if SYNCHRONISED in str(warning.message)]


def half(run):
    """A training step in bfloat16, and its memory, beside float32."""
    (ours, plain), (memory, plain_memory) = with_flags(run, '--amp', 'bfloat16')
    yield Row(f'training step, {run.job}, --amp bfloat16; float32', ours, plain, 0.6)
    yield Row(f'training step, {run.job}, --amp bfloat16, MiB; float32', memory, plain_memory, 0.8)


def compiled(run):
    """A compiled training step, beside the plain one."""
    (ours, plain), _ = with_flags(run, '--compile')
    yield Row(f'training step, {run.job}, --compile; without', ours, plain, 1.0)


def with_flags(run, *flags):
    """Median seconds and MiB of a training step with these flags and without: (with, without), (with, without)."""
    cases = [step.Case([*run.flags, *flags]), step.Case(run.flags)]
    seconds = step.measure({number: case.step for number, case in enumerate(cases)})
    return [median(times) for times in seconds.values()], [case.memory(case.step) for case in cases]


def processes(run):
    """A batch that two processes share, on NCCL, beside one process."""
    if run.device.type == 'cuda' and torch.cuda.device_count() < N_PROCESSES:
        raise UserError('two processes need two GPUs, and there is one')
    shared, _ = step.measure_processes(N_PROCESSES, run.flags)
    alone = median(step.measure({'step': step.Case(run.flags).step})['step'])
    yield Row(f'training step, {run.job}, {N_PROCESSES} processes; one process', shared, alone, 0.75)


def ranking(run):
    """Ranking on the GPU, beside AccuracyCalculator, faiss, and the CPU, which must give the same metrics."""
    for dim in run.dims:
        points, labels, _ = embeddings(*run.size, dim, RECALL)
        moved, job, found = points.to(run.device), f'ranking, {len(points):,} x {dim}', {}
        ours = timed(lambda: found.update(                                                     # noqa: B023
            ours=evaluation.compute(METRICS, moved, labels, backend='torch')), 3)              # noqa: B023
        peer = timed(lambda: found.update(cpu=evaluation.compute(METRICS, points, labels)))    # noqa: B023
        for name in METRICS:
            if abs(found['ours'][name] - found['cpu'][name]) > TOLERANCE:
                raise RunFailed(f'{job}: {name} is {found["ours"][name]} on the GPU, {found["cpu"][name]} on the CPU')
        yield Row(f'{job}; on the CPU, {torch.get_num_threads()} threads', ours, peer, 1.0)
        for name, function in libraries(moved, labels).items():
            yield Row(f'{job}; {name}', ours, timed(function), 0.5)


def libraries(moved, labels):
    """The peers of benchmarks.evaluation, where both are installed."""
    try:
        return peers(moved, labels)
    except ImportError:
        print('faiss is not installed: ranking is not compared with faiss and pytorch-metric-learning', file=sys.stderr)
    except UserError as error:
        print(error, file=sys.stderr)
    return {}


def clusters(run):
    """k-means on the GPU, beside the CPU, which uses faiss if it is installed."""
    for dim in run.dims:
        points, labels, _ = embeddings(*run.size, dim, RECALL)
        moved, k = points.to(run.device), int(labels.max()) + 1
        ours = timed(lambda: clustering.kmeans_torch(moved, k, 0), 3)                          # noqa: B023
        peer = timed(lambda: clustering.kmeans(points, k, 0))                                  # noqa: B023
        yield Row(f'k-means, {len(points):,} x {dim}; on the CPU, {torch.get_num_threads()} threads', ours, peer, 0.5)


def timed(function, rounds=1):
    """Median seconds of a call, as step.now() tells them, after a first call without timing if there are several."""
    taken = []
    for _ in range(rounds + (rounds > 1)):
        began = step.now()
        function()
        taken.append(step.now() - began)
    return median(taken[-rounds:])


PARTS = {'step': steps, 'waits': waits, 'bfloat16': half, 'compile': compiled, 'processes': processes,
         'ranking': ranking, 'clusters': clusters}


def prepare(options):
    """What the parts read: device, flags of main.py, a name of the step, and the sizes of the evaluation."""
    if options.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('there is no NVIDIA GPU here, or this PyTorch cannot use it; --device cpu --quick tests this '
                        'script without one')
    flags = ['--device', options.device] + ['--bs', '8'] * options.quick
    network = 'resnet50, batch of 112' if options.device == 'cuda' else 'conv4'
    return SimpleNamespace(device=torch.device(options.device), flags=flags, job=network,
                           size=(300, 60, 8, 0) if options.quick else SIZES['SOP'],
                           dims=(4, 8) if options.quick else (128, 512))


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.gpu', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='*', choices=[*PARTS, []], metavar='PART',
                        help=f'{", ".join(PARTS)}; all by default')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='where to run')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, whose times mean nothing')
    parser.add_argument('--json', metavar='FILE', help='also write the rows and the machine to FILE')
    options = parser.parse_args(arguments)
    stopping.install()
    run, rows, failed, began = prepare(options), [], [], time.monotonic()
    name = torch.cuda.get_device_name() if options.device == 'cuda' else None
    machine = figures.machine(torch.get_num_threads(), name)
    if options.json:
        figures.check(options.json, machine)
    for part in options.parts or PARTS:
        passed = time.monotonic() - began
        print(f'[{passed:.0f} s] {part}{" is not begun, since too little time is left" if passed > LAST else ""}',
              file=sys.stderr, flush=True)
        if passed > LAST:
            failed.append(part)
            continue
        try:
            for row in PARTS[part](run):
                stopping.check()
                rows.append(figures.as_record(f'gpu {part}', row))
                print(f'  {row.job}: {row.ours / row.peer:.2f}', file=sys.stderr, flush=True)
        except UserError as error:
            print(f'  not measured: {error}', file=sys.stderr, flush=True)
        except Exception:                                      # the other parts are measured all the same
            traceback.print_exc()
            failed.append(part)
        if options.json:
            figures.write(options.json, machine, [row for row in rows if row['benchmark'] == f'gpu {part}'])
    print(f'{figures.described(machine)}. Medians of wall-clock seconds where the job names no other unit.\n')
    print(figures.markdown([{'machine': machine, 'rows': rows}]))
    if failed:
        raise RunFailed(f'{", ".join(failed)}: not complete')


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks.gpu', lambda: main(sys.argv[1:])))
