"""
Writes docs/claims.md and the table of verdicts in README.md, from studies/claims.yaml and the rows of the claims' runs.

python -m studies.claims_page [--rows FILE] [--classes FILE] [--folds FILE] [--page FILE] [--readme FILE]
"""
import argparse
import math
import sys
from pathlib import Path

from studies import claims, class_values
from studies.answers import markdown_table
from utilities import errors
from utilities.errors import UserError
from utilities.files import require_writable, write_text

ROWS = Path(__file__).parent / 'rows'
WAITING = 'no runs yet'
CONVERGED = 0.5              # points
RULES = '''\
- **confirmed**: the 95 % interval lies beyond the margin that matters; if methods are claimed to be equal, inside it.
- **refuted**: the interval lies on the other side of the margin.
- **undecided**: all else, and p ≥ 0.05 in the test against the margin, after Holm's correction over primary claims.

Claims, contrasts, margins, seeds and search spaces were fixed in `studies/claims.yaml` and `studies/Claims_Searches.sh`
before the first run. Effects are in points of MAP@R and of R@1, at the last epoch. Both halves of the classes are test
classes once; an effect is the mean over the two halves, and n is the number of seeds in both (of methods for
`spectral_decay` and `map_at_r`). Verdicts rest on the intervals over seeds (Student's t, from errors within halves).
*Classes* is the interval of the same runs over resampled test classes: it says how far other classes of the same data
might differ. Seeds are paired only between variants of one loss. What is cited from memory, and not from the paper, is
marked *remembered*. A verdict holds for these data, networks and sizes, and not for those of the papers.'''


def page_of(found, not_testable):
    """The text of the page. found: of claims.findings(); not_testable: of claims.load()."""
    primary = [word_of(one) for one in found if one.claim.primary]
    counts = [f'{primary.count(word)} {word}' for word in ('confirmed', 'refuted', 'undecided') if word in primary]
    if WAITING in primary:
        counts.append(f'{primary.count(WAITING)} without runs yet')
    lines = ['# Claims of the papers', '', f'{len(primary)} claims: {", ".join(counts)}.', '', RULES, '']
    numbers = {text: number for number, text in enumerate(dict.fromkeys(one.claim.protocol for one in found), start=1)}
    lines += markdown_table(['claim', 'data and control', 'effect', 'verdict', 'command'], [
        [f'[{one.claim.name}](#{one.claim.name}): {one.claim.says} *{source_of(one.claim)}*',
         f'{one.claim.data}, [protocol {numbers[one.claim.protocol]}](#protocols); control: {one.claim.control}',
         '<br>'.join(effects_of(one)), word_of(one), f'`{one.claim.command}`'] for one in found])
    lines += ['', '## Protocols', '', *(f'{number}. {text}.' for text, number in numbers.items())]
    for one in found:
        lines += ['', *section(one)]
    lines += ['', '## Not testable here', '',
              *(f'- {entry["name"]} ({entry["paper"]}): {entry["reason"]}' for entry in not_testable)]
    return '\n'.join([*lines, ''])


def with_verdicts(readme, found):
    """The text of the README with the table of the primary claims' verdicts in place of its last one."""
    heads = ['claim', 'paper', 'MAP@R', 'verdict']
    table = markdown_table(heads, [
        [f'[{one.claim.title}](docs/claims.md#{one.claim.name})', one.claim.paper.split()[0], effect_of(one),
         word_of(one)] for one in found if one.claim.primary])
    before, start, rest = readme.partition(f'| {" | ".join(heads)} |\n')
    if not start:
        raise UserError(f'the README has no table with the heads {", ".join(heads)}')
    old, end, after = rest.partition('\n\n')
    return '\n'.join([before + table[0], *table[1:]]) + end + after


def effect_of(one):
    estimates = list(filter(None, one.estimates.values()))
    return '' if not estimates else text_of(estimates[0]) if len(estimates) == 1 else range_of(estimates)


def source_of(claim):
    number = f'; its number: {claim.number}' if claim.number else ''
    return f'{claim.paper}, {claim.place}{number}{" (remembered)" if claim.is_remembered else ""}'


def effects_of(one):
    """Texts of the effect in MAP@R, over test classes, in R@1, and of n; or of their ranges over several contrasts."""
    estimates, beside = list(filter(None, one.estimates.values())), list(filter(None, one.beside.values()))
    if not estimates:
        return []
    n = min(estimate.n for estimate in estimates)
    if len(estimates) > 1:
        return [f'MAP@R {range_of(estimates)}', f'R@1 {range_of(beside)}', f'{len(estimates)} contrasts, n = {n}']
    classes, name = classes_of(estimates[0]), 'MAP@R ' if beside else ''
    return [f'{name}{text_of(estimates[0])}', *([f'classes {classes}'] if classes else []),
            *(f'R@1 {text_of(estimate)}' for estimate in beside), f'n = {n}']


def section(one):
    claim = one.claim
    expected = {'greater': f'more than {claim.margin:g}', 'at most': f'at most {claim.margin:g}',
                'equal': f'within ± {claim.margin:g}'}[claim.expects]
    lines = [f'## {claim.name}', '', f'- Registered: effect {expected}, {claim.seeds} seeds.']
    if one.lacking:
        lines.append(f'- No runs of {one.lacking} yet.')
    elif one.n_units < claim.seeds:
        lines.append(f'- {one.n_units} of {claim.seeds} seeds so far, so that there is no verdict yet.')
    if moving := {name: change for name, change in one.changes.items() if abs(change) >= CONVERGED}:
        names = ', '.join(f'{name} {change:+.1f}' for name, change in moving.items())
        lines.append(f'- Not converged: MAP@R on validation classes changes by {CONVERGED} points or more over the '
                     f'last third of the epochs: {names}.')
    elif one.changes:
        lines.append(f'- Converged: MAP@R on validation classes changes by less than {CONVERGED} points over the last '
                     'third of the epochs.')
    if len(one.estimates) > 1:
        lines += ['', *markdown_table(['contrast', 'MAP@R', 'classes', 'R@1', 'n'], [
            [name, text_of(estimate), classes_of(estimate), text_of(one.beside.get(name)), getattr(estimate, 'n', '')]
            for name, estimate in one.estimates.items()])]
    elif one.estimates:
        (name, estimate), = one.estimates.items()
        p = '' if math.isnan(one.p) else f'; p = {one.p:.3f} against the margin, corrected'
        lines.append(f'- Effect ({name}): {text_of(estimate)}{p}.')
    return lines


def word_of(one):
    return WAITING if one.lacking else one.word


def text_of(estimate):
    """'+1.2 (0.4 to 2.0)'."""
    return f'{estimate.mean:+.1f} ({span_of(estimate.interval())})' if estimate else ''


def classes_of(estimate):
    """'0.4 to 2.0', the interval over test classes."""
    found = estimate.interval_over_classes() if estimate else None
    return span_of(found) if found else ''


def span_of(interval):
    return 'no interval' if math.isnan(interval[0]) else f'{interval[0]:.1f} to {interval[1]:.1f}'


def range_of(estimates):
    means = [one.mean for one in estimates]
    return f'{min(means):+.1f} to {max(means):+.1f}'


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=Path, default=ROWS / 'claims.csv', help='rows of the runs, if there are any')
    parser.add_argument('--classes', type=Path, default=class_values.FILE, help='MAP@R per test class of the runs')
    parser.add_argument('--folds', type=Path, default=ROWS / 'claims_folds.csv', help='rows of the ensembles of folds')
    parser.add_argument('--page', type=Path, default=Path('docs/claims.md'), help='the page')
    parser.add_argument('--readme', type=Path, default=Path('README.md'), help='file with a table of verdicts')
    opt = parser.parse_args(arguments)
    require_writable(opt.page, '--page')
    require_writable(opt.readme, '--readme')
    known, not_testable = claims.load()
    classes = class_values.read(opt.classes) if opt.classes.exists() else {}
    results = (claims.results_of(opt.rows, classes) if opt.rows.exists() else {}) | (
        claims.ensembles_of(opt.folds) if opt.folds.exists() else {})
    found = claims.findings(known, results)
    write_text(opt.page, page_of(found, not_testable))
    write_text(opt.readme, with_verdicts(opt.readme.read_text(encoding='utf-8'), found))
    print(opt.page, opt.readme, sep='\n')


if __name__ == '__main__':
    with errors.reported('studies.claims_page') as end:
        main()
    sys.exit(end.code)
