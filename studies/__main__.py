"""
Writes the tables of the studies into their places in docs/results.md, docs/comparison.md, studies/tables.md
and README.md, from the rows in studies/rows and reports/published. The prose of the pages stands in the pages.

python -m studies
"""
import re
import sys
from pathlib import Path

from studies import equality, methods, pages, published, questions
from studies.estimates import answer
from studies.pages import p_text, rounded, span, with_interval
from utilities import errors
from utilities.files import write_text
from utilities.text_tables import markdown

ROOT = Path(__file__).parents[1]
RESULTS = 'docs/results.md'
PAGES = (RESULTS, 'docs/comparison.md', 'studies/tables.md', 'README.md')
QUESTION = re.compile(r'^### (?P<title>[^\n]+)\n(?:(?!\n##).)*?<!-- table question (?P<name>\w+) -->', re.M | re.S)
UNITS = {'correlations': ' × 0.01', 'separated': ' pairs'}                     # units of effects that are not in points


def asked(question):
    return f'{dict(zip(questions.ASKS, (">", "<", "within ±"), strict=True))[question.expects]} {question.margin:g}'


def question_text(finding):
    """
    Returns the contrasts of one question with their intervals, and the command of its runs: a sentence for one
    contrast, and for several a table that also has the place of each interval.
    """
    question, unit = finding.question, UNITS.get(finding.question.effect, '')
    contrasts = [(name, with_interval(one) + unit, span(one.interval_over_classes()),
                  with_interval(beside) + (unit if beside else ''), answer(one, question.expects, question.margin)[0])
                 for name, (one, beside) in finding.contrasts.items()]
    numbers = sorted({one.n for one, _ in finding.contrasts.values()})
    origin = f'n = {" to ".join(map(str, numbers[:1] + numbers[1:][-1:]))}. `{question.command}`'
    if len(contrasts) > 1:
        heads = ['contrast', 'MAP@R', 'over test classes', 'R@1', f'asked: {asked(question)}']
        return f'{markdown(heads, contrasts)}\n\n{origin}'
    (name, effect, over_classes, recall, _), = contrasts
    parts = [f'{name}: {effect}', over_classes and f'over test classes {over_classes}', recall and f'R@1 {recall}']
    return f'{"; ".join(filter(None, parts))}; {origin}'


def check_table(found):
    """Returns the table of the contrasts of several questions, with the commands of their runs."""
    rows = [[name, with_interval(one), with_interval(beside), one.n, asked(finding.question),
             answer(one, finding.question.expects, finding.question.margin)[0]]
            for finding in found for name, (one, beside) in finding.contrasts.items()]
    commands = dict.fromkeys(f'`{finding.question.command}`' for finding in found)
    return f'{markdown(["contrast", "MAP@R", "R@1", "n", "asked", "is"], rows)}\n\n{"; ".join(commands)}'


def summary(found, titles, page):
    """Returns the rows of the table of questions. titles: {name: heading of its section in `page`}."""
    rows = []
    for one in found:
        estimates = [one.contrasts[name][0] for name in one.decisive]
        means = [estimate.mean for estimate in estimates]
        effect = with_interval(estimates[0]) if len(estimates) == 1 else (
            f'{rounded(min(means), "+")} to {rounded(max(means), "+")} ({len(means)} contrasts)')
        title = titles[one.question.name]
        anchor = re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
        effect += UNITS.get(one.question.effect, '')
        changing = f'{one.changing} of {one.n_methods}' if one.n_methods else ''
        rows.append([f'[{title}]({page}#{anchor})', effect, asked(one.question), one.answer, p_text(one.p), changing])
    return rows


def tables(titles):
    """Returns {name: text} of all tables. titles: {name of a question: its heading}."""
    found = questions.findings(questions.load(), questions.read())
    primary = [one for one in found if one.question.primary]
    checks = [one for one in found if not one.question.primary]
    heads = ['question', 'effect', 'asked', 'answer', 'p', 'still changing']
    short = [row[:4] for row in summary(primary, titles, RESULTS)]
    study = methods.read()
    of_questions = {f'question {one.question.name}': question_text(one) for one in primary}
    return of_questions | equality.tables() | published.tables() | {
        'answers': markdown(heads, summary(primary, titles, '')),
        'answers in short': markdown(heads[:4], short),
        'checks': check_table(checks), 'methods': methods.table(study), 'origins': methods.origins(study),
        'tuned on folds': methods.tuned_table(study)}


def main(root=ROOT):
    page = (root / RESULTS).read_text(encoding='utf-8')
    made = tables({match['name']: match['title'] for match in QUESTION.finditer(page)})
    for name in PAGES:
        write_text(root / name, pages.fill((root / name).read_text(encoding='utf-8'), made))
        print(name)


if __name__ == '__main__':
    with errors.reported('studies') as end:
        main()
    sys.exit(end.code)
