"""Configuration files of the command line, converted to flags."""

import argparse
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .suggestions import suggest

_SEPARATE = {"b": "rlink", "rlink": "b"}  # mutually exclusive options


def options_of_commands(parser: argparse.ArgumentParser) -> dict[str, dict[str, argparse.Action]]:
    """Return the options of each command by their names in a configuration file."""
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {
        command: {action.dest: action for action in sub._actions if action.dest not in ("help", "config")}
        for command, sub in subparsers.choices.items()
    }


def flags_of_config(
    path: Path, given: argparse.Namespace, commands: dict[str, dict[str, argparse.Action]]
) -> list[str]:
    """Convert a configuration file to arguments, without entries that are also given as arguments.

    Entries outside of tables are for all commands that have the option; entries in the table of a command are for that
    command only.
    """
    options = commands[given.command]
    flags: list[str] = []
    for_all, own = _read_config(path, given.command, commands)
    for name, value in (for_all | own).items():
        option = options.get(name)
        if option is None and name not in own and any(name in accepted for accepted in commands.values()):
            continue
        if option is None:
            known = ", ".join(sorted(name.replace("_", "-") for name in options))
            advice = suggest(f"--{name}", [flag for option in options.values() for flag in option.option_strings])
            raise ValueError(
                f"{path} has an option {name!r}, which {given.command} does not have; {advice and f'{advice}. '}"
                f"{'Its' if advice else 'its'} options are {known}."
            )
        is_replaced = getattr(given, _SEPARATE.get(name, ""), None) is not None
        if is_replaced or (not option.option_strings and getattr(given, name)):
            continue
        flags += _as_flags(path, name, value, option)
    return flags


def _read_config(path: Path, command: str, commands: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of a configuration file for all commands, and for this command."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        raise ValueError(f"The configuration file {path} does not exist; check the path.") from None
    except OSError as error:
        raise ValueError(
            f"The configuration file {path} cannot be read ({error.strerror}); check its permissions."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"The configuration file {path} is not valid TOML ({error}); correct it.") from None
    own = content.get(command, {})
    if not isinstance(own, dict):
        raise ValueError(
            f"{path} has {command!r} as an option, but it is a command; write [{command}] above its options."
        )
    tables = {name for name, value in content.items() if isinstance(value, dict)}
    if unknown := sorted(tables - set(commands)):
        raise ValueError(
            f"{path} has a table [{unknown[0]}], which is not a command; use one of {', '.join(commands)}."
        )
    for_all = {name: value for name, value in content.items() if name not in tables}
    return _named(for_all), _named(own)


def _named(entries: dict[str, Any]) -> dict[str, Any]:
    """Return ``entries`` under the Python names of the options."""
    return {name.replace("-", "_"): value for name, value in entries.items()}


def _as_flags(path: Path, name: str, value: Any, option: argparse.Action) -> list[str]:
    """Convert one entry of a configuration file to arguments."""
    takes_value = option.nargs != 0
    if isinstance(value, bool) and not (takes_value and option.const is None):
        return [option.option_strings[-1]] if value else []
    values = value if isinstance(value, list) else [value]
    if not takes_value or isinstance(value, bool) or not all(isinstance(entry, (str, int, float)) for entry in values):
        required = "a string, a number or a list of strings and numbers" if takes_value else "true or false"
        raise ValueError(f"{path} has {value!r} as {name.replace('_', '-')}; it must be {required}.")
    if not option.option_strings:
        return [str(entry) for entry in values]
    return [f"{option.option_strings[-1]}={','.join(str(entry) for entry in values)}"]
