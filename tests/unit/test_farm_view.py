"""A farm as people and programs see it: a line, an event, a section of the report page, and what old logs hold."""

from __future__ import annotations

import msgspec
import pytest

from tilewright.compiler.cli.farm_view import farm_event, farm_line
from tilewright.compiler.report.farm_section import farm_section
from tilewright.search.database.farm_records import FarmRecord, MarkRecord
from tilewright.search.task_scheduler.farm_progress import FarmProgress

RECORD = FarmRecord("run", 20.0, 3, 4, 2, in_flight=6, ready=1, builds=40, measurements=90, lost=2, retried=1,
                    quarantined=("runner a",), driver=0.04, build_overhead=0.004, run_overhead=0.003)


def test_a_line_and_an_event() -> None:
    state = FarmProgress(RECORD, 2.5, 5.25, "host")
    line = farm_line(state)
    for part in ("farm for host: 3 nodes, 4 builders, 2 runners", "6 under way, 1 built", "2.5 builds/s", "overhead 7 ms",
                 "driver 4% of a core", "2 lost, 1 quarantined"):
        assert part in line
    event = farm_event(state)
    assert event["target"] == "host" and event["measurements_per_second"] == 5.25 and event["quarantined"] == ("runner a",)
    assert not {"record", "schema", "run"} & event.keys()


def test_the_report_has_the_last_run_and_what_is_in_doubt() -> None:
    pytest.importorskip("plotly")
    before = FarmRecord("earlier", 5.0, 9, 9, 9)
    section = farm_section([before, RECORD], [MarkRecord("runner a", 10.0, 30.0, "it drifted")])
    facts = dict(section.facts)
    assert (facts["nodes"], facts["actors lost"], facts["beside the work of a build"]) == ("3", "2", "4.0 ms")
    assert section.tables[0].rows == (("runner a", "10 to 30", "it drifted"),)


def test_a_record_of_the_first_schema_is_read() -> None:
    old = {k: v for k, v in msgspec.to_builtins(RECORD).items() if not k.endswith("overhead")} | {"schema": 1}
    assert msgspec.convert(old, FarmRecord).run_overhead == 0.0
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(old | {"schema": 3}, FarmRecord)
