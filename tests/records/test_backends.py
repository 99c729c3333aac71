"""W&B, TensorBoard and Comet, the real libraries in their offline modes: what they hold is log.csv."""
import json
import math
import re
import signal
import time
import zipfile

import pytest
import yaml
from PIL import Image

from records import backends, reading, run_folder, wandb_files, writing
from records.columns import at_backend
from tests.blank.plots import MAIN
from tests.helpers import executed, folder_of, rows_of, started


def numbers_of(folder):
    """log.csv -> {epoch: {'test/e_recall@1': 0.5, ...}}"""
    return {int(row['epoch']): {at_backend(name): float(value) for name, value in row.items() if value != ''}
            for row in rows_of(folder, without=())}


def wandb_of(folder):
    """{epoch: [what was logged for it, each time]} of the offline runs in a run folder; all must be of one id."""
    logged, ids = {}, {file.name for file in wandb_files.offline_files(folder)}
    for file in wandb_files.offline_files(folder):
        for entry in wandb_files.history(file):
            logged.setdefault(int(entry['epoch']), []).append(entry)
    assert len(ids) == 1
    return logged


def comet_of(folder):
    logged = {}
    for archive in sorted((folder / 'comet').glob('*/*.zip')):
        with zipfile.ZipFile(archive) as opened:
            assert json.loads(opened.read('experiment.json'))['offline_id'].startswith(yaml.safe_load(
                (folder / 'config.yaml').read_text())['run_id'])
            for line in opened.read('messages.json').splitlines():
                message = json.loads(line)
                if message['type'] == 'metric_msg' and message['payload']['metric']['metricName'] != 'process duration':
                    metric = message['payload']['metric']
                    logged.setdefault(metric['epoch'], []).append({metric['metricName']: float(metric['metricValue'])})
    return {epoch: [{name: value for entry in entries for name, value in entry.items()}]
            if len({name for entry in entries for name in entry}) == len(entries) else entries
            for epoch, entries in logged.items()}


def assert_holds(logged, folder):
    """Each epoch once, and every number of log.csv among those logged."""
    rows = numbers_of(folder)
    assert set(logged) == set(rows) and all(len(entries) == 1 for entries in logged.values())
    for epoch, row in rows.items():
        for name, value in row.items():
            found = float(logged[epoch][0][name])
            assert found == pytest.approx(value, rel=1e-12) or (math.isnan(found) and math.isnan(value)), (epoch, name)


def test_wandb_holds_log_csv_also_after_resume(quick, run, tmp_path, monkeypatch):
    pytest.importorskip('wandb')
    log, png = writing.Records.log, tmp_path / 'own.png'
    Image.new('RGB', (4, 4)).save(png)

    def with_picture(records, epoch, *more):
        records.picture('own/picture', png, epoch)
        return log(records, epoch, *more)

    monkeypatch.setattr(writing.Records, 'log', with_picture)
    assert run(*quick, '--log_online', '--project', 'P', '--wandb_key', 's' * 40, '--loss', 'triplet',
               '--pictures', 'retrieval', '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    assert_holds(wandb_of(folder), folder)
    file, = wandb_files.offline_files(folder)
    records = {record.WhichOneof('record_type'): record for record in wandb_files.messages(file)}
    first, code = records['run'].run, records['exit'].exit.exit_code
    config = wandb_files.items(first.config.update)
    assert (first.display_name, first.run_group, first.project, code) == ('quick_s1', 'quick', 'P', 0)
    assert config['command'].startswith('python main.py --dataset folder') and 'ssss' not in str(config)
    assert config['test_hash'] == run_folder.read(folder)['test_hash'] == reading.read(folder).test
    assert config['seed'] == 1 and config['loss'] == 'triplet' and 'wandb_key' not in config
    assert {'train/active_share', 'lr/backbone', 'train/grad_norm'} <= set(wandb_files.history(file)[1])
    content = file.read_bytes()
    assert {*re.findall(rb'own/picture_(\d)_', content)} == {b'0', b'1'}                # by epoch
    assert all(name in content for name in (b'test/rho_spectrum@0', b'"histogram"', b'retrieval/test'))
    assert list(folder.glob('wandb/offline-run-*/files/media/images/retrieval/test*.png'))
    time.sleep(1)                                             # W&B names its folders after the second
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert len(wandb_files.offline_files(folder)) == 2
    assert_holds(wandb_of(folder), folder)


@pytest.mark.parametrize('mode', ['disabled', 'dryrun', 'offline'])
def test_the_mode_of_wandb_is_said_and_no_server_is_asked(mode, quick, run, tmp_path, monkeypatch, capsys):
    """dryrun is W&B's older name of offline; disabled writes nothing either."""
    pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', mode)
    monkeypatch.setattr(backends.urllib.request, 'urlopen', None)
    assert run(*quick, '--n_epochs', '0', '--evaluation_metrics', 'e_recall@1', '--log_online', '--wandb_key',
               's' * 40) == 0
    out = capsys.readouterr().out
    if mode == 'disabled':
        assert 'Note: W&B gets no records, since WANDB_MODE is disabled.' in out
        assert not (folder_of(tmp_path) / 'wandb').exists()
    else:
        assert f'W&B runs offline (WANDB_MODE is {mode}). To upload' in out
        assert len(wandb_files.offline_files(folder_of(tmp_path))) == 1


def test_a_run_killed_after_logging_has_no_epoch_twice_and_none_less(quick, tmp_path):
    """The process kills itself after an epoch was logged and before its checkpoint was written."""
    pytest.importorskip('wandb')
    code = ('import os, signal, sys, main\n'
            'from records.checkpoint import Checkpoint\n'
            'save = Checkpoint.save\n'
            'def killed(self, epoch, *others):\n'
            '    if epoch == 2:\n'
            '        os.kill(os.getpid(), signal.SIGKILL)\n'
            '    save(self, epoch, *others)\n'
            'Checkpoint.save = killed\n'
            'main.main(sys.argv[1:])\n')
    flags = [*quick, '--log_online', '--n_epochs', '3']
    assert executed(tmp_path, code, *flags)[0] == -signal.SIGKILL
    folder = folder_of(tmp_path)
    assert len(rows_of(folder)) == 3
    assert started(tmp_path / 'printed', MAIN, '--resume', folder).wait() == 0
    logged = wandb_of(folder)
    assert set(logged) == {0, 1, 2, 3} and all(len(entries) == 1 for entries in logged.values())
    rows = numbers_of(folder)
    assert all(logged[epoch][0]['test/e_recall@1'] == rows[epoch]['test/e_recall@1'] for epoch in rows)


def test_tensorboard_reads_what_a_second_start_in_the_same_second_wrote(tmp_path, monkeypatch):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    writer = pytest.importorskip('tensorboard.summary.writer.event_file_writer')
    monkeypatch.setattr(writer, '_global_uid', writer.AtomicCounter(9))          # the names end on 9, and on 10
    for epoch in (1, 2):
        written = backends.TensorBoard(None, tmp_path, {}, epoch)
        written.log(epoch, {'loss': epoch}, {})
        written.close(False)
    events = accumulator.EventAccumulator(str(tmp_path / 'tensorboard'))
    events.Reload()
    assert [event.step for event in events.Scalars('loss')] == [1, 2]


def test_a_backend_that_comes_late_gets_the_earlier_epochs(quick, run, tmp_path):
    pytest.importorskip('wandb')
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', '--n_epochs', '1') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2', '--log_online') == 0
    assert_holds(wandb_of(folder_of(tmp_path)), folder_of(tmp_path))


def test_comet_holds_log_csv_also_after_resume(quick, run, tmp_path, monkeypatch):
    pytest.importorskip('comet_ml')
    monkeypatch.delenv('COMET_API_KEY', raising=False)
    assert run(*quick, '--log_online', '--online_backend', 'comet_ml', '--n_epochs', '1', '--evaluation_metrics',
               'e_recall@1', 'nmi') == 0
    folder = folder_of(tmp_path)
    assert_holds(comet_of(folder), folder)
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert len(list((folder / 'comet').glob('*/*.zip'))) == 2
    assert_holds(comet_of(folder), folder)


def test_tensorboard_holds_log_csv_also_after_resume(quick, run, tmp_path):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    assert run(*quick, '--pictures', 'retrieval', '--no_train_metrics', 'false', '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder, '--n_epochs', '2') == 0
    events = accumulator.EventAccumulator(str(folder / 'tensorboard'), size_guidance={'scalars': 0, 'histograms': 0})
    events.Reload()
    rows = numbers_of(folder)
    for name in rows[2].keys() - {'epoch'}:
        points = [(event.step, event.value) for event in events.Scalars(name)]
        wanted = [(epoch, row[name]) for epoch, row in rows.items() if name in row]
        assert [step for step, _ in points] == [epoch for epoch, _ in wanted]
        assert [value for _, value in points] == pytest.approx([value for _, value in wanted], rel=1e-6, nan_ok=True)
    assert [event.step for event in events.Histograms('test/rho_spectrum@0')] == list(rows)
    assert [event.step for event in events.Images('retrieval/test')] == [1, 2]


def test_a_sweep_that_does_not_pass_its_values_on_is_a_note(quick, run, tmp_path, monkeypatch, capsys):
    """As the agent of a sweep starts a command without ${args}: the values come in a file that W&B reads."""
    pytest.importorskip('wandb')
    (tmp_path / 'sweep.yaml').write_text('wandb_version: 1\nlr:\n  value: 0.5\nbs:\n  value: 12\n')
    monkeypatch.setenv('WANDB_SWEEP_ID', 'abc')
    monkeypatch.setenv('WANDB_SWEEP_PARAM_PATH', str(tmp_path / 'sweep.yaml'))
    arguments = [*quick, '--n_epochs', '0', '--evaluation_metrics', 'e_recall@1', '--log_online']
    assert run(*arguments) == 0
    note = 'Note: W&B records --lr 0.5, but the run trains with --lr 0.001: the command of a sweep needs ${args}'
    assert note in capsys.readouterr().out
    assert run(*arguments, '--lr', '0.5') == 0 and 'W&B records' not in capsys.readouterr().out
