"""A client's own record of what it was told is safe: CSV with a header, or Parquet.

Columns: `queue`; `publisher` and `number`, or `message` (GROUP-ENTRY-OFFSET); `time`, if it is
known: ISO 8601, or milliseconds since 1970. Others are passed over.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from chaos.postmortem.reading.inputs import BadInput

KNOWN: Final = ("queue", "publisher", "number", "message", "time")


def read_receipts(path: Path) -> list[tuple[str, str, int | None, int]]:
    """queue, message (`publisher:number` or as it is called), at_ms, row of the file from 1.
    BadInput: it is no such record, and why.
    """
    table = _table(path)
    columns = [name for name in KNOWN if name in table.column_names]
    if "queue" not in columns or not (
        {"publisher", "number"} <= {*columns} or "message" in columns
    ):
        raise BadInput(
            f"{path}: its columns are {', '.join(table.column_names)}; it needs queue, and"
            " publisher and number, or message"
        )
    return list(_rows(path, table.select(columns).to_pylist()))


def _table(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        kept = pc.ConvertOptions(column_types=dict.fromkeys(KNOWN, pa.string()))
        return pc.read_csv(path, convert_options=kept)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} is neither CSV with a header nor Parquet: {error}") from error


def _rows(path: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, int | None, int]]:
    for at, row in enumerate(rows, start=1):
        try:
            message = row.get("message") or f"{row['publisher']}:{int(row['number'])}"
            yield row["queue"], message, _ms(row.get("time")), at
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path}, row {at}: {row} cannot be read: {error}") from error


def _ms(time: Any) -> int | None:
    if time is None or time == "":
        return None
    if isinstance(time, str) and not time.isdigit():
        time = datetime.fromisoformat(time)
    if isinstance(time, datetime):
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1_000)
    return int(time)
