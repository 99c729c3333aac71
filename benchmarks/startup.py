"""
Processor time from the start of a command to its end, where nothing is trained, against the import of torch alone.

python -m benchmarks.startup
"""
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import Row

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
LITTLE = 0.2                                                      # of torch's import, for a command without it
MORE = 0.7                                                        # seconds that a command may take beyond torch
BARE = {'python': ['-c', ''], 'torch': ['-c', 'import torch']}
COMMANDS = {'main.py --help': ['main.py', '--help'],
            'Launch_Runs.py --dry_run': ['Launch_Runs.py', 'run_scripts/Omniglot_Runs.sh', '--dry_run'],
            'Result_Evaluations.py, one run': ['Result_Evaluations.py', '--runs', '{runs}']}
STATUS = ['Launch_Runs.py', 'Revisit_Runs.sh', '--status']
WITHOUT_TORCH = {f'{script} --help': [script, '--help'] for script in (
    'Launch_Runs.py', 'Result_Evaluations.py', 'Hyperparameter_Search.py', 'Evaluate_Ensemble.py')} | {
    'Launch_Runs.py --status, 335 runs': STATUS}


def processor_time(arguments):
    """Seconds of a process with these arguments of Python, and of the processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=os.environ | {'OMP_NUM_THREADS': '1'}, check=True,
                   capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(rounds=ROUNDS):
    """{command: median seconds}, the commands in turn."""
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder))
        processor_time(STATUS)                                    # checks the lines, which later calls need not
        commands = {name: [argument.format(runs=folder) for argument in arguments]
                    for name, arguments in (BARE | COMMANDS | WITHOUT_TORCH).items()}
        taken = {name: [] for name in commands}
        for _ in range(rounds):
            for name, arguments in commands.items():
                taken[name].append(processor_time(arguments))
    return {name: median(times) for name, times in taken.items()}


def write_run(folder):
    """The records of one run of the demo's network, without training: a table of one row."""
    quick = ['--dataset', 'glyphs', '--arch', 'conv4_normalize', '--not_pretrained', '--n_epochs', '0',
             '--no_train_metrics', '--device', 'cpu', '--pictures', 'none', '--save_path', str(folder)]
    processor_time(['main.py', *quick])


def short():
    seconds = measure(5)
    for name in COMMANDS:
        yield Row(f'{name}; import torch, + {MORE} s', seconds[name], seconds['torch'] + MORE, 1.0)
    for name in WITHOUT_TORCH:
        yield Row(f'{name}; import torch', seconds[name], seconds['torch'], LITTLE)


def main():
    seconds = measure()
    print(f'{"processor seconds":<34}{"":>7}{"over torch":>12}')
    for name, taken in seconds.items():
        print(f'{name:<34}{taken:>7.2f}{taken / seconds["torch"]:>12.2f}')


if __name__ == '__main__':
    main()
