"""The lit collector's own behaviour: a broken RUN line must not pass."""

from __future__ import annotations

from pathlib import Path

import lit_runner

GOOD = "// CHECK: func.func @f\nfunc.func @f() { return }\n"


def run(tmp_path: Path, line: str, text: str = GOOD) -> str | None:
    source = tmp_path / "case.mlir"
    source.write_text(text)
    return lit_runner.run(line, source)


def test_pipe_in_process(tmp_path: Path) -> None:
    assert run(tmp_path, "tilewright opt %s | filecheck %s") is None


def test_a_failed_check_fails(tmp_path: Path) -> None:
    report = run(tmp_path, "tilewright opt %s | filecheck %s", GOOD.replace("@f\n", "@g\n"))
    assert report is not None
    assert "@g" in report
    assert "output of tilewright" in report


def test_a_failing_command_fails_the_line(tmp_path: Path) -> None:
    line = "tilewright opt %s --pass nope 2>&1 | filecheck %s"
    report = run(tmp_path, line, "// CHECK: error: no pass 'nope'\n")
    assert report is not None
    assert "tilewright: exit code 1" in report


def test_not_wants_a_failure(tmp_path: Path) -> None:
    line = "not tilewright opt %s --pass nope 2>&1 | filecheck %s"
    assert run(tmp_path, line, "// CHECK: error: no pass 'nope'\n") is None
    assert "should have failed" in (run(tmp_path, "not tilewright opt %s") or "")


def test_errors_stay_out_of_the_pipe(tmp_path: Path) -> None:
    report = run(tmp_path, "not tilewright opt %s --pass nope | filecheck %s", "// CHECK: error\n")
    assert report is not None
    assert "is empty" in report


def test_other_commands_go_to_a_shell(tmp_path: Path) -> None:
    assert lit_runner.parse("grep -c CHECK x > y") is None
    assert run(tmp_path, "grep -c CHECK %s > %t && test $(cat %t) = 1") is None
    assert "exit code 1" in (run(tmp_path, "false | cat") or "")
    assert run(tmp_path, "not false") is None


def test_lines_are_joined_and_substituted() -> None:
    text = "// RUN: tilewright opt %s \\\n// RUN:   | filecheck %s\n# RUN: cat %S/x%%\n"
    assert [" ".join(line.split()) for line in lit_runner.run_lines(text)] == \
        ["tilewright opt %s | filecheck %s", "cat %S/x%%"]
    assert lit_runner.substitute("a %s %% %S", Path("/d/f.mlir"), Path("/t")) == "a /d/f.mlir % /d"


def test_quoted_pipes_are_words() -> None:
    commands = lit_runner.parse("not tilewright opt x --pass 'a{b=\"c|d\"}' 2>&1 | filecheck y --check-prefix=BAD")
    assert commands is not None
    assert commands[0] == lit_runner.Command(("tilewright", "opt", "x", "--pass", 'a{b="c|d"}'), True, True)
    assert commands[1].words == ("filecheck", "y", "--check-prefix=BAD")
