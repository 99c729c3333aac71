"""
Evaluate_Network.py RUN export: a trained network for other programs, as a file that computes embeddings, or weights.
"""
import contextlib
import importlib.util
import io
import json
import os
import shutil
from pathlib import Path

import torch

import architectures
import configuration
from architectures import low_rank, timm_models
from records import checkpoint, published, state
from retrieval import loading, model_card
from utilities.errors import UserError, choose
from utilities.files import atomic, require_writable, require_writable_folder, writing
from utilities.image_size import sides

ONNX_BYTES = 1.5e9           # largest size of the weights; torch.onnx writes larger ones to a second file


def save_pt2(program, file, description):
    content = io.BytesIO()                                   # torch itself would abort where the disk is full
    torch.export.save(program, content, extra_files={'description.json': description})
    Path(file).write_bytes(content.getbuffer())


def save_onnx(program, file, description):
    n_bytes = sum(weights.nbytes for weights in program.state_dict.values())
    if n_bytes > ONNX_BYTES:
        raise UserError(f'export: weights of {n_bytes / 1e9:.1f} GB, and a .onnx file holds {ONNX_BYTES / 1e9:.1f} GB '
                        'at most; give a file that ends in .pt2, or --hub')
    converted = torch.onnx.export(program, dynamo=True, input_names=['images'], output_names=['embeddings'],
                                  dynamic_shapes=({0: 'batch'},), verbose=False)
    converted.model.metadata_props['description.json'] = description
    converted.save(file)


def flags(parser):
    parser.add_argument('file', nargs='?', metavar='FILE', help='a file that ends in .pt2 or .onnx')
    parser.add_argument('--hub', metavar='FOLDER',
                        help='in place of FILE: a new folder with safetensors, config.json and a model card')


def export(opt):
    if bool(opt.file) == bool(opt.hub):
        raise UserError('export: give either a FILE that ends in .pt2 or .onnx, or --hub FOLDER')
    write(opt, opt.evaluate, opt.hub or opt.file, hub=bool(opt.hub))


FORMATS = {'.pt2': save_pt2, '.onnx': save_onnx}


def write(opt, source, target, hub=False):
    """
    Writes the trained network of `source`, a run folder or checkpoint, for other programs, atomically, with the
    adapters of --lora_rank merged into the weights; with --eval_ema, the moving average of the weights.

    target: a .pt2 or .onnx file with the whole computation; a JSON text in it, description.json, describes the input.
            With hub, a folder with weights and a model card (write_folder).

    Raises UserError for an unknown file name extension, a missing package or folder, and --pca.
    """
    check = require_new_folder if hub else require_writable
    check(target, 'export --hub' if hub else 'export')
    save = None if hub else choose(FORMATS, Path(target).suffix, f'export {target}: file name extension')
    missing = [name for name in ('onnx', 'onnxscript') if save is save_onnx and not importlib.util.find_spec(name)]
    if missing:
        raise UserError(f'export {target}: .onnx needs {" and ".join(missing)}: pip install onnx onnxscript')
    opt.device = 'cpu'
    settings = configuration.embedding_settings(opt)         # the values before the network fills in --input_size
    network, transform = loading.restore(opt, source)
    low_rank.merge(network.to(memory_format=torch.contiguous_format))    # other layouts are not saved well
    height, width = sides(network.input_size)
    steps = [str(step) for step in transform.pipeline.transforms]
    description = {'input': f'uint8 RGB [B, 3, {height}, {width}]', 'before': steps, 'network': network.id}
    if hub:
        write_folder(opt, settings, network, source, Path(target), description)
    else:
        example = torch.zeros(2, 3, height, width, dtype=torch.uint8)
        batch = {0: torch.export.Dim('batch')}
        with torch.no_grad():
            program = torch.export.export(network, (example,), dynamic_shapes=(batch,))
        with atomic(target) as temporary:
            save(program, temporary, json.dumps(description))
    print(f'{target}: {description["input"]} -> float32 embeddings, after {", ".join(steps)}')


def require_new_folder(folder, flag):
    """Raises UserError where `folder` cannot be made, has files already, or is the current folder."""
    require_writable_folder(folder, flag)
    if Path(folder).is_dir() and (any(Path(folder).iterdir()) or Path(folder).samefile('.')):
        raise UserError(f'{flag} {folder}: this folder has files already, or is the current one; give a new one')


def write_folder(opt, settings, network, source, folder, description):
    """
    Writes a folder that can be pushed to Hugging Face as it is: model.safetensors, the backbone with the names of its
    library; embedding.safetensors, all other weights; config.json; and README.md, the model card. timm loads the
    backbone from it (--arch timm:local-dir:FOLDER), and this program the whole network, wherever it takes a run folder.
    """
    flags = configuration.embedding_settings(opt) | {'eval_ema': False}       # the weights are the ones it chose
    module, name = architectures.find(opt.arch)
    temporary = folder.with_name(f'.{folder.name}.{os.getpid()}.tmp')
    try:
        with writing(folder):
            temporary.mkdir(parents=True)
            if module is timm_models:
                flags['arch'] = opt.arch.replace(name, timm_models.name_in_timm(opt, name))    # not a place of its own
                timm_models.save(opt, network.model, temporary)
            states = checkpoint.load(checkpoint.find(source))
            kept = state.limited(states.get('state', {}), ['model', 'ema'])
            if kept:
                raise UserError(f'{source}: its network keeps more than weights ({", ".join(kept["attributes"])}), for '
                                'which files of safetensors have no place; make buffers of it')
            published.write(temporary, network.model.state_dict(), flags, states['epoch'], description)
            text = model_card.text(opt, settings, flags, states, description, network)
            (temporary / 'README.md').write_text(text, encoding='utf-8')
            with contextlib.redirect_stdout(io.StringIO()):
                loading.load(temporary, 'cpu')               # a folder that cannot be loaded is not left behind
            if folder.is_dir():
                folder.rmdir()
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
