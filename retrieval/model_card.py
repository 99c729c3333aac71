"""The model card of an exported network: README.md as Hugging Face shows it."""
import shlex

from records import columns, run_folder
from retrieval.unknown import containing_folder
from utilities.errors import UserError
from utilities.image_size import sides

PRIVATE = ('source_path', 'source', 'save_path')             # flags whose values are folders of the author's machine
TEXT = '''---
# The licence is yours to choose: an identifier such as apache-2.0 or mit
license:
library_name: {library}
pipeline_tag: image-feature-extraction
tags:
- metric-learning
- image-retrieval
---

# {name}

An embedding network: images of one class are near each other, also of classes that it was not trained on.

- Network: `{arch}`, {n_parameters:,} parameters, embeddings of {dim} dimensions{norm}
- Input: {height} x {width} pixels (height x width), after {before}
- Weights: after epoch {epoch}{average}

## Data

{data}

## Metrics

{metrics}

## Use

`model.safetensors` has the backbone, `embedding.safetensors` the other layers, `config.json` the flags of the network;
none of them can hold code. With a checkout of the program that trained it, as REPO:

```python
network = torch.hub.load(REPO, 'network', FOLDER, source='local')
embeddings = network(images)          # uint8 RGB [B, 3, {height}, {width}] -> float32 [B, {dim}]
```
{timm}
## Training

{command}
'''
OF_TIMM = '''
The backbone alone, without the embedding layer:

```python
backbone = timm.create_model('local-dir:FOLDER', pretrained=True, num_classes=0)
```
'''


def text(opt, flags, source, states, description, network):
    """
    The content of README.md.

    Args:
        flags:       the flags in config.json, {name: value}.
        source:      the run folder or checkpoint of the network, whose splits and command are shown if they are there.
        states:      the checkpoint.
        description: input and resizing, {'before': transforms, ...}.
        network:     the loading.Network.
    """
    folder = containing_folder(source)
    height, width = sides(network.input_size)
    config = read(run_folder.read, folder)
    splits = read(run_folder.read_splits, folder).get('splits', {})
    command = run_folder.without_secrets(shlex.split(config.get('command', '')), PRIVATE)
    shown = 'The command is not known: there was a checkpoint only.'
    if command:
        shown = f'```bash\n{shlex.join(command)}\n```'
    is_of_timm = flags['arch'].startswith('timm:')
    has_norm_1 = opt.eval_normalize or network.model.normalize and not opt.eval_views
    return TEXT.format(
        library='timm' if is_of_timm else 'pytorch',
        name=f'{flags["arch"]}, {flags["dataset"]}',
        arch=flags['arch'],
        n_parameters=sum(parameter.numel() for parameter in network.parameters()),
        dim=network.model.n_features if opt.eval_features else opt.embed_dim,
        norm=' and norm 1' if has_norm_1 else '',
        height=height,
        width=width,
        before=', '.join(f'`{step}`' for step in description['before']),
        epoch=states['epoch'],
        average=', their moving average' if opt.eval_ema else '',
        data=describe_data(flags['dataset'], splits, config.get('flags', {})),
        metrics=metrics_table(states.get('row') or {}, opt.eval_ema),
        timm=OF_TIMM if is_of_timm else '',
        command=shown)


def read(function, folder):
    """function(folder), which reads a file of a run folder; {} where it is no run folder, as beside a checkpoint."""
    try:
        return function(folder)
    except UserError:
        return {}


def describe_data(dataset, splits, flags):
    """The data set, the splits in a splits.yaml, and how they were made: the flags of the run."""
    if not splits:
        return f'`--dataset {dataset}`; the splits are not known: there was a checkpoint only.'
    lines = [f'- {name}: {part["n_images"]:,} images of {part["n_classes"]:,} classes' for name, part in splits.items()]
    trained = {*splits.get('train', {}).get('classes', ())}
    tested = {*splits.get('test', {}).get('classes', ())}
    shared = f'{len(trained & tested):,} of the {len(tested):,} test classes are training classes.' if tested else ''
    made = ' '.join(f'--{name} {flags[name]}' for name in ('split_scheme', 'fold', 'test_size', 'use_tv_split')
                    if flags.get(name))
    return '\n'.join([f'`--dataset {dataset} {made}`. {shared}', '', *lines])


def metrics_table(row, is_average):
    """
    A table of the test metrics in a row of log.csv, with their bootstrap intervals where it has them. is_average:
    whether the network is the moving average of the weights, whose metrics have columns of their own.
    """
    lines = []
    for name in row:
        metric = columns.parse(name)
        if metric is None or metric.split != 'test' or columns.is_beside(name):
            continue
        column = columns.ema_column(name) if is_average else name
        if isinstance(row.get(column), float):
            low, high = (row.get(end) for end in columns.interval(column))
            interval = '' if None in (low, high) else f'{low:.4f} to {high:.4f}'
            lines.append(f'| {metric.at_split} | {row[column]:.4f} | {interval} |')
    if not lines:
        return 'The run has recorded none of the test split.'
    return '\n'.join(['| metric of the test split | value | 95 % interval over classes (bootstrap) |', '|---|---:|---|',
                      *lines])
