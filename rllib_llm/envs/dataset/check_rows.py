"""Check of a data file, line by line."""

from __future__ import annotations

import dataclasses

from rllib_llm.envs.dataset.index import DatasetSpec, files_of, scan
from rllib_llm.envs.dataset.prompt_digests import PromptDigests
from rllib_llm.envs.dataset.row_reader import RowNotes


@dataclasses.dataclass(frozen=True, slots=True)
class RowsReport:
    """Contents of a data file.

    Attributes:
        num_rows: Number of lines that are not blank.
        problems: Lines that cannot be tasks, with the reason.
        notes: Lines that can, but repeat the prompt of another.
        longest_prompt: Characters of the longest prompt.
    """

    num_rows: int
    problems: RowNotes
    notes: RowNotes
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
        lines += self.problems.report("error")
        return "\n".join([*lines, *self.notes.report("note")])


def check_rows(spec: DatasetSpec) -> RowsReport:
    """Read all rows and report those that cannot be tasks, and repeated prompts.

    Raises:
        ConfigError: A file cannot be read, or the grader does not exist.
    """
    files, _ = files_of(spec)
    problems, notes, prompts = RowNotes(), RowNotes(), PromptDigests()
    count = longest = 0

    def place(file: int, line: int) -> str:
        return f"{files[file].name}, line {line}"

    for each in scan(files, spec):
        count += 1
        if each.row is None:
            problems.add(f"{place(each.file, each.line)}: {each.problem}")
            continue
        longest = max(longest, len(each.row.prompt))
        prompts.add(each.digest, each.row.answer, (each.file, each.line))
    for row, first, is_same in prompts.repeated():
        other = "" if is_same else ", with another answer"
        notes.add(f"{place(*row)}: the prompt of {place(*first)} again{other}")
    return RowsReport(count, problems, notes, longest)
