"""The model card of an exported network: README.md as Hugging Face shows it, for readers without this program."""
from records import columns
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

# {arch}, {data}

An embedding network: images of one class are near each other, also of classes that it was not trained on.

| | |
|---|---|
| network | `{arch}`, {n_parameters:,} parameters, after epoch {epoch}{average} |
| embeddings | {dim} dimensions{norm}, compared by the Euclidean distance |
| input | {channels}, {height} x {width} pixels (height x width), scaled to [0, 1] |
| before | {before} |
| mean of each channel, subtracted | {mean} |
| standard deviation of each channel, a divisor | {std} |
| trained on | `{data}` |

{metrics}`model.safetensors` has the weights of the backbone, `embedding.safetensors` those of the other layers, and
`config.json` the settings. None of them can hold code. With a checkout of the program that trained it, as REPO,
the network normalises its input itself:

```python
network = torch.hub.load(REPO, 'network', FOLDER, source='local')
embeddings = network(images)          # uint8 RGB [B, 3, {height}, {width}] -> float32 [B, {dim}]
```
'''


def text(opt, settings, flags, states, description, network):
    """
    The content of README.md.

    Args:
        settings:    the embedding_settings() that the command line and the run give.
        flags:       the flags in config.json, {name: value}.
        states:      the checkpoint.
        description: input and resizing, {'before': transforms, ...}.
        network:     the loading.Network.
    """
    height, width = sides(network.input_size)
    model = network.model
    has_norm_1 = opt.eval_normalize or model.normalize and not (opt.eval_features or opt.eval_views or opt.cascade)
    split = f'{columns.EMA}test_' if opt.eval_ema else 'test_'
    row = states.get('row') or {}
    given = settings | {'pca': opt.pca}
    changed = {flag for flag, value in given.items() if states['settings'].get(flag, value) != value}
    if changed - {'eval_ema'}:                               # the row has metrics of other embeddings
        row = {}
    metrics = [f'| {name.removeprefix(split)} | {value:.4f} |' for name, value in row.items()
               if name.startswith(split) and isinstance(value, float) and not columns.is_beside(name)]
    if metrics:
        metrics = [f'| metric of the test split, after epoch {row["epoch"]} | value |', '|---|---:|', *metrics, '', '']
    return TEXT.format(
        library='timm' if flags['arch'].startswith('timm:') else 'pytorch', arch=flags['arch'], data=flags['dataset'],
        n_parameters=sum(parameter.numel() for parameter in network.parameters()),
        epoch=states['epoch'], average=', their moving average' if opt.eval_ema else '',
        dim=network.width, norm=' and norm 1' if has_norm_1 else '',
        channels='blue, green, red' if model.bgr else 'red, green, blue', height=height, width=width,
        before=', '.join(f'`{step}`' for step in description['before']),
        mean=numbers(model.mean), std=numbers(model.std), metrics='\n'.join(metrics))


def numbers(values):
    return ', '.join(f'{value:.6g}' for value in values.flatten().tolist())
