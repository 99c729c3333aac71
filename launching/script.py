"""A script of runs: reads the commands `python main.py ...` of one, and writes one."""
import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from utilities import stopping
from utilities.errors import UserError
from utilities.files import write_text

MARKER = '# Launch_Runs.py executes this script with --list'       # the second line of a script that may be executed
SHELL = set(';&|<>()')                                            # characters that a shell would interpret
ASSIGNMENT = re.compile(r'([A-Za-z_]\w*)=(.*)', re.DOTALL)
VARIABLE = re.compile(r'\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})')
ARGUMENT = re.compile(r'\$(\d|\{\d+\})')                          # an argument of the script


def commands(file, environment=None):
    """
    The arguments of main.py in each run of a script: a list of lists of strings.

    environment: {variable: value} for a script that is executed, in addition to this process's environment.

    A file whose first line begins with #! and whose second line is MARKER is executed by bash with --list, and prints
    its commands. No other file is executed: its lines are commands `python main.py ...`, assignments NAME=VALUE,
    comments, and headings within three double quotes. $NAME is replaced by the value that the file has assigned to it,
    otherwise by the variable of the environment. Raises UserError for any other line.
    """
    text = read(file)
    if is_executable(text):
        text = listed_by(file, environment or {})
    found, assigned = [], {}
    for number, line in logical_lines(text):
        arguments = main_arguments(line, assigned, f'{file}, line {number}')
        if arguments is not None:
            found.append(arguments)
    if not found:
        raise UserError(f'{file}: there is no line python main.py ... in it')
    return found


def read(file):
    try:
        return Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{file}: not a script of runs ({getattr(error, "strerror", None) or error})') from None


def is_executable(text):
    first, second = [*text.splitlines()[:2], '', ''][:2]
    return first.startswith('#!') and second.rstrip() == MARKER


def listed_by(file, environment):
    """The output of the script when it is executed with --list. Raises KeyboardInterrupt where a stop was requested."""
    command = ['bash', str(file), '--list']
    settings = ''.join(f'{name}={shlex.quote(value)} ' for name, value in environment.items())
    print(f'Executing {settings}{shlex.join(command)}', file=sys.stderr, flush=True)
    with subprocess.Popen(command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as listing:
        try:
            while listing.returncode is None:
                stopping.check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    listed, errors = listing.communicate(timeout=stopping.POLL)
        except KeyboardInterrupt:
            listing.kill()
            raise
    stopping.check()                                  # Ctrl-C on a terminal also ends the script itself
    if listing.returncode:
        reason = (errors.strip().splitlines() or [f'exit code {listing.returncode}'])[-1]
        raise UserError(f'{file} --list failed: {reason}')
    return listed


def logical_lines(text):
    """Yields (number, line); a line that ends with a backslash is joined to the next one."""
    number, parts = 1, []
    for count, line in enumerate(text.splitlines(), start=1):
        parts.append(line.removesuffix('\\'))
        if not line.endswith('\\'):
            yield number, ' '.join(parts)
            number, parts = count + 1, []
    if parts:
        yield number, ' '.join(parts)


def main_arguments(line, assigned, where):
    """
    The arguments of main.py in a line; None for a line that is no command.

    assigned: {name: value} of the lines before, to which an assignment is added. where: names the line in errors.
    """
    if re.fullmatch(r'\s*""".*"""\s*', line):                     # a heading in the scripts of the public code
        return None
    words = split(line, where)
    if not words:
        return None
    if words[:-1] in ([], ['export']) and (assignment := ASSIGNMENT.fullmatch(words[-1])):
        name, value = assignment.groups()
        # an argument of the script is taken from the environment, under the name that it is assigned to
        assigned[name] = expanded(f'${name}' if ARGUMENT.fullmatch(value) else value, assigned, where)
        return None
    if not words[0].split('/')[-1].startswith('python') or words[1:2] not in (['main.py'], ['./main.py']):
        raise UserError(f'{where}: expected python main.py ..., not {" ".join(words[:3])}; a script with loops must '
                        f'print its commands when it is given --list, and have the second line "{MARKER}" '
                        '(docs/run_scripts.md)')
    return [expanded(word, assigned, where) for word in words[2:]]


def split(line, where):
    """The words of a line, as a shell would split it, without its comment."""
    words = shlex.shlex(line, posix=True, punctuation_chars=''.join(SHELL))
    words.whitespace_split, words.commenters = True, '#'
    try:
        return list(words)
    except ValueError as error:
        raise UserError(f'{where}: {str(error).lower()}') from None


def expanded(word, assigned, where):
    """The word with the values of its variables. Raises UserError for a word that only a shell can read."""
    def value(match):
        name = match[1] or match[2]
        found = assigned.get(name, os.environ.get(name))
        if found is None:
            raise UserError(f'{where}: ${name} has no value; set it in the file, or in the environment, as in: '
                            f'{name}=VALUE python Launch_Runs.py ...')
        return found

    rest = VARIABLE.sub('', word)
    if argument := ARGUMENT.search(rest):
        raise UserError(f'{where}: {argument[0]} is an argument of a script, and this file is not executed; write a '
                        'variable such as $gpu, and set it in the environment, as in: gpu=0 python Launch_Runs.py ...')
    if (word and set(word) <= SHELL) or '$' in rest or '`' in rest:
        raise UserError(f'{where}: only a shell can interpret {word}; write plain commands, or set the variable')
    return VARIABLE.sub(value, word)


def write(file, runs):
    """Writes a script, for bash or for Launch_Runs.py. runs: the arguments of main.py in each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, ''.join(f'{shlex.join(["python", "main.py", *arguments])}\n' for arguments in runs))
