"""The files in which W&B keeps offline runs: what each has logged."""
import json
import struct
import zlib
from pathlib import Path

from utilities.errors import UserError

# .wandb files are LevelDB logs of protocol buffers
BLOCK = 32768                                 # bytes
HEADER = 7                                    # bytes
FULL = 1                                      # the kind of a part that is a whole record
LAST = 4                                      # the kind of a part that is the last one of a record


def offline_files(folder):
    """The .wandb files of the offline runs anywhere below the folder, in the order in which they were begun."""
    return sorted(Path(folder).rglob('offline-run-*/*.wandb'), key=lambda file: (file.parent.name, str(file)))


def last_epoch(folder):
    """The last epoch in the offline runs in a run folder; −1 where there is none."""
    epochs = [-1]
    for file in offline_files(folder):
        if file.stat().st_size:                             # W&B leaves it empty where it is killed early
            epochs += [logged.get('epoch', -1) for logged in history(file)]
    return max(epochs)


def history(file):
    """What a run logged, by its .wandb file: a {name: value} for each step, without nested values."""
    return [items(record.history.item) for record in messages(file) if record.WhichOneof('record_type') == 'history']


def items(pairs):
    """Protocol buffer items of key and JSON value -> {key: value}; parts of nested values are left out."""
    found = {}
    for item in pairs:
        path = [item.key] if item.key else item.nested_key
        if len(path) == 1:
            found[path[0]] = json.loads(item.value_json)
    return found


def messages(file):
    """The records of a .wandb file, protocol buffers, up to the point where a killed process, or a copy, stopped."""
    from wandb.proto import wandb_internal_pb2
    data = file.read_bytes()
    if data[:4] != b':W&B':
        raise UserError(f'{file}: not a file of W&B')
    position = HEADER
    parts = b''
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        checksum, length, kind = struct.unpack_from('<IHB', data, position)
        part = data[position + HEADER:position + HEADER + length]
        if len(part) < length or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            return
        position += HEADER + length
        parts += part
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b''
