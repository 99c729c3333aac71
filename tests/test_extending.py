"""The research edits of docs/research_edits.md, applied to a copy of the code as they stand there."""
import json
import re

import pytest

from records import checkpoint
from tests.helpers import FROM_COPY, ROOT, applied, assert_same_end, copied, executed, folder_of, rows_of

PAGE = (ROOT / 'docs' / 'research_edits.md').read_text()
EDITS = re.findall(r'\n## (.*?)\n.*?```diff\n(.*?)```.*?Run it with `(.*?)`', PAGE, re.DOTALL)

# argv: the copy, the arguments of a run, the flags of the edit
RUNS = FROM_COPY + """
import json
arguments, flags = map(json.loads, sys.argv[2:])

def run(name, *more):
    named = [] if '--resume' in more else [*arguments, '--group', name]
    sys.argv = ['main.py']
    return main.main([*named, *more])

folder = Path(arguments[arguments.index('--save_path') + 1]) / 'folder'
codes = [run('whole', *flags), run('half', *flags, '--n_epochs', '1'),
         run('', '--resume', str(folder / 'half_s1'), '--n_epochs', '2'), run('pieces', *flags, '--micro_bs', '5')]
own = [flag for flag in flags if flag in ('--loss', '--batch_mining')]
codes += [run('without', *(word for flag in own for word in (flag, flags[flags.index(flag) + 1])), '--n_epochs', '1')]
if '--mix_alpha' in flags:
    main.processes = type(main.processes)('two processes')
    vars(main.processes).update(vars(sys.modules['utilities.processes']), count=lambda: 2)
    codes += [run('processes', *flags)]
print(json.dumps(codes))
"""


def test_there_are_five():
    assert len(EDITS) == 5


@pytest.mark.parametrize('title, diff, command', EDITS, ids=[title for title, _, _ in EDITS])
def test_a_research_edit(title, diff, command, quick, tmp_path):
    """Two epochs of two steps; resumed after the first, they end with the same bits; pieces give the same loss."""
    changed = re.findall(r'^[+-](?!\+\+ |-- ).*$', diff, re.MULTILINE)
    assert 0 < len(changed) <= 10 and len(re.findall(r'^\+\+\+ ', diff, re.MULTILINE)) <= 2
    arguments = [*quick, '--iterations_per_epoch', '2', '--arch', 'conv4_frozen_normalize',
                 '--evaluation_metrics', 'e_recall@1']
    code, out, errors = executed(tmp_path, RUNS, applied(diff, copied(tmp_path / 'code')), json.dumps(arguments),
                                 json.dumps(command.split()))
    assert code == 0, errors
    codes = json.loads(out.splitlines()[-1])
    assert codes[:5] == [0] * 5, errors
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path, 'half_s1'))
    first, pieces, without = ([float(row['train_loss']) for row in rows_of(folder_of(tmp_path, f'{name}_s1'))[1:]]
                              for name in ('whole', 'pieces', 'without'))
    assert pieces == pytest.approx(first, rel=1e-3)
    state = checkpoint.load(folder_of(tmp_path, 'whole_s1') / 'checkpoint_last.pt')
    if 'optimizers' in diff:
        assert state['criterion_optimizer_1']['state'][0]['momentum_buffer'].any()
    else:
        assert first[0] != pytest.approx(without[0], rel=1e-3)
    if '--mix_alpha' in command:
        assert codes[5] == 2 and 'mixes the images of a whole batch' in errors
        assert not folder_of(tmp_path, 'processes_s1').exists()
