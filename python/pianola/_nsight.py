"""Exports of Nsight Systems (`nsys export --type sqlite`), turned into traces that the library reads.

Needs the standard library alone, so that the program `pianola` can start it by itself:

    nsight.py PROGRAM ARGUMENTS...    PROGRAM, with such a trace in the place of each export among ARGUMENTS

Source: Nsight Systems' User Guide, "SQLite Schema Reference", of 2021.5 to 2026.
"""

import contextlib
import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator, NoReturn, Optional, TextIO, Union
from urllib.parse import quote

try:
    import sqlite3
except ImportError:  # a Python that was built without it
    sqlite3 = None  # type: ignore[assignment]

_Path = Union[str, "os.PathLike[str]"]
_Row = tuple[Any, ...]

_MAGIC = b"SQLite format 3\0"
_AGAIN = "export the report again (nsys export --type sqlite REPORT.nsys-rep)"

# A file may come from anywhere. Exports have some ten instructions of SQLite for a row of a hundred bytes, and texts of a few
# thousand bytes at most; the pages of a damaged file may form a ring, and its rows never end.
_EFFORT_PIECE = 100_000  # instructions
_FREE_EFFORT, _EFFORT_PER_BYTE = 200, 50
_LONGEST_VALUE = 16 << 20
# As pianola/profile/read/time_check.hpp: no sum or difference of what is read can overflow.
_FURTHEST_TIME = 3_000_000_000_000_000_000
_LONGEST_PROFILE = 365 * 24 * 3600 * 1_000_000_000
_MOST_BYTES = 1 << 56
_MOST_LISTED = 16
_HAS_LIMIT = sys.version_info >= (3, 11)  # of what SQLite allocates for a value

# Of a table of work, then its own. False: versions may lack it.
_WORK = {"start": True, "end": True, "globalPid": False, "correlationId": False, "deviceId": True, "streamId": True,
         "graphId": False, "graphNodeId": False}  # fmt: skip
# Numbers of ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, in the words of torch.profiler.
_COPY_KINDS = ("<unknown>", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MIGRATIONS = range(11, 14)  # of unified memory, at faults of pages
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_RANGES = (59, 60)  # of ENUM_NSYS_EVENT_TYPE: push and pop, start and end; others are marks and names


class Refused(Exception):
    """A file that cannot be read, in the three parts of all of Pianola's errors."""

    def __init__(self, what: str, fix: str, where: str = "") -> None:
        super().__init__(what + (f"\n  where: {where}" if where else "") + f"\n  fix:   {fix}")
        self.what, self.fix, self.where = what, fix, where


def is_export(path: _Path) -> bool:
    """By its first bytes, or by the name of a file that is there."""
    file = Path(path)
    with contextlib.suppress(OSError):
        if not file.is_file():
            return False  # to open a pipe would wait for its writer
        with file.open("rb") as begin:
            return begin.read(len(_MAGIC)) == _MAGIC or file.suffix == ".sqlite"
    return file.suffix == ".sqlite"


def _integer(value: Any) -> int:
    """As SQLite makes an integer of a value of any type."""
    if type(value) is int:
        return value
    if isinstance(value, float):
        return 0 if math.isnan(value) else int(min(max(value, -(2.0**63)), 2.0**63 - 1024))
    found = re.match(r"\s*[+-]?\d{1,18}", value) if isinstance(value, str) else None
    return int(found.group()) if found else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _word(words: tuple[str, ...], number: Any, otherwise: str) -> str:
    place = -1 if number is None else _integer(number)
    return words[place] if 0 <= place < len(words) else otherwise


def _counted(number: int, noun: str, after: str = "", ending: str = "s") -> str:
    """ "1 call was", "2 calls were" """
    return f"{number} {noun}{'' if number == 1 else ending}{after} {'was' if number == 1 else 'were'}"


def _microseconds(time: int) -> str:
    whole, rest = divmod(abs(time), 1000)
    return f"{'-' if time < 0 else ''}{whole}.{rest:03d}"


def _within_limit(row: _Row) -> _Row:
    if any(isinstance(value, (str, bytes)) and len(value) > _LONGEST_VALUE for value in row):
        raise sqlite3.DataError("string or blob too big")
    return row


class _Tables:
    """The tables of an export: only those that there was something for, with columns that differ between versions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._effort, self._most_effort = 0, _FREE_EFFORT
        if not path.exists():
            raise Refused(f"there is no file '{path}'", "check the path")
        if not path.is_file() or path.open("rb").read(len(_MAGIC)) != _MAGIC:
            raise Refused(f"'{path}' is no SQLite file, or one that you may not read", _AGAIN + ", and wait until that has ended")
        if sqlite3 is None:
            raise Refused(f"'{path}' is an SQLite file, and this Python has no sqlite3", "set PIANOLA_PYTHON to one that has it")
        # As a URI, which alone can say that nobody changes the file: then SQLite locks nothing and looks for no journal.
        with self._told():
            uri = f"file://{quote(os.fsencode(path.absolute()))}?immutable=1&mode=ro"
            self._database = sqlite3.connect(uri, uri=True)
            self._database.set_progress_handler(self._count_effort, _EFFORT_PIECE)
            self._database.text_factory = lambda text: text.decode("utf-8", "replace")
            if _HAS_LIMIT:
                self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._database.execute("PRAGMA cell_size_check = ON")
            self._check_size()
        self._names = {row[0] for row in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not self.has("StringIds", "id", "value"):
            raise Refused(
                f"'{path}' is an SQLite file, but no export of Nsight Systems: it has no table StringIds",
                "name what `nsys export --type sqlite REPORT.nsys-rep` wrote",
            )

    def close(self) -> None:
        self._database.close()

    def _check_size(self) -> None:
        """SQLite notes a missing page when it gets there, but takes what a last page lacks for zeros."""
        size = self.path.stat().st_size
        ((wanted,),) = self.query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        self._most_effort += size * _EFFORT_PER_BYTE // _EFFORT_PIECE
        if size < wanted:
            self._refuse_damaged("its last page is not whole")

    def _count_effort(self) -> int:
        """Anything but 0 ends what SQLite does."""
        self._effort += 1
        return int(self._effort > self._most_effort)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OSError) as error:
            reason = f"SQLite says '{error}'"
            if "interrupted" in str(error):
                self._refuse_damaged("its tables hold more than a file of this size can")
            if "malformed" in str(error) or "not a database" in str(error):
                self._refuse_damaged(reason)
            raise Refused(
                f"'{self.path}' cannot be read: {reason}",
                "check that you may read the file, and that it is a whole export of nsys",
            ) from None
        except UnicodeDecodeError:  # what SQLite says quotes the file
            self._refuse_damaged("names in it are no text")

    def _refuse_damaged(self, reason: str) -> NoReturn:
        raise Refused(f"'{self.path}' is cut off or damaged: {reason}", _AGAIN + ", and wait until that has ended") from None

    def query(self, statement: str, *parameters: int) -> Iterator[_Row]:
        with self._told():
            rows = self._database.execute(statement, parameters)
            yield from rows if _HAS_LIMIT else map(_within_limit, rows)

    def has(self, table: str, *columns: str) -> bool:
        return table in self._names and self._columns(table) >= set(columns)

    def _columns(self, table: str) -> set[str]:
        """Those that are stored: what a file would have SQLite compute is left alone."""
        return {row[0] for row in self.query(f"SELECT name FROM pragma_table_info('{table}')")}

    def rows(self, table: str, columns: dict[str, bool]) -> Iterator[_Row]:
        """In the order of the columns; None where the table lacks one."""
        if not self.has(table):
            return
        there = self._columns(table)
        for column, is_needed in columns.items():
            if is_needed and column not in there:
                raise Refused(
                    f"the export '{self.path}' has no column '{column}' in its table {table}",
                    "export the report again with a newer nsys: nsys export --type sqlite REPORT.nsys-rep",
                    self.version(),
                )
        # "end" is a word of SQL; in double quotes it would be a text where there is no such column.
        yield from self.query(f"SELECT {', '.join(f'[{one}]' if one in there else 'NULL' for one in columns)} FROM [{table}]")

    def string(self, number: int) -> str:
        found = next(self.query("SELECT value FROM StringIds WHERE id = ?1", number), ("",))[0]
        return found if isinstance(found, str) else ""

    def version(self) -> str:
        """ "Nsight Systems 2024.6.2.225, schema 3.16.1", as far as the file says it."""
        told: dict[str, Any] = {}
        if self.has("META_DATA_EXPORT", "name", "value"):
            told = dict(self.query("SELECT name, value FROM META_DATA_EXPORT"))
        product, schema = told.get("EXPORT_PRODUCT_VERSION"), told.get("EXPORT_SCHEMA_VERSION")
        words = f"Nsight Systems {product}" if product else "an unknown version of Nsight Systems"
        return words + (f", schema {schema}" if schema else "")


class _Writer:
    """Events of Chrome's form, in the order of the tables; what is known of all only comes at the end."""

    def __init__(self, tables: _Tables, out: TextIO) -> None:
        self._tables, self._out = tables, out
        self._source = f"Nsight Systems export '{tables.path}'"
        self._table, self._row = "", 0
        self._separator = ""
        self._processes: dict[int, int] = {}  # Nsight's number of machine and process -> ours
        self._names: dict[int, str] = {}
        self._calls = self._work = self._ranges = self._untimed = self._migrations = self._graphs = 0
        self._extent: Optional[tuple[int, int]] = None
        self._sum = 0
        self._last = -_FURTHEST_TIME
        self._first_work: tuple[int, int, int] = (_FURTHEST_TIME, 0, 0)  # begin, end (negative), device

    def write(self) -> None:
        self._out.write(f'{{"pianolaSource": {json.dumps(self._source)},\n"traceEvents": [')
        self._write_calls()
        self._write_work("KERNEL", "kernel", {"demangledName": False, "shortName": False}, self._kernel_name)
        self._write_work("MEMCPY", "gpu_memcpy", {"bytes": True, "copyKind": True, "srcKind": False, "dstKind": False},
                         self._copy_name)  # fmt: skip
        self._write_work("MEMSET", "gpu_memset", {"bytes": True, "memKind": False},
                         lambda bytes, kind: f"Memset ({_word(_MEMORY_KINDS, kind, 'Unknown')})")  # fmt: skip
        self._graphs = -self._work
        # Where Nsight was told to record each launch of a graph as one, which it does by default.
        self._write_work("GRAPH_TRACE", "kernel", {"graphExecId": False}, None)
        self._graphs += self._work
        self._write_ranges()
        if not self._work:
            raise Refused(
                f"the export '{self._tables.path}' has no work of a GPU: {self._calls} calls of CUDA and {self._ranges} NVTX ranges",
                "record with `nsys profile --trace=cuda,nvtx COMMAND`, and with GPU work between its begin and end",
                self._tables.version(),
            )
        device = json.dumps([{"name": self._device_name()}])
        self._out.write(f'],\n"deviceProperties": {device},\n"pianolaNotes": {json.dumps(list(self._notes()))}}}\n')

    def _event(self, category: str, name: str, start: int, end: int, process: int, thread: int, args: str) -> None:
        self._out.write(
            f'{self._separator}\n{{"ph":"X","cat":"{category}","name":{_quoted(name)},"ts":{_microseconds(start)},'
            f'"dur":{_microseconds(end - start)},"pid":{process},"tid":{thread},"args":{{{args}}}}}'
        )
        self._separator = ","

    def _rows(self, table: str, columns: dict[str, bool]) -> Iterator[_Row]:
        self._table = table
        for self._row, row in enumerate(self._tables.rows(table, columns), 1):
            yield row

    def _write_calls(self) -> None:
        """The driver's too. Nsight names the version of a function's signature, too: "cudaLaunchKernel_v7000"."""
        columns = {"start": True, "end": True, "globalTid": True, "correlationId": False, "nameId": True}
        for start, end, thread, correlation, name in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", columns):
            if self._has_times(start, end):
                self._calls += 1
                self._event("nsys_call", self._name(_integer(name)), _integer(start), _integer(end),
                            self._process(thread), self._thread(thread), f'"correlation":{_unsigned(correlation)}')  # fmt: skip

    def _write_work(self, kind: str, category: str, own: dict[str, bool], name_of: Optional[Callable[..., str]]) -> None:
        for row in self._rows(f"CUPTI_ACTIVITY_KIND_{kind}", {**_WORK, **own}):
            start, end, process, correlation, device, stream, graph, node, *others = row
            if kind == "MEMCPY" and _integer(others[1]) in _MIGRATIONS:
                self._migrations += 1
                continue
            name = name_of(*others) if name_of else f"graph {_integer(graph)}"
            if not self._has_times(start, end):
                continue
            device = _integer(device)
            if not -(1 << 31) <= device < 1 << 31:
                self._refuse("device", device)
            args = (
                f'"device":{device},"stream":{_integer(stream)},"correlation":{_unsigned(correlation)},'
                f'"graph id":{_unsigned(graph)},"graph node id":{_unsigned(node)}'
            )
            if "bytes" in own:
                if not 0 <= _integer(others[0]) <= _MOST_BYTES:
                    self._refuse("bytes", _integer(others[0]))
                args += f',"bytes":{_integer(others[0])}'
            if process is not None:
                args += f',"process":{self._process(process)}'
            self._work += 1
            start, end = _integer(start), _integer(end)
            self._first_work = min(self._first_work, (start, -end, device))
            self._event(category, name, start, end, device, _integer(stream), args)

    def _write_ranges(self) -> None:
        columns = {"start": True, "end": True, "globalTid": True, "text": False, "textId": False, "eventType": True}
        for _, end, _, _, _, kind in self._rows("NVTX_EVENTS", columns):
            if _integer(kind) in _RANGES and _is_number(end):
                self._last = max(self._last, _integer(end))
        for start, end, thread, text, number, kind in self._rows("NVTX_EVENTS", columns):
            if _integer(kind) not in _RANGES:
                continue
            begin = _integer(start)
            is_open = not _is_number(end)  # it lasts until the end of the recording
            self._check(begin, begin if is_open else _integer(end))
            name = text if isinstance(text, str) else ""
            if not name and number is not None:
                name = self._name(_integer(number))
            self._ranges += 1
            self._event("nsys_range", name or "(a range without a name)", begin, max(begin, self._last) if is_open else _integer(end),
                        self._process(thread), self._thread(thread), "")  # fmt: skip

    def _kernel_name(self, demangled: Any, short: Any) -> str:
        return self._name(_integer(short if demangled is None else demangled)) or "(a kernel without a name)"

    def _copy_name(self, _bytes: Any, kind: Any, source: Any, destination: Any) -> str:
        memory = [_word(_MEMORY_KINDS, one, "Unknown") for one in (source, destination)]
        return f"Memcpy {_word(_COPY_KINDS, kind, '<unknown>')} ({memory[0]} -> {memory[1]})"

    def _name(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = self._tables.string(number)
        return self._names[number]

    def _process(self, number: Any) -> int:
        """Nsight numbers machine, process and thread in one: the last 24 bits are the thread's, the 24 before the process's."""
        return self._processes.setdefault(_unsigned(number) >> 24, len(self._processes))

    def _thread(self, number: Any) -> int:
        return _unsigned(number) & 0xFFFFFF

    def _has_times(self, start: Any, end: Any) -> bool:
        """CUPTI writes two zeros where it has no times."""
        if not (_is_number(start) and _is_number(end) and _integer(end)):
            self._untimed += 1
            return False
        self._check(_integer(start), _integer(end))
        self._last = max(self._last, _integer(end))
        return True

    def _check(self, begin: int, end: int) -> None:
        """As TimeCheck in C++, which names the file and the event alone."""
        problem = ""
        first, last = self._extent or (begin, end)
        self._extent = min(first, begin), max(last, end)
        if max(abs(begin), abs(end)) > _FURTHEST_TIME:
            problem = "it is more than 95 years from the zero of its clock"
        elif end < begin:
            problem = "it ends before it begins"
        elif end - begin > _LONGEST_PROFILE:
            problem = "it takes more than a year"
        elif self._extent[1] - self._extent[0] > _LONGEST_PROFILE:
            problem = "it is more than a year away from what was recorded before it"
        elif self._sum + end - begin > 2 * _FURTHEST_TIME:
            problem = "with it, what was recorded takes more than 190 years"
        self._sum += end - begin
        if problem:
            raise Refused(
                f"the {self._source} has a time that cannot be right: {problem}",
                "the file was damaged, or what wrote it mixed up its clocks: record it again",
                f"{self._place()}, from {begin} ns to {end} ns",
            )

    def _refuse(self, what: str, number: int) -> NoReturn:
        raise Refused(
            f"the {self._source} has a number that cannot be right: {what} {number}",
            f"the file was damaged: {_AGAIN}",
            self._place(),
        )

    def _place(self) -> str:
        return f"row {self._row} of the table {self._table}"

    def _device_name(self) -> str:
        """Of the device that worked first. Versions differ in the table that has it."""
        gpu = self._tables.has("TARGET_INFO_GPU", "id", "name")
        if gpu and self._tables.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
            statement = (
                "SELECT gpu.name FROM TARGET_INFO_GPU AS gpu JOIN TARGET_INFO_CUDA_DEVICE AS device ON gpu.id = device.gpuId "
                "WHERE device.cudaId = ?1"
            )
        elif gpu:
            statement = "SELECT name FROM TARGET_INFO_GPU WHERE id = ?1"
        elif self._tables.has("TARGET_INFO_CUDA_GPU", "deviceId", "name"):  # until 2021
            statement = "SELECT name FROM TARGET_INFO_CUDA_GPU WHERE deviceId = ?1"
        else:
            return ""
        name = next(self._tables.query(statement, self._first_work[2]), ("",))[0]
        return name if isinstance(name, str) else ""

    def _notes(self) -> Iterator[str]:
        if self._graphs:
            yield (
                f"{_counted(self._graphs, 'launch', ' of graphs', 'es')} recorded as one piece of work each: record with "
                "nsys profile --cuda-graph-trace=node to see what is inside"
            )
        if not self._calls:
            yield "no calls of CUDA were recorded: what the host did while the device was idle is not known"
        if self._untimed:
            some = "" if self._untimed == 1 else "s"
            yield f"{_counted(self._untimed, 'call', f' or piece{some} of work without times')} left out"
        if self._migrations:
            yield f"{_counted(self._migrations, 'migration', ' of unified memory')} left out"
        if len(self._processes) > 1:
            listed = [f"{ours} is {number & 0xFFFFFF}" for number, ours in list(self._processes.items())[:_MOST_LISTED]]
            more = len(self._processes) - len(listed)
            yield f"processes by number: {', '.join(listed)}" + (f", and {more} more" if more else "")


@functools.lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _unsigned(value: Any) -> int:
    return _integer(value) & 0xFFFFFFFFFFFFFFFF


def write_trace(export: _Path, out: TextIO) -> None:
    """Writes the events of an export as a trace of Chrome's form, a row at a time. The file is not changed, and nothing is put
    beside it.

    Raises:
        Refused: it is no export of Nsight Systems, is cut off or damaged, or has no work of a GPU.
    """
    tables = _Tables(Path(export))
    try:
        _Writer(tables, out).write()
    finally:
        tables.close()


@contextlib.contextmanager
def as_trace(path: _Path) -> Iterator[str]:
    """The path of what the library reads: of an export a trace, which lives as long as the context; any other path itself."""
    if not is_export(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory(prefix="pianola_") as folder:
        trace = Path(folder, "trace.json")
        with trace.open("w", encoding="utf-8") as out:
            write_trace(path, out)
        yield str(trace)


def main(program: str, *arguments: str) -> int:
    """The exit code of the program."""
    with contextlib.ExitStack() as traces:
        words = []
        for before, word in zip(("", *arguments), arguments):
            try:
                words.append(word if before.startswith("--") else traces.enter_context(as_trace(word)))
            except Refused as error:
                print(f"pianola: {error}", file=sys.stderr)
                return 1
        return subprocess.run([program, *words]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
