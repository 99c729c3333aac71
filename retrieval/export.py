"""Evaluate_Network.py RUN export: a trained network in one file for other programs, from uint8 images to embeddings."""
import importlib.util
import io
import json
from pathlib import Path

import torch

from architectures import low_rank
from retrieval import loading
from utilities.errors import UserError, choose
from utilities.files import atomic, require_writable


class Exported(torch.nn.Module):
    """
    uint8 RGB images [B, 3, S, S], resized and cropped as in evaluation -> embeddings [B, D] float32, as main.py
    --evaluate ranks them. The scaling to [0, 1], the channel order and the normalisation are part of it.
    """

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images.to(torch.float32) * (1 / 255))


def save_pt2(program, file, description):
    content = io.BytesIO()                                   # torch itself would abort where the disk is full
    torch.export.save(program, content, extra_files={'description.json': description})
    Path(file).write_bytes(content.getbuffer())


def save_onnx(program, file, description):
    converted = torch.onnx.export(program, dynamo=True, input_names=['images'], output_names=['embeddings'],
                                  dynamic_shapes=({0: 'batch'},), verbose=False)
    converted.model.metadata_props['description.json'] = description
    converted.save(file)


def flags(parser):
    parser.add_argument('file', metavar='FILE', help='a file that ends in .pt2 or .onnx')


def work(opt):
    write(opt, opt.evaluate, opt.file)


FORMATS = {'.pt2': save_pt2, '.onnx': save_onnx}


def write(opt, run, file):
    """
    Writes the trained network of `run` to `file`, atomically, with the adapters of --lora_rank merged into the weights;
    with --eval_ema, the moving average of the weights. A JSON text in the file, description.json, describes the input.

    Raises UserError for an unknown file name extension, a missing package or folder, and --pca.
    """
    require_writable(file, 'export')
    save = choose(FORMATS, Path(file).suffix, f'export {file}: file name extension')
    missing = [name for name in ('onnx', 'onnxscript') if save is save_onnx and not importlib.util.find_spec(name)]
    if missing:
        raise UserError(f'export {file}: .onnx needs {" and ".join(missing)}: pip install onnx onnxscript')
    if opt.pca:
        raise UserError(f'export {file}: the components of --pca {opt.pca} are fitted on the training images and '
                        'cannot be exported; give --pca 0')
    opt.device = 'cpu'
    network, transform = loading.restore(opt, run)
    low_rank.merge(network.to(memory_format=torch.contiguous_format))    # other layouts are not saved well
    size, steps = network.input_size, [str(step) for step in transform.pipeline.transforms]
    description = {'input': f'uint8 RGB [B, 3, {size}, {size}]', 'before': steps, 'network': network.id}
    example = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    with torch.no_grad():
        program = torch.export.export(Exported(network), (example,), dynamic_shapes=({0: torch.export.Dim('batch')},))
    with atomic(file) as temporary:
        save(program, temporary, json.dumps(description))
    print(f'{file}: {description["input"]} -> float32 embeddings, after {", ".join(steps)}')
