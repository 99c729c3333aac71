"""Faults of input: YAML, CSV and command lines with a few characters or words changed."""
import functools
import os
import re
import shlex
import shutil
import signal

from benchmarks.faults.runs import outcome, refusal_or_other_value, start
from records import reading

PATIENCE = 15                                  # seconds after which a run with mutated input is asked to stop
NASTY = ['', '0', '-1', '9', '1e400', '9' * 25, '9' * 400, '9' * 5000, '0x10', '1_0', '.5', 'nan', '-inf', 'true',
         'null', '~', '2001-01-01', '12:30', '!!int abc', '!!binary a', '&a [*a]', '{a: 1}', '[1, [2]]', '[' * 2000,
         '"', "'", ': ', '- ', '#', '%', '=', ' ', '--', '\0', '\udc80', '\n', '\t', '−', 'é', '\u2028', '/', '..',
         '@1', '_', '<<: *a', '? x', '|\n', 'k' * 300]


def mutated(text, generator):
    """A text with one or two words replaced by something nasty, or characters removed, repeated or replaced."""
    for _ in range(1 + (generator.random() < .3)):
        words = list(re.finditer(r'[\w.@-]+', text))
        if words and generator.random() < .6:
            start, end = generator.choice(words).span()
            text = text[:start] + generator.choice(NASTY) + text[end:]
            continue
        place = generator.randrange(len(text) + 1)
        text = generator.choice([
            text[:place] + generator.choice(NASTY) + text[place:],
            text[:place] + text[place + 1:],
            text[:place] + text[place:place + 8] + text[place:],
            text[:place] + chr(generator.randrange(1, 256)) + text[place + 1:]])
    return text


def survives_input(lab, arguments):
    """None where main.py ends with 0 or 2; after PATIENCE seconds of work, it must stop when it is asked."""
    child = start([*arguments, '--save_path', 'runs'], functools.partial(os.chdir, lab.folder))
    if child.code(PATIENCE) is None:
        child.send(signal.SIGTERM)
    diverged = {1} if 'not finite' in child.text else set()             # such as with a learning rate of 9001
    problem = outcome(child, {0, 2, 130} | diverged)
    return problem and f'{shlex.join(map(str, arguments))!r}: {problem}'


def mutated_yaml(lab, n):
    """A --config file, and the config.yaml of a run folder without its checksum, with mutated text."""
    words = [str(word) for word in lab.arguments('plain', 'mutated') if word != lab.folder / 'runs']
    lines = re.findall(r'--(\w+)((?: (?!--)[^ ]+)*)', ' '.join(words).replace('--save_path ', ''))
    settings = {name: values.split() for name, values in lines} | {'n_epochs': ['0']}
    text = ''.join(f'{name}: {"true" if not values else values[0] if len(values) == 1 else values}\n'
                   for name, values in settings.items())
    for i in range(n):
        file = lab.folder / 'mutated.yaml'
        if i % 3 < 2:
            write(file, mutated(text, lab.random))
            problem = survives_input(lab, ['--config', file])
        else:
            folder = lab.copied(lab.half)
            content = (folder / 'config.yaml').read_text().partition('\n')[2]
            file = folder / 'config.yaml'
            write(file, mutated(content, lab.random))
            problem = survives_input(lab, [lab.random.choice(['--resume', '--reproduce', '--evaluate']), folder])
        if problem:
            shutil.copy(file, kept := lab.folder / f'failed_{lab.group()}.yaml')
            problem += f' ({kept})'
        yield problem


def mutated_csv(lab, n):
    """A --csv file of images, and the log.csv of a run folder, with mutated text."""
    file = lab.folder / 'mutated.csv'
    images = sorted((lab.folder / 'data').rglob('*.png'))
    text = 'path,label\n' + ''.join(f'{image},{image.parent.name}\n' for image in images)
    whole = reading.read(lab.half).rows
    for i in range(n):
        if i % 4 == 0:
            write(file, mutated(text, lab.random))
            problem = survives_input(lab, [*lab.arguments('plain', 'mutated'), '--n_epochs', '0', '--csv', file])
        else:
            folder = lab.copied(lab.half)
            write(folder / 'log.csv', mutated((folder / 'log.csv').read_text(), lab.random))
            problem = refusal_or_other_value(lambda folder=folder: reading.read(folder).rows, whole)
            if problem:
                problem = f'{folder}/log.csv: {problem}'
            else:
                shutil.rmtree(folder)
        yield problem


def mutated_command_lines(lab, n):
    """A command line with mutated, missing, repeated or exchanged words."""
    words = [str(word) for word in lab.arguments('plain', 'mutated')] + ['--n_epochs', '0']
    for _ in range(n):
        arguments = list(words)
        for _ in range(1 + (lab.random.random() < .3)):
            place, other = (lab.random.randrange(len(arguments)) for _ in range(2))
            how = lab.random.choice(['mutate', 'mutate', 'mutate', 'drop', 'repeat', 'exchange'])
            if how == 'mutate':
                arguments[place] = mutated(arguments[place], lab.random).replace('\0', '')      # no shell passes it on
            elif how == 'drop':
                del arguments[place]
            elif how == 'repeat':
                arguments.insert(other, arguments[place])
            else:
                arguments[place], arguments[other] = arguments[other], arguments[place]
        yield survives_input(lab, arguments)


def write(file, text):
    file.write_bytes(text.encode('utf-8', 'surrogateescape'))
