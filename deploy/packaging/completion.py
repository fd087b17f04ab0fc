"""Shell completions for bash, zsh and fish, from the same parsers as --help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpt_exporter.cli.parser import PROGRAM
from deploy.packaging.options import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.packaging.options import Described, Option

_NOTICE: Final = f"Made from the parsers of {PROGRAM}: do not edit."


def _valued(command: Described) -> Iterator[Option]:
    return (option for option in command.options if option.flags and option.value is not None)


def _flags(command: Described) -> list[str]:
    return [flag for option in command.options for flag in option.flags]


# --- bash


def bash() -> str:
    """Return bash's completion; it works with and without the package bash-completion."""
    program, *commands = describe()
    names = [command.name for command in commands]
    lines = [
        f"# {_NOTICE}",
        "_ckpt_exporter() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' word",
        "    # bash splits --option=value at the equals sign.",
        "    if [[ $cur == = ]]; then cur=''",
        "    elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi",
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f"        case $word in {'|'.join(names)}) command=$word; break ;; esac",
        "    done",
        "    COMPREPLY=()",
        "    case $command:$prev in",
    ]
    for command in commands:
        for option in _valued(command):
            lines.append(f"        {'|'.join(f'{command.name}:{flag}' for flag in option.flags)})")
            lines.append(f"            {_bash_values(option)}return ;;")
    lines += ["    esac", "    case $command in"]
    lines.append(f"        '') {_bash_words([*names, *_flags(program)])} ;;")
    for command in commands:
        files = any(option.is_file for option in command.options if not option.flags)
        more = ' [[ $cur == -* ]] || _ckpt_exporter_files "$cur"' if files else ""
        lines.append(f"        {command.name}) {_bash_words(_flags(command))};{more} ;;")
    lines += [
        "    esac",
        "}",
        "_ckpt_exporter_files() {",
        "    compopt -o filenames 2>/dev/null",
        '    mapfile -t COMPREPLY < <(compgen -f -- "$1")',
        "}",
        f"complete -F _ckpt_exporter {PROGRAM}",
    ]
    return "\n".join(lines).replace(";;;", ";;").replace("; ;;", " ;;") + "\n"


def _bash_words(words: list[str] | tuple[str, ...]) -> str:
    return f"mapfile -t COMPREPLY < <(compgen -W '{' '.join(words)}' -- \"$cur\")"


def _bash_values(option: Option) -> str:
    if option.choices:
        return _bash_words(option.choices) + "; "
    return '_ckpt_exporter_files "$cur"; ' if option.is_file else ""


# --- zsh


def zsh() -> str:
    """Return zsh's completion function."""
    program, *commands = describe()
    lines = [
        f"#compdef {PROGRAM}",
        f"# {_NOTICE}",
        "_ckpt_exporter() {",
        "    local context state state_descr line",
        "    typeset -A opt_args",
        "    local -a commands=(",
        *(f"        {_quoted(f'{command.name}:{command.purpose}')}" for command in commands),
        "    )",
        "    _arguments -C \\",
        *(f"        {spec} \\" for option in program.options for spec in _zsh_specs(option)),
        "        '1:command:->command' '*::argument:->argument'",
        "    case $state in",
        "    command) _describe command commands ;;",
        "    argument)",
        "        case $words[1] in",
    ]
    for command in commands:
        specs = [spec for option in command.options for spec in _zsh_specs(option)]
        joined = " \\\n                ".join(specs)
        lines.append(f"        {command.name})\n            _arguments \\\n                {joined} ;;")
    lines += ["        esac ;;", "    esac", "}", '_ckpt_exporter "$@"']
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_specs(option: Option) -> Iterator[str]:
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    action = f"({' '.join(option.choices)})" if option.choices else ("_files" if option.is_file else " ")
    name = (option.value or "").strip("{}[]=").replace("[", "").replace("]", "").replace(":", "\\:")
    name = "value" if option.choices else name.lower().replace("name=", "")
    if not option.flags:
        yield _quoted(f"1:{name}:{action}")
        return
    for flag in option.flags:
        if option.value is None:
            yield _quoted(f"{flag}[{text}]")
        else:
            # `=` behind the name: --option value and --option=value.
            yield _quoted(f"*{flag}=[{text}]:{name}:{action}")


# --- fish


def fish() -> str:
    """Return fish's completions."""
    program, *commands = describe()
    names = " ".join(command.name for command in commands)
    nowhere = f"not __fish_seen_subcommand_from {names}"
    lines = [f"# {_NOTICE}", f"complete -c {PROGRAM} -f"]
    lines += [
        f"complete -c {PROGRAM} -n '{nowhere}' -a {command.name} -d {_fish(command.purpose)}"
        for command in commands
    ]
    for command in (program, *commands):
        where = f"__fish_seen_subcommand_from {command.name}" if command.name else nowhere
        lines += [f"complete -c {PROGRAM} -n '{where}'{_fish_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(option: Option) -> str:
    names = "".join(
        f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags
    )
    takes = " -r -F" if option.is_file and option.flags else " -F" if option.is_file else ""
    if option.value is not None and not option.is_file:
        takes = " -x" if option.flags else ""
    choices = f" -a {_fish(' '.join(option.choices))}" if option.choices else ""
    return f"{names}{takes}{choices} -d {_fish(option.help)}"
