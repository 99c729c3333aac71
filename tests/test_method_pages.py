"""The generated pages of losses, miners and samplers."""
import argparse
import re

import pytest
import torch

from docs import method_pages
from flags import command_line
from tests.helpers import images_of, published

EVERY = [(kind, name) for kind in method_pages.KINDS for name in method_pages.KINDS[kind][1]]


def test_pages_have_all_parts_and_their_links_lead_somewhere():
    sources = {}
    for kind, name in EVERY:
        text = method_pages.page(kind, name)
        assert re.findall('^## (.*)', text, re.MULTILINE) == [
            'Formula' if kind == 'losses' else 'Rule', 'Code', 'Flags', 'Where public implementations differ',
            'In your own loop', 'Recipes', 'Time', 'Results']
        prose = re.sub('```.*?```', '', text, flags=re.DOTALL)
        for target in re.findall(r'\]\(([^)#]+)', prose):
            page = target.removeprefix('../../')
            assert target.startswith('http') or (method_pages.ROOT / 'docs' / page).is_file(), (name, target)
        sources[kind, name] = text
    # what the study, the benchmarks and the recipes say reaches the page
    assert '### ProxyAnchor_TCM, Omniglot' in sources['losses', 'tcm'] and '± ' in sources['losses', 'tcm']
    assert '| supcon | ' in sources['losses', 'supcon'].partition('## Time')[2]
    assert '| `semihard` | TripletMarginMiner | ' in sources['miners', 'semihard']
    assert '| balanced | ' in sources['samplers', 'balanced']
    assert 'configs/papers/proxyanchor_cub200.yaml`' in sources['losses', 'proxyanchor']


TAKEN = {'above 0': (None, '0'), 'of at least 0': ('0', '-1'), 'of at least 1': ('1', '0'), 'of at least 2': ('2', '1'),
         'of at least 0 and at most 1': ('1', '2'), 'of at least 0 and at most 2': ('2', '3'), '': ('-1', None)}


def test_each_flag_stands_on_the_page_of_its_method_with_its_default_its_range_and_the_meanings_of_its_choices():
    for kind, name in EVERY:
        rows = [line.strip('| ').split(' | ') for line in method_pages.flags_table(kind, name).splitlines()[2:]]
        rows = {row[0].strip('`-'): row[1:] for row in rows}
        module = method_pages.KINDS[kind][1][name]
        start = {'losses': f'loss_{name}_', 'miners': f'miner_{name}_', 'samplers': 'data_'}[kind]
        assert rows.keys() >= {*(start + flag for flag in getattr(module, 'FLAGS', ())), *getattr(module, 'USES', ())}
        for flag, (default, stated, text) in rows.items():
            action = method_pages.actions()[flag]
            if isinstance(action.choices, dict):
                assert all(f'{choice}: {meaning}' in text for choice, meaning in action.choices.items()), flag
            elif action.type not in (None, command_line.boolean):
                good, bad = TAKEN[re.sub('^a (whole )?number ?', '', stated)]
                assert good is None or isinstance(action.type(good), (int, float)), flag
                with pytest.raises(argparse.ArgumentTypeError):
                    action.type(bad or 'x')
            values = action.default if isinstance(action.default, list) else [action.default]
            if action.type is command_line.boolean:
                assert default == 'off' and not action.default
            elif action.default is not None:
                assert [(action.type or str)(word) for word in default.split()] == values, flag


def test_the_index_pages_link_to_every_method():
    for kind, (folder, registry, _) in method_pages.KINDS.items():
        text = method_pages.on_page_markdown((method_pages.ROOT / 'docs' / method_pages.INDEX[kind]).read_text(), None)
        linked = {*re.findall(rf'\]\(methods/{kind}/(\w+)\.md\)', text)}
        assert linked <= {*registry} and len(linked) >= 9 and f'../{folder}/' not in text
        assert {*published(registry)} <= linked


def test_the_flags_in_a_text_are_marked_and_nothing_else():
    text = '<p><code>main.py --loss_x 1 --lr</code> a -- b <!-- --c --></p>'
    marked = text
    for flag in ('--loss_x', '--lr'):
        marked = marked.replace(flag, f'<span class="flag">{flag}</span>')
    assert method_pages.on_page_content(text) == marked


@pytest.mark.parametrize('name', method_pages.SAMPLERS)
def test_the_snippet_of_a_sampler_gives_batches(name, monkeypatch):
    monkeypatch.syspath_prepend(method_pages.ROOT / 'datasampler')
    images, batches = images_of([6] * 8), []
    names = {'image_dict': images.image_dict, 'image_list': images.image_list, 'superclasses': images.superclasses,
             'n_epochs': 2, 'train_on': batches.append, 'storage': torch.randn(48, 4)}
    exec(method_pages.snippet('samplers', name, bs=8, iterations_per_epoch=3), names)
    assert [len(batch) for batch in batches] == [8] * 6
