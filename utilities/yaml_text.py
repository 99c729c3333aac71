"""YAML texts of plain values."""
import yaml

LONGEST = 50_000_000                 # characters of a text
PLAIN_TAGS = {f'tag:yaml.org,2002:{name}' for name in ('str', 'int', 'float', 'bool', 'null', 'seq', 'map')}


class YamlLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):            # ten times as fast, where PyYAML has it
    """Reads plain values only, and dates as strings, as the command line does."""
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != 'tag:yaml.org,2002:timestamp']
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    yaml_constructors = {tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items()
                         if tag is None or tag in PLAIN_TAGS}


class UniqueKeys(YamlLoader):
    """Refuses a mapping in which a key occurs twice."""

    def construct_mapping(self, node, deep=False):
        found = set()
        for key, _ in node.value:
            if str(key.value) in found:
                raise ValueError(f'line {key.start_mark.line + 1}: the key {key.value} occurs twice')
            found.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(text, loader=YamlLoader):
    """A YAML text of plain values -> its content. Raises ValueError, in one line, for other texts."""
    if len(text) > LONGEST:
        raise ValueError(f'longer than {LONGEST:,} characters')
    try:
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, KeyError, IndexError) as error:      # the last three for `!!int abc` and such
        raise ValueError(' '.join(str(error).split())[:200]) from None
