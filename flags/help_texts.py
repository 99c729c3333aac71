"""--help: the flags that most runs set; --help WORD ...: a method, a group or a word; --help all: every flag."""
import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from utilities.errors import UserError

MOST = 30                     # flags that the page of a word explains; if more flags have the word, it explains those
                              # with the word in their name, and only names the others


class Help(argparse.Action):
    def __init__(self, option_strings, dest):
        super().__init__(option_strings, dest, nargs='*', default=argparse.SUPPRESS, metavar='WORD',
                         help='explain the flags of a method or a group, or the flags with a word in them; all: every '
                              'flag')

    def __call__(self, parser, namespace, words, option_string=None):
        print(page(parser, words), end='')
        parser.exit()


@dataclass
class Facts:
    """
    The properties of a flag that argparse does not know.

    resume:    whether --resume may change it, a property of its group: 'never', 'merge' (only with
               --merge_argparse_when_resuming) or 'free'; None where it is no property of a run.
    of:        the methods (losses, miners, samplers) that use it.
    common:    most runs set it.
    embedding: the embedding of an image depends on it, beside the weights; an index and an exported network record it.
    file:      it names a file that the run reads: its checksum is recorded, and --resume refuses another content.
    obsolete:  accepted for old scripts, always without effect.
    names:     the registry whose names are its values.
    arguments_of: the flag of the method whose arguments it gives as YAML mappings; these are merged by key over files.
    secret:    the environment variable by which other processes get its value, which is never written anywhere.
    """

    resume: str | None = None
    of: list | None = None
    common: bool = False
    embedding: bool = False
    file: bool = False
    obsolete: bool = False
    names: Iterable | None = None
    arguments_of: str | None = None
    secret: str | None = None


NOTHING = Facts()


def facts(action):
    """The Facts of a flag; the default Facts, if argparse's add_argument alone has declared it."""
    return getattr(action, 'facts', NOTHING)


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Appends to a flag's help: choices with their meanings, names, the default (not None, False or []), and facts."""

    def __init__(self, prog, **options):
        super().__init__(prog, max_help_position=40, width=120)

    def _fill_text(self, text, width, indent):
        return text if '\n' in text else super()._fill_text(text, width, indent)          # tables stay as they are

    def _get_help_string(self, action):
        return help_with_notes(action)

    def _get_default_metavar_for_optional(self, action):
        return getattr(action.type, '__name__', 'NAME')


def help_with_notes(action):
    known = facts(action)
    are_explained = isinstance(action.choices, dict) and not isinstance(action, argparse._SubParsersAction)
    meanings = [f'{name}: {meaning}' for name, meaning in action.choices.items()] if are_explained else []
    text = '; '.join([action.help or '', *meanings])
    if known.names:
        text += f'; names: {", ".join(known.names)}'
    is_unset = any(action.default is value for value in (None, False, argparse.SUPPRESS)) or action.default == []
    notes = []
    if action.option_strings and not is_unset:
        notes.append('default: %(default)s')
    if known.resume == 'free':
        notes.append('resumable')
    return f'{text} ({"; ".join(notes)})' if notes else text


def page(parser, words=()):
    """The help on these words, or all of it, or the front page."""
    if [*words] == ['all'] or not words and not any(facts(action).common for action in parser._actions):
        return parser.format_help()
    if not words:
        return front(parser)
    titles = [group.title.lower() for group in parser._action_groups]
    phrase = ' '.join(words)
    if phrase.lower() in titles:
        words = [phrase]
    return '\n'.join(about(parser, word) for word in words)


def front(parser):
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    section(formatter, 'flags that most runs set', [action for action in parser._actions if facts(action).common])
    lines = [f'  {group.title:<32}{len(group._group_actions):>4} flags  {group.description or ""}'.rstrip()
             for group in parser._action_groups if group._group_actions]
    return '\n'.join([formatter.format_help(), 'groups:', *lines, '', *(parser.epilog or '').splitlines(), ''])


def about(parser, word):
    """The page of one word: the flags of the methods and groups with this name, then all others that hold the word."""
    word = word.removeprefix('--')
    formatter = parser._get_formatter()
    commands = [command for action in parser._actions if isinstance(action, argparse._SubParsersAction)
                for command in dict.fromkeys(action.choices.values())]
    actions = [action for action in parser._actions if not facts(action).obsolete]
    found = False
    for action in actions:
        if word in (facts(action).names or ()):
            section(formatter, f'{action.option_strings[0]} {word}', [], summary(facts(action).names[word]))
            found = True
    explained = [action for action in actions if word in (facts(action).of or ())]
    section(formatter, f'flags of {word}', explained)                    # argparse omits a section without flags
    for group in parser._action_groups:
        if word.lower() == group.title.lower() or word.lower() in group.title.lower().split():
            section(formatter, group.title, [action for action in group._group_actions if action in actions],
                    group.description)
            explained += group._group_actions
    others = [action for action in actions if action not in explained and holds(action, word)
              and (word.lower() != 'resumable' or facts(action).resume == 'free')]        # not those that speak of it
    named = [action for action in others if word.lower() in option_name(action).lower()]
    if not explained and not found:
        shown = named if len(others) > MOST else others
        section(formatter, f'flags with "{word}"', shown)
        explained += shown
    rest = [option_name(action) for action in others if action not in explained]
    if rest:
        kind = 'other flags' if explained else 'flags'
        section(formatter, f'{kind} with "{word}"', [], ', '.join(rest))
    for command in commands:
        own = [action for action in command._actions if holds(action, word)]
        if own:
            section(formatter, command.prog, own)
            found = True
    if not (explained or found or others):
        raise UserError(f'--help {word}: no flag, method or group matches{similar(parser, word)}')
    return formatter.format_help()


def section(formatter, title, actions, text=None):
    formatter.start_section(title)
    formatter.add_text(text)
    formatter.add_arguments(actions)
    formatter.end_section()


def summary(part):
    """The first paragraph of the docstring of a part's file, in one line. part: a module, or something inside one."""
    module = part if inspect.ismodule(part) else sys.modules.get(getattr(part, '__module__', None))
    text = (module and inspect.getdoc(module)) or ''
    return ' '.join(text.split('\n\n')[0].split()).replace('%', '%%')


def option_name(action):
    return next((name for name in action.option_strings if name != '-h'), action.dest)


def holds(action, word):
    """Returns True if the name of a flag, or a word of its help, contains this word."""
    if any(word.lower() in name.lower() for name in (*action.option_strings, action.dest)):
        return True
    return bool(re.search(rf'(?<![a-z_]){re.escape(word)}', help_with_notes(action), re.IGNORECASE))


def similar(parser, word):
    names = {name for action in parser._actions for flag in action.option_strings
             for name in (flag.removeprefix('--'), *flag.removeprefix('--').split('_'))}
    names |= {name for action in parser._actions for name in facts(action).names or ()}
    names |= {group.title for group in parser._action_groups}
    close = difflib.get_close_matches(word, sorted(names), n=3)
    return f'; did you mean {" or ".join(close)}?' if close else ''
