"""A campaign with one repeat of very many requests, written straight from arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.records.requests import REQUEST_SCHEMA
from make_requests import T0_NS, Shape, client_record, request_rows
from make_results import Scene

ROW_GROUP = 20_000


class Million(Scene):
    """One arm, one point, one repeat of ``n`` requests with ``chunks`` events each."""

    def __init__(self, root: Path, n: int, chunks: int):
        super().__init__(root)
        self.n, self.chunks = n, chunks
        self.order, self.comparisons = ["base"], []
        del self.arms["fast"]
        self.points = {"chat_c2": self.points["chat_c2"] | {"repeats": 1, "requests": n}}

    def phase(self, row: str, folder: Path, t0_ns: int) -> list[Path]:
        shape = Shape(requests=self.n, n_output=self.chunks)
        template = request_rows(
            Shape(requests=1, n_output=self.chunks), self.session_id("base"), "chat_c2", T0_NS
        )[0]
        folder.mkdir(parents=True)
        path = folder / "requests.parquet"
        with pq.ParquetWriter(path, REQUEST_SCHEMA) as writer:
            for start in range(0, self.n, ROW_GROUP):
                count = min(ROW_GROUP, self.n - start)
                writer.write_table(self.group(template, start, count))
        client = self.put(folder / "client.json", client_record(shape, phase={"t_start_ns": T0_NS}))
        counters = self.put(
            folder / "counters.json", {"delta": {"prompt_tokens": 40 * self.n, "cached_prompt_tokens": 0}}
        )
        return [path, client, counters]

    def group(self, template: dict[str, object], start: int, count: int) -> pa.Table:
        """Rows ``start`` on: the template, one request after the other, the first token a little later each time."""
        number = np.arange(start, start + count, dtype=np.int64)
        shift = number * 1_000
        columns = {}
        for field in REQUEST_SCHEMA:
            value = template[field.name]
            if field.name.startswith("t_"):
                late = shift + (number % 1_000 if field.name != "t_send_ns" else 0)
                columns[field.name] = pa.array(np.int64(value) + late)  # type: ignore[call-overload]
            elif field.name == "chunk_offsets_ns":
                offsets = np.tile(np.asarray(value, dtype=np.int64), count) + np.repeat(
                    number % 1_000, self.chunks
                )
                bounds = pa.array(np.arange(0, (count + 1) * self.chunks, self.chunks, dtype=np.int32))
                columns[field.name] = pa.ListArray.from_arrays(bounds, pa.array(offsets))
            else:
                columns[field.name] = pa.array([value] * count, type=field.type)
        return pa.table(columns, schema=REQUEST_SCHEMA)
