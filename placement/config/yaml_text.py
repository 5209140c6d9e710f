"""Reads YAML as people write configs: 3e-4 is a number, yes a word, a key twice a fault.

PyYAML reads YAML 1.1; scalars here are those of the YAML 1.2 core schema, and 1_000_000. Written
text has the same meaning here and to PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from gmi_drl.placement.faults import ABSENT, Fault

Path = tuple[str, ...]  # keys from the root; of a list, numbers from 0
_BITS: Final = 128  # of a whole number; Python does not print all larger ones
_NONE: Final = object()


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuses values on which PyYAML raises errors of int(): `!!int abc`, 5000 digits."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            value = _NONE
        if value is _NONE or (isinstance(value, int) and value.bit_length() > _BITS):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"this is no {kind}, or one too large", node.start_mark
            )
        return value


def _resolve(tag: str, pattern: str, first: Sequence[str]) -> None:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first)
    )


_EXPONENT = r"[eE][-+]?[0-9]+"
_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("null", "~|null|Null|NULL|", ["~", "n", "N", ""])
_resolve("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789")
_resolve(
    "float",
    rf"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:{_EXPONENT})?|[0-9][0-9_]*{_EXPONENT}"
    rf"|\.[0-9]+(?:{_EXPONENT})?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
_resolve("merge", "<<", "<")


class _Dumper(yaml.SafeDumper):
    """Writes a key a line, lists within one, and quotes text that would be read as something else.

    By YAML 1.1 or by what is read here: to PyYAML 1e5 is text.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        first: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
            *_Loader.yaml_implicit_resolvers.get(first, []),
        ]
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
    }


_Dumper.add_representer(
    list,
    lambda dumper, one: dumper.represent_sequence("tag:yaml.org,2002:seq", one, flow_style=True),
)
# PyYAML reads a NEL within other quotes as a blank.
_Dumper.add_representer(
    str,
    lambda dumper, one: dumper.represent_scalar(
        "tag:yaml.org,2002:str", one, style='"' if "\x85" in one else None
    ),
)


def write_yaml(data: Any) -> str:
    """Returns plain data as text that `read_yaml` reads as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(text: str, source: str) -> tuple[Any, dict[Path, int], list[Fault]]:
    """Returns the data (None if the text is faulty), the line of each key, and the faults."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}, []
        lines: dict[Path, int] = {}
        faults: list[Fault] = []
        _walk(node, (), lines, faults, set())
        data = None if faults else loader.construct_document(node)
        return data, lines, faults
    except yaml.YAMLError as error:
        return None, {}, [_syntax_fault(error, source)]
    except RecursionError:
        return None, {}, [Fault(source, ABSENT, "is nested too deeply", "Make it flatter.")]
    finally:
        if loader is not None:
            loader.dispose()


def read_value(text: str) -> Any:
    """Returns the value of `--set key=text`; yaml.YAMLError if it is not one."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _walk(
    node: yaml.Node, path: Path, lines: dict[Path, int], faults: list[Fault], visited: set[int]
) -> None:
    if id(node) in visited:  # an alias, perhaps of a node around it
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            child_path = (*path, str(number))
            lines.setdefault(child_path, value.start_mark.line + 1)
            _walk(value, child_path, lines, faults, visited)
    if not isinstance(node, yaml.MappingNode):
        return
    first_lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            continue
        name, line = str(key.value), key.start_mark.line + 1
        child_path = (*path, name)
        if name in first_lines:
            rule = f"given twice, first in line {first_lines[name]}"
            faults.append(Fault(".".join(child_path), ABSENT, rule, "Keep one of them.", line))
        first_lines.setdefault(name, line)
        lines.setdefault(child_path, line)
        _walk(value, child_path, lines, faults, visited)


def _syntax_fault(error: yaml.YAMLError, source: str) -> Fault:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, remedy = error.problem_mark, "Look at this line and the one above."
        position, rule = f"{source}, column {mark.column + 1}", error.problem or "cannot be read"
        return Fault(position, ABSENT, f"not YAML: {rule}", remedy, mark.line + 1)
    return Fault(source, ABSENT, f"not YAML: {str(error).splitlines()[0]}", "Correct it.")
