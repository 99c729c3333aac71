"""
`make docs`: a page for each loss, miner and sampler, made from the code, the parser, the rows of the study, the
benchmarks and the recipes. mkdocs.yml names this file as a hook. The pages are not committed.
"""
import argparse
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import torch
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))                                        # mkdocs runs from its own folder

import parameters  # noqa: E402
from batch_mining import BATCHMINERS  # noqa: E402
from criteria import CRITERIA, takes_miner, with_nested_losses  # noqa: E402
from datasampler import SAMPLERS  # noqa: E402
from flags import command_line, help_texts, method_flags  # noqa: E402
from studies import methods  # noqa: E402
from utilities import loss_sums, text_tables  # noqa: E402

KINDS = {'losses': ('criteria', CRITERIA, 'loss'),
         'miners': ('batch_mining', {name: module for name, module in BATCHMINERS.items() if module}, 'batch_mining'),
         'samplers': ('datasampler', SAMPLERS, 'data_sampler')}        # folder, registry, the flag that chooses
INDEX = {'losses': 'losses.md', 'miners': 'miners_and_samplers.md', 'samplers': 'miners_and_samplers.md'}
SIZES = {'n_classes': 100, 'n_features': 512, 'lr': 1e-3, 'loss': 'triplet'}     # no flags of the method
RATES = {'nir': 1e-5}       # in place of SIZES['lr']: its proxies learn 4000 times as fast; with 1e-3 it diverges
# values that a run takes from its data, with an entry for each class
OF_CLASSES = {'superclasses': '[[label // 2] for label in range(n_classes)]', 'class_counts': '[8] * n_classes'}
MINER = """\
def miner(batch, labels):                 # every {what} of the batch; the files of batch_mining/ select some
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return {returned}
"""
INNER = """\
class Inner(torch.nn.Module):             # in place of your losses of the embeddings and of each larger embedding
    def forward(self, batch, labels, **kwargs):
        return ((labels[:, None] == labels) * (1 - batch @ batch.T)).mean()


def build(name, dim):
    return Inner()
"""


class Reads:
    """A namespace that remembers which attributes are read."""

    def __init__(self, values):
        self.__dict__ |= {'_values': values, '_read': {}}

    def __getattr__(self, name):
        if name not in self._values:
            raise AttributeError(name)
        self._read[name] = self._values[name]
        return self._values[name]


@cache
def benchmark(kind):
    """Returns [lines] of each table of the benchmarks of a kind."""
    text = (ROOT / 'benchmarks' / 'README.md').read_text().partition(f'\n## {kind.capitalize()}\n')[2]
    return [block.splitlines() for block in text.partition('\n## ')[0].split('\n\n') if block.startswith('|')]


@cache
def actions():
    return {action.dest: action for action in parameters.build()._actions}


def read_by(kind, name, **changes):
    """Returns {attribute of opt that the method reads: its value}, in this order. changes: instead of defaults."""
    sizes = SIZES | ({'lr': RATES[name]} if name in RATES else {})
    values = {flag: action.default for flag, action in actions().items()} | sizes | {'data_sampler': name} | changes
    values |= {name: eval(text, {'n_classes': values['n_classes']}) for name, text in OF_CLASSES.items()}
    opt, module = Reads(values), KINDS[kind][1][name]
    if kind == 'losses':
        module.Criterion(opt, *([None] if module.REQUIRES_BATCHMINER else []),
                         *([lambda name, dim: torch.nn.Identity()]
                           if getattr(module, 'REQUIRES_CRITERIA', False) else []))
    elif kind == 'miners':
        module.BatchMiner(opt)
    else:
        image_list = [(f'{index}.png', index // 8) for index in range(16 * values['bs'])]
        image_dict = {label: [(f'{index}.png', index) for index in range(8 * label, 8 * label + 8)]
                      for label in range(len(image_list) // 8)}
        given = {'superclasses': [str(label % 8) for label in image_dict], 'storage': None}
        module.Sampler(opt, image_dict, image_list, *(given[argument] for argument in further(module)))
    return opt._read


def further(module):
    """Returns the arguments of a sampler after opt, image_dict and image_list."""
    return list(inspect.signature(module.Sampler).parameters)[3:]


def snippet(kind, name, **changes):
    """Returns the lines for one's own loop. changes: values of flags and sizes, as in read_by."""
    folder, registry, _ = KINDS[kind]
    module, read = registry[name], read_by(kind, name, **changes)
    stem = Path(module.__file__).stem
    written = {flag: OF_CLASSES[flag].replace('n_classes', str(read['n_classes'])) if flag in OF_CLASSES
               else repr(value) for flag, value in read.items()}
    opt = '\n'.join(['opt = types.SimpleNamespace(', *(f'    {flag}={value},' for flag, value in written.items()), ')']
                    ) if read else 'opt = types.SimpleNamespace()'
    if kind == 'samplers':
        about = {'storage': '# storage: the embeddings of all training images, a tensor [N, D]',
                 'superclasses': '# superclasses: the super-class of each class, in the order of image_dict'}
        return '\n'.join([
            f'# copy datasampler/{stem}.py beside your script', 'import types', '', f'import {stem}', '', opt,
            '# image_dict: class -> [(path, index)]; image_list: [(path, class)] of all training images',
            *(about[argument] for argument in further(module)),
            f'sampler = {stem}.Sampler({", ".join(["opt", "image_dict", "image_list", *further(module)])})',
            'for epoch in range(n_epochs):', '    sampler.set_epoch(epoch)',
            '    for indices in sampler:                # or DataLoader(data, batch_sampler=sampler)',
            '        train_on(indices)', ''])
    head = [f'# copy {folder}/{stem}.py beside your script', 'import types', '', 'import torch', '',
            f'import {stem}', '']
    if kind == 'miners':
        gives = 'positives, negatives' if getattr(module, 'RETURNS', '') == 'masks' else 'triplets'
        shape = 'two bool [B, B]' if 'positives' in gives else '[T, 3] (anchor, positive, negative)'
        return '\n'.join([head[0], 'import types', '', f'import {stem}', '', opt, f'miner = {stem}.BatchMiner(opt)',
                          f'{gives} = miner(embeddings, labels)         # [B, D], [B] -> {shape}', ''])
    lines = [*head, opt, '']
    arguments = 'opt'
    if module.REQUIRES_BATCHMINER:
        masks = bool(module.ALLOWED_MINING_OPS)
        lines += ['', MINER.format(what='pair' if masks else 'triplet', returned='positives, ~same' if masks else
                                   '(positives[:, :, None] & ~same[:, None]).nonzero()'), '']
        arguments += ', miner'
    if getattr(module, 'REQUIRES_CRITERIA', False):
        lines += ['', INNER, '']
        arguments += ', build'
    lines += [f'criterion = {stem}.Criterion({arguments})']
    groups = ''
    if module.REQUIRES_OPTIM:
        groups = (', *criterion.optim_dict_list' if 'optim_dict_list' in inspect.getsource(module.Criterion)
                  else ", {'params': criterion.parameters(), 'lr': criterion.lr}")
    taken = inspect.signature(module.Criterion.forward).parameters
    features = ', batch_features=features' if 'batch_features' in taken else ''
    lines += [f"groups = [{{'params': network.parameters()}}{groups}]",
              f"optimizer = torch.optim.Adam(groups, lr={(SIZES | changes)['lr']!r})",
              'for images, labels in batches:',
              '    embeddings, features = network(images)                  # [B, D], and what the embedding layer gets'
              if features else '    embeddings = network(images)                            # [B, D]',
              f'    loss = criterion(batch=embeddings, labels=labels{features})',
              '    optimizer.zero_grad()', '    loss.backward()', '    optimizer.step()', '']
    return '\n'.join(lines)


def two_lines(kind, name):
    """Returns the lines that build a loss, a miner or a sampler by torch.hub, and use it."""
    module = KINDS[kind][1][name]
    if kind == 'samplers':
        named = {'storage': 'embeddings', 'superclasses': 'superclasses'}
        more = ''.join(f', {named[argument]}={named[argument]}' for argument in further(module))
        return '\n'.join([f"sampler = torch.hub.load(REPO, 'sampler', {name!r}, labels{more}, source='local')",
                          'loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)'])
    if kind == 'miners':
        return '\n'.join([f"miner = torch.hub.load(REPO, 'miner', {name!r}, source='local')",
                          'triplets = miner(embeddings, labels)      # [B, D], [B] -> [T, 3]'])
    given, more = {'n_classes': 100, 'embed_dim': 128, 'lr': RATES.get(name, SIZES['lr'])}, ''
    if module.REQUIRES_BATCHMINER:
        given = {'miner': (module.ALLOWED_MINING_OPS or ['semihard'])[0]} | given
    if 'batch_features' in inspect.signature(module.Criterion.forward).parameters:
        given, more = given | {'n_features': SIZES['n_features']}, ', batch_features=features'
    settings = ', '.join(f'{setting}={value!r}' for setting, value in given.items())
    settings += ''.join(f', {needed}={needed}' for needed in read_by(kind, name) if needed in OF_CLASSES)
    return '\n'.join([f"criterion = torch.hub.load(REPO, 'criterion', {name!r}, {settings}, source='local')",
                      f'loss = criterion(embeddings, labels{more})'])


def documented_function(kind, module):
    """Returns the public function, or the class of a sampler, that the page is about."""
    if kind == 'samplers':
        return module.Sampler
    stem = Path(module.__file__).stem
    return next((value for name, value in vars(module).items() if inspect.isfunction(value) and name.startswith(stem)
                 and (kind == 'miners' or name == f'{stem}_loss')), getattr(module, 'Criterion', None))


def formula_text(text):
    """Returns the paragraphs of a docstring before its examples, without those on the arguments."""
    text = inspect.cleandoc(text).partition('>>>')[0]
    parts = [part for part in text.split('\n\n') if not part.startswith('Args:')]
    said = '\n\n'.join(part.strip() for part in parts if part.strip())
    return said.replace('Returns: scalar', 'Returns a scalar').replace('Returns: ', 'Returns ')


def flag_names(kind, name):
    """Returns the attributes of opt that a method reads by default, then its further flags."""
    start = {'losses': f'loss_{name}_', 'miners': f'miner_{name}_', 'samplers': 'data_'}[kind]
    return dict.fromkeys([*read_by(kind, name), *method_flags.declared(KINDS[kind][1][name], start)])


def flags_table(kind, name):
    flags = flag_names(kind, name)
    rows = [flag_row(actions()[flag]) for flag in flags if flag in actions() and flag not in ('seed', 'loss')]
    return text_tables.markdown(['flag', 'default', 'takes', 'what it sets'], rows) if rows else 'It has no flags.'


def flag_row(action):
    default = action.default
    if action.type is command_line.boolean:
        default = 'on' if default else 'off'
    elif isinstance(default, (list, tuple)):
        default = ' '.join(map(str, default))
    return [f'`--{action.dest}`', '' if default is None else default, taken_by(action),
            ' '.join(help_texts.help_with_choices(action).replace('%%', '%').split())]


def taken_by(action):
    """Returns what a flag takes, in the words of its own error."""
    if action.choices:
        return ' or '.join(map(str, action.choices))
    if action.type is command_line.boolean:
        return '(switch)'
    if action.type is None:
        return 'text'
    try:
        action.type('nan')
    except argparse.ArgumentTypeError as error:
        return str(error).removeprefix('expected ').partition(', not ')[0]
    return 'text'


def measured(kind, name):
    """Returns the rows of the tables of the benchmarks whose first cell names the method."""
    lines = []
    for table in benchmark(kind):
        rows = [row for row in table[2:] if name in re.split(r'[+ ]|, ', row.split('|')[1].strip().replace('`', ''))]
        if rows:
            lines += ['', *table[:2], *rows]
    return ['From `benchmarks/README.md`, which explains the columns.', *lines] if lines else [
        'Not measured.']


def recipes(kind, name):
    """Lists the files of configs/papers/ that use the method; for a default, counts those that leave it."""
    flag, used = KINDS[kind][2], [paper for paper in papers() if name in used_by(kind, paper[1])]
    rows = [[title, f'`python main.py --config configs/papers/{file.name}`'] for file, settings, title in used
            if flag in settings or name != actions()[flag].default]
    by_default = len(used) - len(rows)
    lines = [f'It is the default, with which {by_default} of {len(papers())} '
             '[recipes](../../run_scripts.md#recipes) train.'] if by_default else []
    if rows:
        lines += ['', text_tables.markdown(['paper and data', 'command'], rows)]
    return lines or ['No file of `configs/papers/` sets it; [run scripts](../../run_scripts.md) may.']


def used_by(kind, settings):
    """Returns the methods that a file of flags uses, by name or by default."""
    opt = argparse.Namespace(**{flag: action.default for flag, action in actions().items()} | settings)
    flags = with_nested_losses(loss_sums.parts(opt))
    return {'losses': lambda: {part.loss for part in flags},
            'miners': lambda: {part.batch_mining for part in flags if takes_miner(part)},
            'samplers': lambda: {opt.data_sampler}}[kind]()


@cache
def papers():
    """Returns [(file, settings, title)] of configs/papers/."""
    texts = {file: file.read_text() for file in sorted((ROOT / 'configs' / 'papers').glob('*.yaml'))}
    return [(file, yaml.load(text, yaml.CSafeLoader), re.split(r'\.\s', ' '.join(
        line.removeprefix('# ') for line in text.splitlines() if line.startswith('#')))[0])
        for file, text in texts.items()]


@cache
def shown_results():
    """Returns [(words of the command, lines)] of each method of the study."""
    return [(method.command.split(), [f'### {method.name}, {method.title}', '', *method.lines()])
            for method in methods.read().values()]


def results(kind, name):
    """Returns the runs of the study whose command names the method."""
    lines = []
    for words, shown in shown_results():
        chosen = [words[index + 1] for index, word in enumerate(words[:-1]) if word == f'--{KINDS[kind][2]}']
        if chosen and name in chosen[-1].split('+'):
            lines += shown
    return ['Means over seeds, ± half of the 95 % interval. [results.md](../../results.md) explains the protocol, and '
            'compares all methods.', '', *lines] if lines else [
        'The study does not train it.']


def page(kind, name):
    """Returns the Markdown of a method's page."""
    folder, registry, flag = KINDS[kind]
    module = registry[name]
    about, _, differs = inspect.cleandoc(module.__doc__).partition('\n\nDiffers: ')
    function = documented_function(kind, module)
    return '\n'.join([
        f'# {name}', '', re.sub(r'(https?://\S+?)([,.;)]*)(\s|$)', r'<\1>\2\3', about), '',
        f'`--{flag} {name}`, in `{folder}/{Path(module.__file__).name}`; [all {kind}](../../{INDEX[kind]}).', '',
        '## Formula' if kind == 'losses' else '## Rule', '',
        '``` {.text .wrapped}', formula_text(function.__doc__), '```', '',
        '## Code', '', '```python', inspect.getsource(function).rstrip(), '```', '',
        '## Flags', '', flags_table(kind, name), '',
        '## Where public implementations differ', '', differs or 'No difference is known.', '',
        '## In your own loop', '', 'By torch.hub, from a checkout REPO ([own_loop.md](../../own_loop.md)):', '',
        '```python', two_lines(kind, name), '```', '', 'With its file copied alone:', '',
        '```python', snippet(kind, name).rstrip(), '```', '',
        '## Recipes', '', *recipes(kind, name), '',
        '## Time', '', *measured(kind, name), '',
        '## Results', '', *results(kind, name), ''])


def pages():
    """Returns {path in the site: Markdown} of all generated pages."""
    return {f'methods/{kind}/{name}.md': page(kind, name) for kind in KINDS for name in KINDS[kind][1]}


def on_files(files, config):
    from mkdocs.structure.files import File
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Turns links to a method's file, which GitHub shows, into links to its page in the site."""
    for kind, (folder, registry, _) in KINDS.items():
        for name, module in registry.items():
            markdown = markdown.replace(f'](../{folder}/{Path(module.__file__).name})', f'](methods/{kind}/{name}.md)')
    return markdown


def on_page_content(html, **_):
    """Marks the flags in a text, so that site.css keeps each on one line: browsers break lines behind two dashes."""
    def marked(code):
        return re.sub(r'--\w+', r'<span class="flag">\g<0></span>', code[0])
    return re.sub(r'<code>[^<]*</code>', marked, html)
