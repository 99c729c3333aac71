"""The processes of one run: evaluation is shared, one of them writes and prints, and they end together."""
import contextlib
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch.distributed.elastic import multiprocessing as elastic

import parts
import training_step
from datasets import loading
from records import lock
from tests.blank.plots import MAIN
from tests.conftest import draw_classes
from tests.helpers import (
    ROOT,
    after_training,
    assert_same_end,
    executed,
    folder_of,
    kept_by,
    rows_of,
    started,
    wait_for,
)
from utilities import processes

# Runs of several processes, as main.py --gpu starts them, but forked from one that has imported everything; each run is
# described by a list: the number of processes, the arguments of main.py, and a statement that process `rank` executes
# before. The launchers wait `grace` seconds for processes that they ask to end. Prints the exit codes of the runs.
FORKER = """
import json, os, sys
import main
from retrieval import actions
from tests import forks
from utilities import errors, processes, stopping

main.parameters.build()
grace, plan = json.loads(sys.argv[1])
for n, arguments, before in plan:
    launcher = os.fork()
    if not launcher:
        forks.install_processes(n)
        stopping.install()
        stopping.GRACE = grace
        command = [sys.executable, f'{forks.HERE}/run_after.py', before, *arguments]
        os._exit(errors.exit_code('main.py', lambda: processes.start(n, command, {})))
    print('code', os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]), flush=True)
"""
# For `before`: calls hook() in process `number` where an epoch after the first one begins.
AT_EPOCH_2 = """
def disturb(number, hook, train_epoch=main.train_epoch):
    def disturbed(opt, built, loader, epoch):
        if epoch == 2 and rank == number:
            hook()
        return train_epoch(opt, built, loader, epoch)
    main.train_epoch = disturbed
def stop_all():
    os.kill(os.getppid(), 15)
    while not stopping.requested:
        pass
def fail():
    raise ZeroDivisionError('of this test')
"""
# For `before`: torch can unpickle nothing that another process sends.
WITHOUT_PICKLE = """
from torch.distributed import distributed_c10d
distributed_c10d._tensor_to_object = distributed_c10d._unpickler = None
"""
FEW = ['--iterations_per_epoch', '2', '--evaluation_metrics', 'e_recall@1', 'nmi', 'rho_spectrum@0']


def runs(folder, *plan, seconds=1200, grace=3):
    """Runs the plan [(n, arguments, before)]; returns ([exit code of each], output, errors), of files in `folder`."""
    plan = [[n, [str(argument) for argument in arguments], ''.join(before)] for n, arguments, *before in plan]
    code, out, error = executed(folder, FORKER, json.dumps([grace, plan]), seconds=seconds)
    assert code == 0, error
    codes = re.findall(r'^code (.*)$', out, re.MULTILINE)
    assert len(codes) == len(plan), out + error
    return list(map(int, codes)), out, error


# For `before`: a process that fails removes the run folder while TensorBoard's first file is being written, if it can.
DURING_START = """
import shutil, time
from tensorboard.summary.writer import event_file_writer
def slow(file, writer=event_file_writer.RecordWriter):
    time.sleep(3)
    return writer(file)
def once_begun(folder, remove=shutil.rmtree, **options):
    while not (folder / 'tensorboard').exists():
        time.sleep(0.1)
    remove(folder, **options)
event_file_writer.RecordWriter = slow
shutil.rmtree = once_begun
"""
OF_NETWORK = 'main.carry_out = actions.carry_out'             # the processes run Evaluate_Network.py


def test_metrics_embeddings_and_pictures_are_those_of_one_process(quick, tmp_path):
    """Of 36 images per split: --bs 30 makes fewer batches than processes, --bs 5 makes eight."""
    flags, whole = [*quick, *FEW, '--n_epochs', '0'], [folder_of(tmp_path, f'run{n}_s1') for n in (1, 3)]
    plan = [(n, [*flags, '--group', f'run{n}', '--pictures', 'spectrum']) for n in (1, 3)]
    plan += [(n, ['--evaluate', whole[0], '--bs', '30', '--eval_reference', 'all', '--pca', '4', '--eval_autocast',
                  'bfloat16', '--no_train_metrics', 'false']) for n in (1, 3)]
    embeddings = ['--bs', '5', '--eval_features', '--eval_normalize', '--splits_to_eval', 'test']
    plan += [(3, [whole[0], 'embeddings', tmp_path / '3.npz', *embeddings], OF_NETWORK),
             (3, [whole[0], 'pictures', tmp_path / 'drawn3'], OF_NETWORK)]
    codes, out, error = runs(tmp_path, *plan)
    assert codes == [0] * len(plan), error
    assert_same_end(*whole)
    assert len(list(whole[0].parent.iterdir())) == 2 == out.count('run folder: ') / 2 == out.count('Done.')
    one, three = (part.splitlines()[1:] for part in re.split(r'^code .*$', out, flags=re.MULTILINE)[2:4])
    assert one == three and one[0].endswith(', epoch 0') and len(one) >= 5
    assert after_training(whole[0], 'embeddings', tmp_path / '1.npz', *embeddings) == 0
    assert after_training(whole[0], 'pictures', tmp_path / 'drawn1') == 0
    files = [np.load(tmp_path / f'{n}.npz') for n in (1, 3)]
    assert len(files[0]['labels']) == 36
    assert all(np.array_equal(files[0][name], files[1][name]) for name in files[0].files)
    names = [sorted(path.name for path in (tmp_path / f'drawn{n}').iterdir()) for n in (1, 3)]
    assert names[0] == names[1] != []


def test_results_of_process_0_may_be_large_and_take_longer_than_a_step(quick, tmp_path):
    results = ('import time\n'
               'from datetime import timedelta\n'
               'processes.TIMEOUT = timedelta(seconds=2)\n'
               'def work(arguments):\n'
               '    processes.run_on_rank_zero(time.sleep, 3)\n'
               '    sizes = [len(processes.run_on_rank_zero("a".__mul__, 20 << 20)) for _ in range(3)]\n'
               '    pairs = processes.run_on_rank_zero(lambda: {"pairs": [(1, 2.5)]})["pairs"]\n'
               '    return 0 if sizes == [20 << 20] * 3 and [*map(tuple, pairs)] == [(1, 2.5)] else 1\n'
               'main.carry_out = work')
    codes, _, error = runs(tmp_path, (3, quick, results))
    assert codes == [0], error


def test_nothing_is_unpickled_that_another_process_sends(quick, tmp_path):
    """What is no JSON is refused where it is sent."""
    codes, _, error = runs(tmp_path, (2, [*quick, *FEW], WITHOUT_PICKLE),
                           (2, quick, 'main.carry_out = lambda arguments: processes.run_on_rank_zero(object)'))
    assert codes == [0, 1] and error.count('TypeError: ') == 1, error


def test_what_the_user_must_change_is_said_once(quick, tmp_path):
    bad = draw_classes(tmp_path / 'bad' / 'images', 12, 6).parent
    (bad / 'images' / 'class_11' / '5.png').write_bytes(b'no image')         # of the test split, in the last batch
    plan = [(3, [*quick, '--los', 'triplet']), (3, [*quick, '--loss', 'triplets']),
            (3, [*quick, '--source_path', bad, *FEW], DURING_START), (2, ['--evaluate', tmp_path / 'nothing']),
            (3, [*quick, *FEW, '--embed_norm', 'batch', '--bs', '4'])]
    codes, _, error = runs(tmp_path, *plan)
    assert codes == [2] * len(plan), error
    lines = error.splitlines()
    assert len(lines) == 5 and all(line.startswith('main.py: error: ') for line in lines), error
    assert '5.png: not a readable image' in lines[2]
    assert '--embed_norm batch needs two images to normalise, and a piece of a batch of --bs 4' in lines[4]
    assert not list((tmp_path / 'runs').rglob('quick*')), 'no folder is left'


def test_a_failure_or_kill_of_any_process_ends_all_and_the_run_can_be_resumed(quick, tmp_path):
    flags, killed = [*quick, *FEW], folder_of(tmp_path, 'killed_s1')
    plan = [(3, [*flags, '--group', 'whole']),
            (2, [*flags, '--group', 'nan', '--lr', '1e30', '--loss', 'npair', '--batch_mining', 'npair']),
            (2, [*flags, '--group', 'bug0'], AT_EPOCH_2, 'disturb(0, fail)'),
            (3, [*flags, '--group', 'bug2'], AT_EPOCH_2, 'disturb(2, fail)'),
            (3, [*flags, '--group', 'killed'], AT_EPOCH_2, 'disturb(1, lambda: os.kill(os.getpid(), 9))'),
            (2, quick, 'os.kill(os.getpid(), 9)'), (3, ['--resume', killed])]
    codes, _, error = runs(tmp_path, *plan)
    assert codes == [0, 1, 1, 1, 1, 1, 0], error
    assert error.count('main.py: the run failed: Epoch 1, step ') == 1 and error.count('the loss is ') == 1
    assert error.count('ZeroDivisionError: of this test') == 2 == error.count('Traceback'), error
    assert error.count('main.py: the run failed: A process of the run was killed by SIGKILL.') == 2, error
    assert_same_end(folder_of(tmp_path, 'whole_s1'), killed)


def test_one_request_to_stop_stops_all_and_one_process_can_resume_the_run(quick, tmp_path):
    """A request to the launcher, and one to a single process."""
    flags, folders = [*quick, *FEW], [folder_of(tmp_path, f'{group}_s1') for group in ('all', 'one')]
    plan = [(2, [*flags, '--group', 'all'], AT_EPOCH_2, 'disturb(1, stop_all)'),
            (2, [*flags, '--group', 'one'], AT_EPOCH_2, 'disturb(1, lambda: os.kill(os.getpid(), 15))'),
            *[(1, ['--resume', folder]) for folder in folders]]
    codes, out, error = runs(tmp_path, *plan)
    assert codes == [130, 130, 0, 0], error
    for folder in folders:
        assert out.count(f'Stopped. To continue: python main.py --resume {folder}') == 1 and len(rows_of(folder)) == 3
        assert not (folder / lock.NAME).exists()


def test_a_process_that_is_too_busy_to_stop_is_killed(quick, tmp_path):
    busy = ('import time\n'
            'def stopped_in_a_long_call():\n'
            '    os.kill(os.getppid(), 2)\n'
            '    time.sleep(600)\n'
            'main.carry_out = lambda arguments: processes.run_on_rank_zero(stopped_in_a_long_call)')
    codes, _, error = runs(tmp_path, (2, quick, busy), seconds=120, grace=0.5)
    assert codes == [130] and error.strip() == 'Stopping; press Ctrl-C again to end at once.', error


def rows_written(folder, n):
    return lambda: (folder / 'log.csv').exists() and len((folder / 'log.csv').read_text().splitlines()) > n


def descendants(pid):
    """The process ids of the processes that this one has started, of those that they have started, and so on."""
    listed = subprocess.run(['ps', '-eo', 'pid=,ppid='], capture_output=True, text=True, check=True).stdout.splitlines()
    children = {}
    for child, parent in (map(int, line.split()) for line in listed):
        children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return set(found[1:])


def listening(pids):
    """The local addresses, in hexadecimal as Linux gives them, at which the processes accept connections."""
    opened = {os.readlink(file) for pid in pids for file in Path(f'/proc/{pid}/fd').iterdir() if file.is_symlink()}
    lines = [line for name in ('tcp', 'tcp6') for line in Path(f'/proc/net/{name}').read_text().splitlines()[1:]]
    found = [line.split() for line in lines]
    return [entry[1].partition(':')[0] for entry in found if entry[3] == '0A' and f'socket:[{entry[9]}]' in opened]


def test_gpu_starts_one_process_for_each_index(quick, tmp_path):
    """On a machine without GPUs, processes on the CPU; no other machine reaches them, none outlives their parent."""
    log, folder = tmp_path / 'printed', folder_of(tmp_path)
    process = started(log, MAIN, *quick, *FEW, '--gpu', '0', '1', '--n_epochs', '500', '--kernels', '1')
    wait_for(rows_written(folder, 2), 600)
    pids = set()
    wait_for(lambda: pids.update(descendants(process.pid)) or len(pids) >= 4, 600)        # two, and their data workers
    if Path('/proc/net/tcp').exists():
        addresses = listening({process.pid, *pids})
        assert len(addresses) >= 3 and {*addresses} == {'0100007F'}, addresses       # the store and each process's gloo
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_running, pids)), 600)
    printed = log.read_text()
    assert 'Traceback' not in printed and f'Stopped. To continue: python main.py --resume {folder}' in printed


def is_running(pid):
    state = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith('Z')


def free_port():
    """A free port below those that the system gives to programs that ask for any: it stays free until it is used."""
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with contextlib.suppress(OSError), socket.create_server(('127.0.0.1', port)):
            return port


def test_after_the_first_process_was_killed_the_other_ends_with_a_sentence(quick, tmp_path):
    """Both were started by hand, so that the first holds the store by which they speak."""
    address = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port())}
    both = [started(tmp_path / f'printed_{rank}', MAIN, *quick, *FEW, '--n_epochs', '500', RANK=str(rank), **address)
            for rank in range(2)]
    wait_for(rows_written(folder_of(tmp_path), 2), 600)
    both[0].kill()
    assert both[1].wait(120) == 1
    printed = (tmp_path / 'printed_1').read_text()
    assert 'Another process of the run was killed or cannot be reached any more.' in printed
    assert 'Traceback' not in printed


def test_torchruns_on_two_machines_train_one_run(quick, tmp_path):
    """Both machines are this one; the run has the bits of two processes that main.py starts."""
    flags = ['--nnodes=2', '--nproc_per_node=1', '--rdzv_backend=c10d', f'--rdzv_endpoint=localhost:{free_port()}',
             '--rdzv_id=meet']
    arguments = [*quick, *FEW, '--n_epochs', '1']
    both = [started(tmp_path / name, ROOT / 'tests' / 'torchrun.py', *flags, 'main.py', *arguments, '--auto_resume')
            for name in ('first', 'second')]
    assert [torchrun.wait(1200) for torchrun in both] == [0, 0], (tmp_path / 'first').read_text()
    assert runs(tmp_path, (2, [*arguments, '--group', 'whole']))[0] == [0]
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path))


def test_the_processes_of_a_run_divide_the_cores(opt, monkeypatch):
    start = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(elastic, 'start_processes', start)
    monkeypatch.setattr(processes.logging, 'disable', lambda: None)
    monkeypatch.setenv('TORCHELASTIC_SIGNALS_TO_HANDLE', '')                                 # which start() sets
    monkeypatch.setattr(processes, 'n_cores', lambda: 16)
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    for n, threads, workers in ((1, '16', 6), (3, '5', 5), (32, '1', 1)):
        with pytest.raises(KeyboardInterrupt):
            processes.start(n, ['main.py'], {})
        variables = start.call_args.args[3]
        assert [variables[number]['OMP_NUM_THREADS'] for number in range(n)] == [threads] * n
        monkeypatch.setattr(processes, 'local_count', lambda n=n: n)
        assert loading.workers(opt(kernels=6)) == workers and loading.workers(opt(kernels=0)) == 0
    monkeypatch.setenv('OMP_NUM_THREADS', '2')                                               # a user's own
    with pytest.raises(KeyboardInterrupt):
        processes.start(3, ['main.py'], {})
    assert start.call_args.args[3][0]['OMP_NUM_THREADS'] == '2'


def test_without_the_variables_of_torchrun_a_sentence_says_what_to_do(quick, run, monkeypatch, capsys):
    monkeypatch.setenv('WORLD_SIZE', '3')
    assert run(*quick) == 2
    assert 'WORLD_SIZE is 3, but the other variables of torchrun are not set' in capsys.readouterr().err


class Own(torch.nn.Module):
    """A part of one's own whose parameter scales the embeddings of each process."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(16))

    def parameter_groups(self):
        return [{'params': [self.scale], 'lr': 1.}]

    def forward(self, embeddings):
        self.sum = self.scale.square().sum().item()
        return embeddings * self.scale


class StepWithOwn(training_step.TrainingStep):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs | {'batch': self.parts.own(outputs['batch'])}


def with_own_part(let_embed=parts.let_embed):
    """Adds the part where docs/state.md says: in parts.build, before the optimizers are selected."""
    def add(opt, built, n_steps):
        built.own = Own()
        if processes.rank():                                      # which the first epoch makes equal
            built.own.scale.data.zero_()
        let_embed(opt, built, n_steps)

    parts.let_embed = add
    training_step.TrainingStep = StepWithOwn


def test_the_parameters_of_an_own_part_are_trained_as_those_of_the_network(quick, tmp_path):
    flags = [*quick, *FEW, '--optim', 'sgd', '--arch', 'conv4_frozen_normalize',]
    before = 'from tests import test_processes; test_processes.with_own_part()'
    codes, _, error = runs(tmp_path, *((n, [*flags, '--group', f'run{n}'], before) for n in (1, 2)))
    assert codes == [0, 0], error
    folders = [folder_of(tmp_path, f'run{n}_s1') for n in (1, 2)]
    one, two = ([kept_by(folder, 'own')['sum'], *[float(row['train_loss']) for row in rows_of(folder)[1:]]]
                for folder in folders)
    assert one == pytest.approx(two, rel=1e-5) and abs(one[0] - 16) > 1e-3
