"""The model card of an exported network: README.md as Hugging Face shows it, for readers without this program."""
from records import columns, run_folder
from retrieval.unknown import containing_folder
from utilities.errors import UserError
from utilities.image_size import sides

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

| | |
|---|---|
| network | `{arch}`, {n_parameters:,} parameters, after epoch {epoch}{average} |
| embeddings | {dim} dimensions{norm}, compared by the Euclidean distance |
| input | {channels}, {height} x {width} pixels (height x width), scaled to [0, 1] |
| before | {before} |
| mean of each channel, subtracted | {mean} |
| standard deviation of each channel, a divisor | {std} |
| trained on | {data} |

{metrics}

`model.safetensors` has the weights of the backbone, `embedding.safetensors` those of the other layers, and
`config.json` the settings. None of them can hold code. With a checkout of the program that trained it, as REPO,
the network normalises its input itself:

```python
network = torch.hub.load(REPO, 'network', FOLDER, source='local')
embeddings = network(images)          # uint8 RGB [B, 3, {height}, {width}] -> float32 [B, {dim}]
```
'''


def text(opt, flags, source, states, description, network):
    """
    The content of README.md.

    Args:
        flags:       the flags in config.json, {name: value}.
        source:      the run folder or checkpoint of the network, whose splits are named if they are there.
        states:      the checkpoint.
        description: input and resizing, {'before': transforms, ...}.
        network:     the loading.Network.
    """
    height, width = sides(network.input_size)
    model = network.model
    has_norm_1 = opt.eval_normalize or model.normalize and not opt.eval_views
    return TEXT.format(
        library='timm' if flags['arch'].startswith('timm:') else 'pytorch',
        name=f'{flags["arch"]}, {flags["dataset"]}', arch=flags['arch'],
        n_parameters=sum(parameter.numel() for parameter in network.parameters()),
        epoch=states['epoch'], average=', their moving average' if opt.eval_ema else '',
        dim=model.n_features if opt.eval_features else opt.embed_dim, norm=' and norm 1' if has_norm_1 else '',
        channels='blue, green, red' if model.bgr else 'red, green, blue', height=height, width=width,
        before=', '.join(f'`{step}`' for step in description['before']),
        mean=numbers(model.mean), std=numbers(model.std), data=data(flags['dataset'], containing_folder(source)),
        metrics=metrics(states.get('row') or {}, opt.eval_ema))


def numbers(values):
    return ', '.join(f'{value:.6g}' for value in values.flatten().tolist())


def data(dataset, folder):
    """The data set and, if `folder` is a run folder, the sizes of its splits."""
    try:
        splits = run_folder.read_splits(folder).get('splits', {})
    except UserError:                                        # a checkpoint alone
        splits = {}
    sizes = [f'{name}: {part["n_images"]:,} images of {part["n_classes"]:,} classes' for name, part in splits.items()]
    return '; '.join([f'`{dataset}`', *sizes])


def metrics(row, is_average):
    """A table of the test metrics in a row of log.csv. is_average: whether those of the moving average are shown."""
    lines = ['| metric of the test split | value |', '|---|---:|']
    for name in row:
        metric = columns.parse(name)
        column = columns.ema_column(name) if is_average else name
        is_test = metric is not None and metric.split == 'test' and not columns.is_beside(name)
        if is_test and isinstance(row.get(column), float):
            lines.append(f'| {metric.at_split} | {row[column]:.4f} |')
    return '\n'.join(lines) if len(lines) > 2 else 'No metrics of the test split were recorded.'
