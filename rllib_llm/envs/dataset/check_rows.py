"""Check of a data file, line by line."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.envs.dataset.index import DatasetSpec, files_of, scan
from rllib_llm.envs.dataset.row_files import DataFile
from rllib_llm.envs.dataset.row_reader import report_lines


@dataclasses.dataclass(frozen=True, slots=True)
class RowsReport:
    """Contents of a data file.

    Attributes:
        num_rows: Number of lines that are not blank.
        problems: Lines that cannot be tasks, with the reason.
        notes: Lines that can, but are probably not meant so.
        longest_prompt: Characters of the longest prompt.
    """

    num_rows: int
    problems: list[str]
    notes: list[str]
    longest_prompt: int

    @property
    def ok(self) -> bool:
        """True if there are rows and all can be tasks."""
        return not self.problems and self.num_rows > 0

    def __str__(self) -> str:
        good = self.num_rows - len(self.problems)
        lines = [
            f"{good:,} of {self.num_rows:,} rows can be tasks; "
            f"the longest prompt has {self.longest_prompt:,} characters"
        ]
        lines += report_lines("error", self.problems)
        return "\n".join([*lines, *report_lines("note", self.notes)])


def check_rows(spec: DatasetSpec) -> RowsReport:
    """Read all rows and report those that cannot be tasks, and repeated prompts.

    Raises:
        ConfigError: A file cannot be read, or the grader does not exist.
    """
    files, _ = files_of(spec)
    problems: list[str] = []
    notes: list[str] = []
    first_place: dict[int, tuple[str, int]] = {}
    count = longest = 0
    for each in scan(files, spec):
        count += 1
        place = _place(files[each.file], each.line)
        if each.row is None:
            problems.append(f"{place}: {each.problem}")
            continue
        longest = max(longest, len(each.row.prompt))
        # Hashes, not texts: the file may be larger than memory.
        answer = _hash_of(each.row.answer)
        first = first_place.setdefault(each.digest, (place, answer))
        if first[0] != place:
            other = "" if first[1] == answer else ", with another answer"
            notes.append(f"{place}: the prompt of {first[0]} again{other}")
    return RowsReport(count, problems, notes, longest)


def _place(file: DataFile, line: int) -> str:
    return f"{file.name}, line {line}"


def _hash_of(answer: Any) -> int:
    return hash(repr(answer))
