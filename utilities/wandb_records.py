"""Runs as W&B has them: in the offline folders of a machine without network, and in a project at the server."""
import json
import math
import re
import struct
import zlib
from pathlib import Path

from tqdm import tqdm

from utilities.errors import UserError
from utilities.files import write_text
from utilities.run_records import FINISHED, Run

BLOCK, HEADER = 32768, 7                      # of the .wandb files, which are LevelDB logs of protocol buffers
FULL, LAST = 1, 4
PUBLIC = re.compile(r'(Train|Val|Test): discriminative_[^:]*: (.+)')     # keys of the public code of Roth et al.


def local_name(key):
    """'test/e_recall@1', or 'Test: discriminative_e_recall: e_recall@1' -> 'test_e_recall@1'."""
    if found := PUBLIC.fullmatch(key):
        return f'{found[1].lower()}_{found[2]}'
    split, slash, metric = key.partition('/')
    return f'{split}_{metric}' if slash and split in ('train', 'val', 'test') else key


def number(value):
    """A value of a history as a float, or None for what is no number (histograms, pictures, words)."""
    if isinstance(value, str) and value in ('NaN', 'Infinity', '-Infinity'):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def rows_of(history):
    """
    A history, dicts in the order of logging -> rows as in log.csv, those with a metric of a split only.

    What was logged in several pieces for one epoch is put together; of two values of one thing the later one counts.
    """
    rows = {}
    for logged in history:
        values = {local_name(key): number(value) for key, value in logged.items() if not key.startswith('_')}
        values = {name: value for name, value in values.items() if value is not None}
        epoch = values.pop('epoch', values.pop('epochs', logged.get('_step')))
        if epoch is not None and math.isfinite(epoch):
            rows.setdefault(int(epoch), {}).update(values)
    return [{'epoch': epoch} | rows[epoch] for epoch in sorted(rows) if any(map(is_metric, rows[epoch]))]


def is_metric(name):
    return name.startswith(('val_', 'test_')) or (name.startswith('train_') and '@' in name)


def messages(file):
    """The records of a .wandb file, protocol buffers; up to where a killed process, or a copy, left off."""
    from wandb.proto import wandb_internal_pb2
    data = file.read_bytes()
    if data[:4] != b':W&B':
        raise UserError(f'{file}: not a file of W&B')
    position, parts = HEADER, b''
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        checksum, length, kind = struct.unpack_from('<IHB', data, position)
        part = data[position + HEADER:position + HEADER + length]
        if len(part) < length or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            return
        position, parts = position + HEADER + length, parts + part
        if kind in (FULL, LAST):
            record, parts = wandb_internal_pb2.Record.FromString(parts), b''
            yield record


def items(pairs):
    """Protocol buffer items of key and JSON value -> {key: value}; parts of nested values are left out."""
    keys = [item.key or (item.nested_key[0] if len(item.nested_key) == 1 else None) for item in pairs]
    return {key: json.loads(item.value_json) for key, item in zip(keys, pairs, strict=True) if key}


def read_file(file):
    """A .wandb file -> (its run record, config, history, exit code or None)."""
    run, config, history, code = None, {}, [], None
    for record in messages(file):
        kind = record.WhichOneof('record_type')
        if kind == 'run':
            run, config = record.run, config | items(record.run.config.update)
        elif kind == 'config':
            config |= items(record.config.update)
        elif kind == 'history':
            history.append({'_step': record.history.step.num} | items(record.history.item))
        elif kind == 'exit':
            code = record.exit.exit_code
    return run, config, history, code


def last_epoch(folder):
    """The last epoch in the offline runs in a run folder; −1 where there is none."""
    epochs = [-1]
    for file in offline_files(folder):
        if file.stat().st_size:                             # W&B leaves it empty where it is killed early
            epochs += [logged.get('epoch', -1) for logged in read_file(file)[2]]
    return max(epochs)


def offline_files(folder):
    """The .wandb files of the offline runs anywhere below the folder, in the order in which they were begun."""
    return sorted(Path(folder).rglob('offline-run-*/*.wandb'), key=lambda file: (file.parent.name, str(file)))


def read_offline(files):
    """.wandb files -> Runs; those with one id are parts of one run, which was resumed."""
    try:
        import wandb.proto.wandb_internal_pb2  # noqa: F401
    except ImportError:
        raise UserError(f'{files[0]}: to read it, W&B must be installed: pip install wandb') from None
    parts = {}
    for file in files:
        parts.setdefault(file.name, []).append((file, *read_file(file)))           # run-<id>.wandb
    runs = []
    for pieces in parts.values():
        pieces = [piece for piece in pieces if piece[1] is not None] or pieces[-1:]
        if pieces[0][1] is None:
            raise UserError(f'{pieces[0][0]}: empty, as W&B leaves it when it is killed; remove its folder, or leave '
                            'it out with --exclude')
        file, run, config, _, code = pieces[-1]
        rows = rows_of([logged for piece in pieces for logged in piece[3]])
        state = 'unfinished' if code is None else FINISHED if code == 0 else f'crashed with exit code {code}'
        runs.append(made(run.display_name or run.run_id, str(file), config, rows, state, run.run_group))
    return runs


def made(name, where, config, rows, state, group):
    """A Run. Raises UserError where the config lacks what says which run it is."""
    flags = {'group': group or None} | config
    for flag in ('dataset', 'group', 'seed'):
        if flags.get(flag) is None:
            raise UserError(f'{where} ({name}): its config at W&B has no {flag}, so it cannot be grouped; leave it out')
    if state != FINISHED:
        reached = f'{rows[-1]["epoch"]} of {flags.get("n_epochs", "?")} epochs' if rows else 'no epoch was recorded'
        state = f'{state}: {reached}'
    return Run(name, where, flags, rows, state)


def download(project, cache, is_wanted=lambda name, where: True):
    """
    The runs of the project 'ENTITY/PROJECT' at the server, with their full histories.

    is_wanted: of a run's name and path; others are not loaded.
    cache:     a folder with a file per run; what is there is not loaded again, unless the run has gone on since.

    Raises UserError where the project does not exist or is empty, or the server does not answer.
    """
    try:
        import wandb
        from requests import RequestException
    except ImportError:
        raise UserError('--project needs W&B: pip install wandb') from None
    problems = (wandb.errors.Error, RequestException, OSError, ValueError, TimeoutError)
    if not re.fullmatch(r'[^/\s]+/[^/\s]+', project):
        raise UserError(f'--project {project}: expected ENTITY/PROJECT, as confusezius/RevisitDML')
    folder = Path(cache) / project
    try:
        found = wandb.Api(timeout=60).runs(project, per_page=100)
        n_runs = len(found)
    except problems as error:
        raise UserError(f'--project {project}: W&B does not give it ({first_line(error)})') from None
    if not n_runs:
        raise UserError(f'--project {project}: there are no runs in it')
    folder.mkdir(parents=True, exist_ok=True)
    runs, n_seen = [], 0
    bar = tqdm(total=n_runs, unit='run', desc=project, disable=None)
    try:
        for run in found:
            where = f'{project}/{run.id}'
            if is_wanted(run.name, where):
                loaded = cached(folder / f'{run.id}.json', run)
                runs.append(made(run.name, where, loaded['config'], loaded['rows'], loaded['state'], run.group))
            n_seen += 1
            bar.update()
    except problems as error:
        raise UserError(f'--project {project}: W&B stopped answering after {n_seen} of {n_runs} runs '
                        f'({first_line(error)}); what was loaded is kept in {folder}: start again') from None
    finally:
        bar.close()
    return runs


def cached(file, run):
    """{'config', 'state', 'rows', 'last_step'} of a run at the server, from the file where that is up to date."""
    version = {'state': run.state, 'last_step': run.lastHistoryStep}
    try:
        loaded = json.loads(file.read_text(encoding='utf-8'))
        if version == {name: loaded[name] for name in version} and run.state != 'running':
            return loaded
    except (OSError, ValueError, KeyError, TypeError):
        loaded = None                                          # not there, or of another version of this program
    loaded = version | {'config': {name: value for name, value in run.config.items() if not name.startswith('_')},
                        'rows': rows_of(run.scan_history(page_size=1000))}
    write_text(file, json.dumps(loaded))
    return loaded


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
