"""
Writes docs/claims.md from studies/claims.yaml and the rows of the claims' runs.

python -m studies.claims_page [--rows FILE] [--folds FILE] [--page FILE]
"""
import argparse
import math
import sys
from pathlib import Path

from studies import claims
from studies.answers import markdown_table
from utilities import errors
from utilities.files import require_writable, write_text

ROWS = Path(__file__).parent / 'rows'
WAITING = 'no runs yet'
CONVERGED = 0.5              # points
RULES = '''\
- **confirmed**: the 95 % interval lies beyond the margin that matters; if methods are claimed to be equal, inside it.
- **refuted**: the interval lies on the other side of the margin.
- **undecided**: all else, and p ≥ 0.05 in the test against the margin, after Holm's correction over primary claims.

Claims, contrasts, margins and seeds were fixed in `studies/claims.yaml` before the first run. Effects are in points of
MAP@R and, beside it, of R@1, with 95 % intervals; n is the number of seeds, or of methods for `spectral_decay`. Seeds
are paired only between variants of one loss. What is cited from memory, and not from the paper itself, is marked
*remembered*.'''


def page_of(found, not_testable):
    """The text of the page. found: of claims.findings(); not_testable: of claims.load()."""
    primary = [word_of(one) for one in found if one.claim.primary]
    counts = [f'{primary.count(word)} {word}' for word in ('confirmed', 'refuted', 'undecided') if word in primary]
    if WAITING in primary:
        counts.append(f'{primary.count(WAITING)} without runs yet')
    lines = ['# Claims of the papers', '', f'{len(primary)} claims: {", ".join(counts)}.', '', RULES, '']
    lines += markdown_table(['claim', 'effect in MAP@R', 'effect in R@1', 'n', 'verdict'], [
        [f'[{one.claim.name}](#{one.claim.name})', text_of(one.estimates), text_of(one.beside),
         min((estimate.n for estimate in one.estimates.values() if estimate), default=''), word_of(one)]
        for one in found])
    for one in found:
        lines += ['', *section(one)]
    lines += ['', '## Not testable here', '',
              *(f'- {entry["name"]} ({entry["paper"]}): {entry["reason"]}' for entry in not_testable)]
    return '\n'.join([*lines, ''])


def section(one):
    claim = one.claim
    expected = {'greater': f'more than {claim.margin:g}', 'at most': f'at most {claim.margin:g}',
                'equal': f'within ± {claim.margin:g}'}[claim.expects]
    number = f' Number of the paper: {claim.number}' + (' (remembered).' if claim.is_remembered else '.') \
        if claim.number else ''
    lines = [f'## {claim.name}', '', f'{claim.says} {claim.paper}, {claim.place}'
             + (' (remembered)' if claim.is_remembered and not claim.number else '') + f'.{number}', '',
             f'- Data and protocol: {claim.protocol}.', f'- Control: {claim.control}.',
             f'- Registered: effect {expected}, {claim.seeds} seeds.']
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
        lines += ['', *markdown_table(['contrast', 'MAP@R', 'R@1', 'n'], [
            [name, text_of({name: estimate}), text_of({name: one.beside.get(name)}), estimate.n if estimate else 0]
            for name, estimate in one.estimates.items()])]
    elif one.estimates:
        p = '' if math.isnan(one.p) else f' (p = {one.p:.3f} against the margin, corrected)'
        lines.append(f'- Effect: {text_of(one.estimates)} in MAP@R, {text_of(one.beside) or "not defined"} in R@1; '
                     f'{word_of(one)}{p}.')
    return [*lines, '', '```bash', claim.command, '```']


def word_of(one):
    return WAITING if one.lacking else one.word


def text_of(estimates):
    """'+1.2 (0.4 to 2.0)', or the range of several Estimates."""
    known = [estimate for estimate in estimates.values() if estimate]
    if not known:
        return ''
    if len(known) == 1:
        low, high = known[0].interval()
        return f'{known[0].mean:+.1f} ({low:.1f} to {high:.1f})'
    return f'{min(estimate.mean for estimate in known):+.1f} to {max(estimate.mean for estimate in known):+.1f}'


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=Path, default=ROWS / 'claims.csv', help='rows of the runs, if there are any')
    parser.add_argument('--folds', type=Path, default=ROWS / 'claims_folds.csv', help='rows of the ensembles of folds')
    parser.add_argument('--page', type=Path, default=Path('docs/claims.md'), help='the page')
    opt = parser.parse_args(arguments)
    require_writable(opt.page, '--page')
    known, not_testable = claims.load()
    runs = (claims.runs_of(opt.rows) if opt.rows.exists() else {}) | (
        claims.ensembles_of(opt.folds) if opt.folds.exists() else {})
    write_text(opt.page, page_of(claims.findings(known, runs), not_testable))
    print(opt.page)


if __name__ == '__main__':
    with errors.reported('studies.claims_page') as end:
        main()
    sys.exit(end.code)
