"""Runs the RUN lines of lit files, in this process where it can.

A RUN line made of `tilewright`, `filecheck`, `not`, `cat`, pipes and `2>&1` needs no new process: one
costs half a second, mostly imports. Any other line goes to bash, with the same commands at hand.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 300
_RUN = re.compile(r"^\s*(?://|#)\s*RUN:\s?(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One stage of a pipe: its words, whether `not` stands before it, whether its errors join its output."""

    words: tuple[str, ...]
    negated: bool
    join_errors: bool


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str


def run_lines(text: str) -> list[str]:
    """The RUN lines of a lit file; a trailing backslash joins a line with the next one."""
    joined = re.sub(r"\\\n\s*(?://|#)\s*RUN:\s?", " ", text)
    return [m.strip() for m in _RUN.findall(joined)]


def substitute(line: str, source: Path, temporary: Path) -> str:
    """%s the file, %S its folder, %t a temporary path, %% a percent sign."""
    table = {"%%": "%", "%s": shlex.quote(str(source)), "%S": shlex.quote(str(source.parent)),
             "%t": shlex.quote(str(temporary))}
    return re.sub(r"%[%sSt]", lambda m: table[m[0]], line)


def parse(line: str) -> list[Command] | None:
    """The stages of a pipe, or None where only a shell understands the line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    stages: list[list[str]] = [[]]
    try:
        for token in lexer:
            if token == "|":
                stages.append([])
            else:
                stages[-1].append(token)
    except ValueError:
        return None
    commands = [_command(stage) for stage in stages]
    return None if None in commands else [c for c in commands if c is not None]


def _command(words: list[str]) -> Command | None:
    join_errors = words[-3:] == ["2", ">&", "1"]
    if join_errors:
        words = words[:-3]
    negated = words[:1] == ["not"]
    if negated:
        words = words[1:]
    if not words or words[0] not in ("tilewright", "filecheck", "cat"):
        return None
    if any(re.fullmatch(r"[();<>|&]+", w) for w in words):
        return None
    return Command(tuple(words), negated, join_errors)


def run(line: str, source: Path) -> str | None:
    """Run one RUN line; None when it succeeded, else a report for people."""
    with tempfile.TemporaryDirectory() as folder:
        expanded = substitute(line, source, Path(folder) / "tmp")
        commands = parse(expanded)
        return _run_here(commands, expanded) if commands else _run_shell(expanded)


def _run_here(commands: list[Command], line: str) -> str | None:
    data, report = "", [f"$ {line}"]
    failed = False
    for command in commands:
        outcome = _call(command, data)
        wrong = (outcome.code == 0) == command.negated
        failed = failed or wrong
        if outcome.errors or wrong:
            verdict = "succeeded, and should have failed" if wrong and command.negated else f"exit code {outcome.code}"
            report += [f"--- {command.words[0]}: {verdict}", outcome.errors.rstrip()]
        if command.words[0] != "filecheck":
            report += [f"--- output of {command.words[0]}", outcome.output.rstrip()]
        data = outcome.output
    return "\n".join(report) if failed else None


def _call(command: Command, data: str) -> Outcome:
    output, errors = io.StringIO(), io.StringIO()
    stdin = sys.stdin
    sys.stdin = io.StringIO(data)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output if command.join_errors else errors):
            code = _main(command.words)
    finally:
        sys.stdin = stdin
    return Outcome(code, output.getvalue(), errors.getvalue())


def _main(words: tuple[str, ...]) -> int:
    """The exit code of a command called as a function. A crash is an exception: a failure under `not`, too."""
    try:
        if words[0] == "tilewright":
            from tilewright.compiler.cli.main import main

            return main(words[1:])
        if words[0] == "cat":
            for name in words[1:]:
                sys.stdout.write(Path(name).read_text())
            return 0
        from filecheck.main import main as filecheck

        filecheck(list(words))
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _run_shell(line: str) -> str | None:
    python = shlex.quote(sys.executable)
    script = (f'set -o pipefail\ntilewright() {{ {python} -P -m tilewright.compiler.cli.main "$@"; }}\n'
              f'filecheck() {{ {python} -m filecheck "$@"; }}\nnot() {{ ! "$@"; }}\n{line}\n')
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=TIME_LIMIT)
    if done.returncode == 0:
        return None
    return f"$ {line}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
