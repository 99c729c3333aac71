"""Damaged files, full disks, killed helpers, signals, second writers: a sentence, or a run that ends as undisturbed."""
import contextlib
import errno
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import configuration
import datasets
import Launch_Runs
import main
import Result_Evaluations
from datasets import download
from evaluation.ranking import counting
from records import backends, checkpoint, lock, reading, run_folder, writing
from tests.blank.plots import MAIN
from tests.conftest import quick_flags
from tests.helpers import (
    ROOT,
    assert_same_end,
    content_of,
    executed,
    executing,
    folder_of,
    rows_of,
    started,
    wait_for,
)
from tests.records.test_backends import assert_holds, wandb_of
from utilities import errors, stopping
from utilities.errors import UserError

FEW = ['--evaluation_metrics', 'e_recall@1', 'rho_spectrum@0']


@pytest.fixture(scope='module')
def trained(patterns, tmp_path_factory):
    """{'whole': the folder of an undisturbed run of two epochs, 'half': of the same after its first epoch}."""
    place = tmp_path_factory.mktemp('trained')
    for name, n_epochs in (('whole', '2'), ('half', '1')):
        assert main.main([*quick_flags(patterns, place), *FEW, '--group', name, '--n_epochs', n_epochs]) == 0
    return {name: folder_of(place, f'{name}_s1') for name in ('whole', 'half')}


@pytest.fixture
def half(trained, tmp_path):
    """A copy of the folder of a run of one epoch."""
    return Path(shutil.copytree(trained['half'], tmp_path / 'half'))


@pytest.fixture
def resume(run, capsys):
    """resume(folder): (exit code, what was printed to stdout, to stderr) of going on to the second epoch."""
    def resumed(folder, *flags):
        capsys.readouterr()
        code = run('--resume', folder, '--n_epochs', '2', *flags)
        return code, *capsys.readouterr()
    return resumed


def assert_refused(code, error):
    assert code == 2 and error.startswith('main.py: error: ') and len(error.splitlines()) <= 2


# Damaged files

def damage(file, how, generator):
    """Damages a file in place, or removes it."""
    if how == 'removed':
        return file.unlink()
    data = bytearray(file.read_bytes())
    if how == 'bit':
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif how == 'cut':
        del data[generator.randrange(len(data)):]
    elif how == 'emptied':
        data.clear()
    else:
        place = generator.randrange(len(data))
        data[place:place] = b'\xff\xfe'                                      # no UTF-8
    file.write_bytes(data)


def test_every_checkpoint_is_read_without_unpickling_objects(trained):
    found = sorted(trained['whole'].glob('*.pt'))
    assert len(found) == 2
    for file in found:
        assert {'model', 'criterion', 'epoch', 'settings'} <= torch.load(file, weights_only=True).keys()


def test_a_flipped_bit_of_the_checkpoint_is_refused_or_does_not_matter(trained, half, resume):
    content, generator = (half / 'checkpoint_last.pt').read_bytes(), random.Random(0)
    codes = set()
    for _ in range(6):
        folder = Path(shutil.copytree(half, half.parent / 'flipped', dirs_exist_ok=True))
        (folder / 'checkpoint_last.pt').write_bytes(content)
        damage(folder / 'checkpoint_last.pt', 'bit', generator)
        code, _, error = resume(folder)
        codes.add(code)
        if code:
            assert_refused(code, error)
        else:
            assert_same_end(trained['whole'], folder)
            shutil.rmtree(folder)
    assert 2 in codes


@pytest.mark.parametrize('content', [b'', slice(None, 1000), slice(None, -1)])
def test_a_checkpoint_that_is_cut_off_is_refused_and_nothing_is_changed(content, half, resume):
    whole = (half / 'checkpoint_last.pt').read_bytes()
    (half / 'checkpoint_last.pt').write_bytes(whole[content] if isinstance(content, slice) else content)
    before = content_of(half)
    code, _, error = resume(half)
    assert_refused(code, error)
    assert 'checkpoint_last.pt' in error and 'copy it again' in error
    assert content_of(half) == before


@pytest.mark.parametrize('how', ['removed', 'cut', 'emptied', 'no UTF-8'])
def test_damaged_records_are_refused_by_readers_and_restored_by_a_resume(how, trained, half, resume):
    (half / 'records.sqlite').write_bytes(b'damaged')
    for name in ('log.csv', 'spectrum.csv'):
        damage(half / name, how, random.Random(f'{name} {how}'))
    assert Result_Evaluations.main(['--runs', str(half.parent), '--metrics', 'e_recall@1']) == 2
    code, _, error = resume(half)
    assert (code, error) == (0, '')
    assert_same_end(trained['whole'], half)
    assert rows_of_spectra(half) == rows_of_spectra(trained['whole']) and len(rows_of_spectra(half)) == 3
    with contextlib.closing(sqlite3.connect(half / 'records.sqlite')) as connection:
        connection.row_factory = sqlite3.Row
        stored = connection.execute('SELECT * FROM log ORDER BY epoch').fetchall()
        assert connection.execute('SELECT count(DISTINCT epoch) FROM spectrum').fetchone()[0] == 3
    for row, found in zip(rows_of(half, without=()), stored, strict=True):
        assert {name: float(text) for name, text in row.items() if text} == {
            name: found[name] for name in found.keys() if found[name] is not None}
    assert reading.read(half).state == reading.FINISHED


def rows_of_spectra(folder):
    return reading.read_texts(folder / 'spectrum.csv')


def test_a_broken_summary_is_a_sentence(half):
    for text in ('[1]', '{"finished": 1, "last_epoch": null}', '{"finished": true, "last_epoch": {"epoch": "1"}}',
                 '[' * 100_000):
        (half / 'summary.json').write_text(text)
        with pytest.raises(UserError, match='not a complete summary'):
            reading.read(half)


def test_settings_that_are_cut_off_or_not_those_of_the_checkpoint_are_refused(half, resume):
    file = half / 'config.yaml'
    content = file.read_bytes()
    for size in (0, 5, *(match.end() for match in re.finditer(b'\n', content[:-1])), len(content) - 2):
        file.write_bytes(content[:size])                                   # most of these cuts are YAML as well
        with pytest.raises(UserError, match='config.yaml: (cut off, or )?not '):
            run_folder.read(half)
    file.write_bytes(content.replace(b'seed: 1\n', b'seed: 2\n'))
    code, _, error = resume(half)
    assert_refused(code, error)
    assert 'run with other settings than those in config.yaml: --seed 2 (was 1)' in error


def test_splits_that_are_cut_off_are_refused_by_readers_and_restored_by_a_resume(half, resume):
    file = half / 'splits.yaml'
    content = file.read_bytes()
    file.write_bytes(content[:content.index(b'class_01')])
    with pytest.raises(UserError, match='splits.yaml: cut off, or not the splits of a run'):
        run_folder.read_splits(half)
    code, _, error = resume(half)
    assert (code, error) == (0, '')
    assert file.read_bytes() == content


# Hostile files

@pytest.mark.parametrize('optimizer', [[1], {'state': 1, 'param_groups': 2}])
def test_a_hostile_checkpoint_is_a_sentence(optimizer, half, resume):
    states = torch.load(half / 'checkpoint_last.pt', weights_only=True)
    torch.save(states | {'optimizer': optimizer}, half / 'checkpoint_last.pt')
    code, _, error = resume(half)
    assert_refused(code, error)
    assert 'its optimizer does not fit' in error


@pytest.mark.parametrize('name, value', [('embed_dim', 10 ** 9), ('embed_layers', [10 ** 9]), ('lora_rank', 10 ** 9)])
def test_a_size_that_no_weights_have_is_refused_before_memory_is_taken(name, value, half, run, capsys, tmp_path):
    states = torch.load(half / 'checkpoint_last.pt', weights_only=True)
    states['settings'][name] = value
    torch.save(states, tmp_path / 'hostile.pt')
    assert run('--evaluate', tmp_path / 'hostile.pt') == 2
    assert 'its weights do not fit the flags --embed_dim, --embed_layers and --lora_rank' in capsys.readouterr().err


NASTY = ['', '0', '-1', '1e400', '9' * 400, '0x10', '1_0', 'nan', 'true', 'null', '~', '2001-01-01', '!!binary a',
         '{a: 1}', '[1, [2]]', '"', "'", ': ', '- ', '#', '%', '=', '--', '\udc80', '\n', '\t', '−', '/', '..',
         '<<: *a', '|\n', 'k' * 300]


def mutated(text, generator):
    """A text with a word replaced by something nasty, or with a character removed, repeated or replaced."""
    words = list(re.finditer(r'[\w.@-]+', text))
    if words and generator.random() < .6:
        begin, end = generator.choice(words).span()
        return text[:begin] + generator.choice(NASTY) + text[end:]
    place = generator.randrange(len(text) + 1)
    return generator.choice([text[:place] + generator.choice(NASTY) + text[place:], text[:place] + text[place + 1:],
                             text[:place] + text[place:place + 8] + text[place:]])


@pytest.mark.parametrize('kind', ['command line', 'YAML', 'CSV'])
def test_mutated_input_is_read_or_refused_in_a_sentence(kind, quick, patterns, tmp_path, run, capsys):
    """The flags are read, and the data set is built."""
    generator, file, images = random.Random(kind), tmp_path / 'mutated', sorted(patterns.rglob('*.png'))
    settings = ('bs: 12\nlr: 0.001\narch: conv4_normalize\ndecay: 0.1\neval_size: 24\ngroup: a\n'
                'views: 2\nsource_path: here\n')
    table = 'path,label\n' + ''.join(f'{image},{image.parent.name}\n' for image in images)
    codes = []
    for _ in range(40):
        arguments = list(quick)
        if kind == 'command line':
            place = generator.randrange(len(arguments))
            arguments[place] = mutated(arguments[place], generator)
        else:
            text = mutated(settings if kind == 'YAML' else table, generator)
            file.write_bytes(text.encode('utf-8', 'surrogateescape'))
            arguments += ['--config' if kind == 'YAML' else '--csv', str(file)]
        with errors.reported('main.py') as end:
            datasets.select(configuration.parse(arguments), 16)
        codes.append(end.code)
        error = capsys.readouterr().err
        assert end.code == (2 if error.startswith('main.py: error: ') else 0), (arguments, error)
    assert {0, 2} <= set(codes)


# One writer

HOLDER = """
import sys, time
from records import lock
with lock.held(sys.argv[1]):
    print('held', flush=True)
    time.sleep(600)
"""


def test_the_second_writer_gets_a_sentence_and_the_first_is_undisturbed(trained, half, resume, tmp_path):
    process, out, _ = executing(tmp_path, HOLDER, half)
    wait_for(lambda: out.read_text() == 'held\n')
    before = content_of(half)
    code, _, error = resume(half)
    assert_refused(code, error)
    assert f'process {process.pid} on ' in error and 'writes to this folder' in error
    assert content_of(half) == before
    process.kill()                                                  # the lock ends with it, the file stays
    process.wait()
    assert (half / lock.NAME).exists() and resume(half)[0] == 0 and not (half / lock.NAME).exists()
    assert_same_end(trained['whole'], half)


def test_without_locks_there_is_a_note(half, resume, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(lock.fcntl, 'lockf', refuse)
    code, out, _ = resume(half)
    assert code == 0 and f'Note: {half} cannot be locked (No locks available)' in out
    with pytest.raises(ValueError) as raised, lock.held(half):
        raise ValueError
    assert raised.value.__context__ is None


def test_temporary_files_of_a_killed_process_are_removed(half, resume):
    for name in ('.log.1.tmp.csv', 'plots/.loss.1.tmp.png', '.checkpoint_last.1.tmp.pt'):
        (half / name).parent.mkdir(exist_ok=True)
        (half / name).write_bytes(b'half')
    assert resume(half)[0] == 0 and not list(half.rglob('.*'))


# Signals

@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_with_data_workers_which_then_ends_as_undisturbed(number, quick, run, tmp_path):
    folder, log = folder_of(tmp_path), tmp_path / 'log.txt'
    process = started(log, MAIN, *quick, *FEW, '--kernels', '2', '--n_epochs', '500')
    wait_for(folder.exists)                                         # main.py has begun to listen
    time.sleep(random.Random(int(number)).uniform(0, .3))
    os.kill(process.pid, number)
    assert process.wait(60) == 130
    n_epochs = max(2, reading.last_epoch(folder) + 1)
    assert started(log, MAIN, '--resume', folder, '--n_epochs', str(n_epochs)).wait(120) == 0
    assert run(*quick, *FEW, '--group', 'whole', '--n_epochs', n_epochs) == 0
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder)
    assert 'Traceback' not in log.read_text() and not list(folder.rglob('.*'))


def test_a_killed_run_is_resumed_at_once_though_its_data_workers_live_on(quick, tmp_path):
    log, folder = tmp_path / 'log.txt', folder_of(tmp_path)
    process = started(log, MAIN, *quick, *FEW, '--kernels', '2', '--n_epochs', '500')
    wait_for(lambda: (folder / 'log.csv').exists() and len(reading.read_rows(folder / 'log.csv')) >= 2)
    process.kill()
    process.wait(60)
    n_epochs = int(reading.read_rows(folder / 'log.csv')[-1]['epoch']) + 2
    assert started(log, MAIN, '--resume', folder, '--n_epochs', str(n_epochs)).wait(120) == 0, log.read_text()


def test_a_second_ctrl_c_ends_at_once_and_data_workers_ignore_the_first():
    code = ('import os, signal, time\nfrom utilities import stopping\nstopping.install()\n'
            'worker = os.fork()\n'
            'os.kill(os.getpid(), signal.SIGINT)\n'
            'if not worker:\n    os._exit(7 * (not stopping.requested))\n'
            'os.kill(os.getpid(), signal.SIGINT)\n'                       # the key bounces: the same request
            'print(os.waitstatus_to_exitcode(os.wait()[1]), stopping.requested, flush=True)\n'
            'time.sleep(stopping.BOUNCE)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)')
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == -signal.SIGINT and done.stdout == '7 True\n'
    assert done.stderr.count('press Ctrl-C again') == 1


def test_long_loops_can_be_stopped(trained, run, monkeypatch, tmp_path, patterns):
    monkeypatch.setattr(stopping, 'requested', True)
    assert run('--evaluate', trained['whole']) == 130
    again = ['--reproduce', trained['whole'], '--save_path', tmp_path / 'runs']
    assert run(*again, '--skip_bad_images') == 130
    assert not (tmp_path / 'runs').exists()
    for stopped in (lambda: list(counting.in_threads(print, range(100))),
                    lambda: datasets.decoding.read_each(print, [tmp_path / 'x'], ''),
                    lambda: download.download(patterns.as_uri() + '/images/class_00/0.png', tmp_path / 'x')):
        with pytest.raises(KeyboardInterrupt):
            stopped()


def test_a_signal_that_also_ends_the_data_workers_is_a_stop(quick, run, tmp_path, monkeypatch, capsys):
    """Schedulers send SIGTERM to every process of a job."""
    monkeypatch.setattr(stopping, 'requested', False)
    monkeypatch.setattr(main, 'train_epoch', killing_workers(lambda: setattr(stopping, 'requested', True)))
    assert run(*quick, *FEW, '--kernels', '2') == 130
    out, error = capsys.readouterr()
    assert f'Stopped. To continue: python main.py --resume {folder_of(tmp_path)}' in out and 'Traceback' not in error


def killing_workers(and_then):
    """main.train_epoch, whose data workers are killed in the second epoch, where the first has started them."""
    train_epoch = main.train_epoch

    def trained(opt, built, loader, epoch):
        if epoch == 2:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, signal.SIGKILL)
            and_then()
        return train_epoch(opt, built, loader, epoch)
    return trained


# What the machine takes away

def failed(run, arguments, capsys, folder, code=1):
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert 'main.py: the run failed: ' in error and 'Traceback' not in error
    assert error.endswith(f'To continue: python main.py --resume {folder}\n')
    return error


def test_a_killed_data_worker(quick, run, tmp_path, monkeypatch, capsys, trained):
    with monkeypatch.context() as patch:
        patch.setattr(main, 'train_epoch', killing_workers(lambda: None))
        error = failed(run, [*quick, *FEW, '--kernels', '2'], capsys, folder_of(tmp_path))
    assert 'A data worker was killed, as the system does where memory runs out; fewer --kernels need less' in error
    assert len(rows_of(folder_of(tmp_path))) == 2
    assert run('--resume', folder_of(tmp_path)) == 0
    assert_same_end(trained['whole'], folder_of(tmp_path))


def test_a_full_disk_at_the_checkpoint(quick, run, tmp_path, monkeypatch, capsys, trained):
    write, hard = checkpoint.write, resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def limited(path, content):
        limit = 100_000 if content['epoch'] == 2 and 'optimizer' in content else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            write(path, content)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, 'write', limited)
        error = failed(run, [*quick, *FEW], capsys, folder_of(tmp_path))
    kept = checkpoint.load(folder_of(tmp_path) / 'checkpoint_test_e_recall@1.pt')
    assert kept['epoch'] < 2 <= checkpoint.load(trained['whole'] / 'checkpoint_test_e_recall@1.pt')['epoch']
    assert 'No space is left to write to ' in error and 'Everything up to the last saved epoch is kept.' in error
    assert not list(folder_of(tmp_path).rglob('.*'))
    assert run('--resume', folder_of(tmp_path)) == 0
    assert_same_end(trained['whole'], folder_of(tmp_path))


def test_a_failing_disk_at_the_log(half, run, monkeypatch, capsys, trained):
    write_csv = writing.write_csv

    def write(file, rows):
        if len(rows) == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_csv(file, rows)

    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(half / 'log.csv'))
    assert errors.machine_reason(full, half).startswith(f'No space is left to write to {half} (')
    elsewhere = PermissionError(errno.EACCES, os.strerror(errno.EACCES), '/data/teacher.bin')
    assert errors.machine_reason(elsewhere, half).startswith('/data/teacher.bin cannot be accessed (Permission denied)')
    with contextlib.closing(sqlite3.connect(':memory:')) as base, pytest.raises(sqlite3.OperationalError) as caught:
        base.execute('SELECT x FROM nowhere')
    assert errors.machine_reason(caught.value, half) is None
    with monkeypatch.context() as patch:
        patch.setattr(writing, 'write_csv', write)
        assert 'cannot be written to' in failed(run, ['--resume', half, '--n_epochs', '2'], capsys, half)
    assert run('--resume', half) == 0
    assert_same_end(trained['whole'], half)


def test_a_full_disk_where_the_folder_is_made_leaves_none(quick, run, tmp_path, monkeypatch, capsys):
    def write(file, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(run_folder, 'write_yaml', write)
    assert run(*quick) == 2
    assert 'no folder can be made there (No space left on device)' in capsys.readouterr().err
    assert not list(folder_of(tmp_path).parent.iterdir())


def test_a_run_folder_that_is_removed(quick, run, tmp_path, monkeypatch, capsys):
    train_epoch = main.train_epoch

    def removing(opt, built, loader, epoch):
        shutil.rmtree(folder_of(tmp_path))
        return train_epoch(opt, built, loader, epoch)

    monkeypatch.setattr(main, 'train_epoch', removing)
    assert run(*quick, *FEW) == 1
    sentence = f'The run folder {folder_of(tmp_path)} was removed while the run was writing to it.'
    assert capsys.readouterr().err == f'main.py: the run failed: {sentence}\n'


# Backends

def services():
    """The process ids of the W&B services that this process has started."""
    children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()
    return [int(child) for child in children if 'wandb-core' in Path(f'/proc/{child}/cmdline').read_text()]


@pytest.mark.skipif(not Path('/proc/self/task').exists(), reason='finds the service in /proc')
def test_a_killed_wandb_service_does_not_end_the_training(quick, run, tmp_path, monkeypatch, capsys):
    pytest.importorskip('wandb')
    train_epoch, killed = main.train_epoch, []

    def killing(*arguments):
        for service in services():
            os.kill(service, signal.SIGKILL)
            killed.append(service)
        return train_epoch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(main, 'train_epoch', killing)
        assert run(*quick, *FEW, '--log_online', '--project', 'P', '--n_epochs', '3') == 0
    out, folder = capsys.readouterr().out, folder_of(tmp_path)
    assert len(killed) == 1 and out.count('Note: Wandb') == 1 and len(rows_of(folder)) == 4
    assert f'To send what is missing there afterwards: python main.py --resume {folder}' in out
    time.sleep(1)                                                   # W&B names its folders after the second
    assert run('--resume', folder) == 0
    assert_holds(wandb_of(folder), folder)


FROZEN = """
import os, signal, sys
import main
from tests.test_reliability import services
from records import backends
finish = main.finish
def freezing(*arguments):
    backends.LIMIT = 2                                              # from here on; the service starts slowly
    for service in services():
        os.kill(service, signal.SIGSTOP)
        print('frozen', service)
    return finish(*arguments)
main.finish = freezing
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not Path('/proc/self/task').exists(), reason='finds the service in /proc')
def test_a_wandb_service_that_does_not_answer_is_not_waited_for(quick, tmp_path):
    pytest.importorskip('wandb')
    code, *printed = executed(tmp_path, FROZEN, *quick, *FEW, '--n_epochs', '0', '--log_online')
    printed = ''.join(printed)
    os.kill(int(printed.split('frozen ')[1].split()[0]), signal.SIGKILL)
    assert code == 0 and 'no answer within 2 seconds' in printed and 'Traceback' not in printed


def test_a_backend_that_cannot_start_or_ends_the_process_is_a_note(quick, run, tmp_path, monkeypatch, capsys):
    pytest.importorskip('tensorboard')
    monkeypatch.setattr(backends.TensorBoard, 'log', lambda *arguments: sys.exit(3))
    assert run(*quick, *FEW, '--n_epochs', '0') == 0
    assert 'Note: TensorBoard takes no more records (SystemExit: 3)' in capsys.readouterr().out
    monkeypatch.setattr(backends, 'TensorBoard', type('TensorBoard', (), {}))       # takes no arguments
    assert run(*quick, *FEW, '--n_epochs', '0') == 0
    assert 'Note: TensorBoard cannot be started (TypeError' in capsys.readouterr().out


def test_an_empty_file_of_wandb_does_not_hinder_a_resume(half, resume):
    pytest.importorskip('wandb')
    (half / 'wandb' / 'offline-run-20260101_000000-x').mkdir(parents=True)
    (half / 'wandb' / 'offline-run-20260101_000000-x' / 'run-x.wandb').touch()
    code, out, _ = resume(half, '--log_online')
    assert code == 0 and 'Note: Wandb' not in out


# Epochs without evaluation

def test_an_epoch_that_is_not_evaluated_has_a_row_and_readers_cope(quick, run, tmp_path, capsys):
    script = tmp_path / 'runs.sh'
    arguments = [*quick, *FEW, '--eval_every', '2', '--n_epochs', '3']
    script.write_text('python main.py ' + ' '.join(arguments) + '\n')
    assert run(*arguments) == 0
    folder = folder_of(tmp_path)
    rows = rows_of(folder)
    assert [bool(row['test_e_recall@1']) for row in rows] == [True, False, True, True]
    assert all(row['train_loss'] and row['lr'] for row in rows[1:])
    read = reading.read(folder)
    assert [row['epoch'] for row in read.rows] == [0, 2, 3] and read.state == reading.FINISHED
    assert Result_Evaluations.main(['--runs', str(tmp_path / 'runs'), '--figures', str(tmp_path / 'figures'),
                                    '--metrics', 'e_recall@1', '--select', 'best_test']) == 0
    capsys.readouterr()
    assert Launch_Runs.main([str(script), '--status']) == 0 and 'finished    3/3' in capsys.readouterr().out
