"""Memory that runs out: a sentence with the flags that need less, and with the command that goes on."""
import re
import shlex

import pytest
import torch

import Retrieve_Images
from tests.helpers import after_training, folder_of, rows_of
from training_step import TrainingStep
from utilities import errors, processes
from utilities.errors import OutOfMemory

FEW = ['--evaluation_metrics', 'e_recall@1']
OF_CUDA = ('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.19 GiB '
           'is free. Process 1 has 77.9 GiB memory in use.')


def too_much(*arguments, **options):
    """What torch raises on the CPU."""
    torch.empty(1 << 60)


def too_much_on_a_gpu(*arguments):
    raise torch.OutOfMemoryError(OF_CUDA)


def assert_says(error, *flags):
    assert 'Traceback' not in error and 'Memory ran out' in error
    assert all(f'{flag} ' in error or f'{flag},' in error or f'{flag}.' in error for flag in flags), error


@pytest.mark.parametrize('raising, n_processes, flags, smaller', [
    (too_much, 1, [], ' --micro_bs 6'), (too_much_on_a_gpu, 1, [], ' --micro_bs 6'), (too_much, 4, [], ' --micro_bs 1'),
    (too_much, 1, ['--micro_bs', '1', '--bs', '4', '--samples_per_class', '2'], '')])
def test_memory_that_runs_out_in_training_is_a_sentence_with_the_command_that_goes_on(
        raising, n_processes, flags, smaller, quick, run, monkeypatch, tmp_path, capsys):
    update = TrainingStep.update

    def failing(self, loss):
        if self.of_step.number < 4:
            return update(self, loss)
        patch.setattr(processes, 'count', lambda: n_processes)                       # in the second epoch
        raising()

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, 'update', failing)
        assert run(*quick, *FEW, *flags) == 1
    error, folder = capsys.readouterr().err, folder_of(tmp_path)
    assert_says(error, '--bs', '--micro_bs', '--amp')
    command = re.search(r'To continue: python main.py (.*)', error)[1]
    assert command == f'--resume {folder}{smaller}' and run(*shlex.split(command)) == 0
    assert [row['epoch'] for row in rows_of(folder)] == ['0', '1', '2']


def test_memory_that_runs_out_before_or_in_an_evaluation_is_a_sentence(
        quick, run, patterns, monkeypatch, tmp_path, capsys):
    assert run(*quick, *FEW, '--n_epochs', '0') == 0
    folder, photos = folder_of(tmp_path), patterns / 'images' / 'class_00'
    index = ['index', str(folder), str(photos), '--out', str(tmp_path / 'index'), '--device', 'cpu', '--kernels', '0']
    monkeypatch.setattr(torch.nn.functional, 'normalize', too_much)
    for call, *arguments in ((run, *quick, *FEW, '--group', 'other'), (run, '--evaluate', folder),
                             (after_training, folder, 'embeddings', tmp_path / 'a.npz')):
        assert call(*arguments) == 1
        assert_says(capsys.readouterr().err, '--eval_bs')
    assert Retrieve_Images.main(index) == 1
    error = capsys.readouterr().err
    assert_says(error, '--bs')
    assert '--micro_bs' not in error


@pytest.mark.parametrize('error', [
    torch.OutOfMemoryError(OF_CUDA), RuntimeError('MPS backend out of memory (MPS allocated: 8.00 GB, other: 1 GB)'),
    RuntimeError('CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported'), MemoryError(),
    RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`'),
    RuntimeError('Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n'
                 "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
])
def test_memory_of_every_device_is_recognised(error):
    with pytest.raises(OutOfMemory) as caught, errors.explained():
        raise error
    assert len(str(caught.value).splitlines()) == 1 and 'Traceback' not in str(caught.value)
