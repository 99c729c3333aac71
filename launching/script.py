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
NAME = r'[A-Za-z_][A-Za-z_0-9]*'
VARIABLE = rf'\$(?:{NAME}|\{{{NAME}\}})'
ASSIGNMENT = re.compile(rf'({NAME})=(.*)', re.DOTALL)
ARGUMENT = re.compile(r'"?\$(\d|\{\d+\})"?')                     # an argument of the script
TOKEN = re.compile(r"""
    (?P<heading>^[ \t]*"{3}[^\n]*"{3}[ \t]*$)                    # in the scripts of the public code
  | (?P<blank>[ \t]+|\\\n)
  | (?P<comment>\#[^\n]*)
  | (?P<end>\n)
  | (?P<word>(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+)
  | (?P<open>.)
""", re.VERBOSE | re.MULTILINE | re.DOTALL)
PIECE = re.compile(rf"""
    '(?P<single>[^']*)'
  | "(?P<double>(?:[^"\\]|\\.)*)"
  | \\(?P<escaped>.)
  | (?P<bare>{VARIABLE})
  | (?P<home>^~(?=/|$))
  | (?P<shell>[;&|<>()$`*?\[{{~])                                 # text that only a shell can interpret
  | (?P<plain>.)
""", re.VERBOSE | re.DOTALL)
IN_DOUBLE_QUOTES = re.compile(rf'\\(?P<escaped>[$`"\\\n])|(?P<variable>{VARIABLE})|(?P<shell>[$`])')


def commands(file):
    """
    The arguments of main.py in each run of a script: a list of lists of strings.

    A file whose first line begins with #! and whose second line is MARKER is executed by bash with --list, and prints
    its commands. No other file is executed: its lines are commands `python main.py ...`, assignments NAME=VALUE,
    comments, and headings within three double quotes. Words, quotes and variables are read as bash reads them. $NAME is
    replaced by the value that the file has assigned to it, otherwise by the variable of the environment. Raises
    UserError for any other line, and for words that only a shell can interpret.
    """
    text = read(file)
    first, _, rest = text.partition('\n')
    if first.startswith('#!') and rest.partition('\n')[0].rstrip() == MARKER:
        text = listed_by(file)
        file = f'output of {file} --list'
    found = []
    assigned = {}
    for number, words in lines_of_words(text, file):
        arguments = main_arguments(words, assigned, f'{file}, line {number}')
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


def listed_by(file):
    """The output of the script when it is executed with --list. Raises KeyboardInterrupt where a stop was requested."""
    command = ['bash', str(file), '--list']
    print(f'Executing {shlex.join(command)}', file=sys.stderr, flush=True)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as listing:
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


def lines_of_words(text, file):
    """Yields (number, words as they are written) for each line that has words; a backslash joins it to the next."""
    words = []
    for token in TOKEN.finditer(text):
        if token['word'] or token['open']:
            number = 1 + text.count('\n', 0, (words or [token])[0].start())
        if token['open']:
            raise UserError(f'{file}, line {number}: a quotation or a backslash without its end')
        if token['word']:
            words.append(token)
        elif token['end'] and words:
            yield number, [word[0] for word in words]
            words = []
    if words:
        yield number, [word[0] for word in words]


def main_arguments(words, assigned, where):
    """
    The arguments of main.py in a line, given as its words; None for an assignment.

    assigned: {name: value} of the lines before; an assignment is added to it. where: names the line in errors.
    """
    assignment = ASSIGNMENT.fullmatch(words[-1])
    if assignment and words[:-1] in ([], ['export']):
        name, value = assignment.groups()
        # an argument of the script is taken from the environment, under the name that it is assigned to
        value = f'${name}' if ARGUMENT.fullmatch(value) else value
        assigned[name] = text_of(value, assigned, where, is_divided=False)
        return None
    if not words[0].split('/')[-1].startswith('python') or words[1:2] not in (['main.py'], ['./main.py']):
        raise UserError(f'{where}: expected python main.py ..., not {" ".join(words[:3])}; a script with loops must '
                        f'print its commands when it is given --list, and have the second line "{MARKER}" '
                        '(docs/run_scripts.md)')
    arguments = []
    for word in words[2:]:
        if re.fullmatch(f'(?:{VARIABLE})+', word):                    # outside quotes: several words, or none
            arguments += text_of(word, assigned, where, is_divided=False).split()
        else:
            arguments.append(text_of(word, assigned, where))
    return arguments


def text_of(word, assigned, where, is_divided=True):
    """
    A word without its quotes, with the values of its variables. Raises UserError if only a shell can interpret it.

    is_divided: whether bash would divide the value of a variable outside quotes at its blanks.
    """
    def value_of(variable):
        name = variable.strip('${}')
        found = assigned.get(name, os.environ.get(name))
        if found is None:
            raise UserError(f'{where}: ${name} has no value; set it in the file, or in the environment, as in: '
                            f'{name}=VALUE python Launch_Runs.py ...')
        return found

    def unquoted(piece):
        kind = piece.lastgroup
        text = piece[kind]
        if kind == 'double':
            return IN_DOUBLE_QUOTES.sub(unquoted, text)
        if kind == 'home':
            return value_of('$HOME')
        if kind == 'variable':
            return value_of(text)
        if kind == 'bare':
            value = value_of(text)
            if re.search(r'[\s*?[]' if is_divided else r'[*?[]', value):
                raise UserError(f'{where}: a shell may replace the value of {text}, {value}, by several words; write '
                                f'"{text}"')
            return value
        if kind == 'shell' and ARGUMENT.search(word):
            raise UserError(f'{where}: {ARGUMENT.search(word)[0]} is an argument of a script, and this file is not '
                            'executed; write a variable such as $gpu, and set it in the environment, as in: gpu=0 '
                            'python Launch_Runs.py ...')
        if kind == 'shell':
            raise UserError(f'{where}: only a shell can interpret {word}; write a plain command, with such text in '
                            'quotes')
        return text.strip('\n') if kind == 'escaped' else text

    return PIECE.sub(unquoted, word)


def write(file, runs):
    """Writes a script, for bash or for Launch_Runs.py. runs: the arguments of main.py in each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, ''.join(f'{shlex.join(["python", "main.py", *arguments])}\n' for arguments in runs))
