"""Answer questions about a database with SQL queries."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.sql_agent.guard import QueryResult, query, table_text
from rllib_llm.envs.sql_agent.questions import LEVELS, draw_question
from rllib_llm.envs.sql_agent.world import TABLES, schema, world
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.graders.query_results import rows_match
from rllib_llm.graders.short_answers import normalise, read_number

_MOST_ANSWERS = 4


@register_text_env("sql_agent-v0")
class SQLAgent(ToolOrAnswer):
    """Query a database, then answer. Return 1 if the answer is right.

    Each episode has its own database, which queries cannot change. Questions are split
    into train and test by the hash of their text.
    """

    max_turns = 4
    format_hint = "Use <sql>SELECT ...</sql> or <answer>...</answer>."
    tagged = re.compile(r"<(sql|answer)>((?:(?!<\1>).)*?)</\1>", re.DOTALL)

    def start(
        self,
        rng: np.random.Generator,
        level: int = 1,
        worlds: int = 1000,
        rows: int = 5,
    ) -> str:
        """Draw a database and a question about it.

        Args:
            rng: Generator of both.
            level: Number of tables, 1 to 3; level 2 needs joins, 3 groups and nesting.
            worlds: Number of databases to draw from, >= 1.
            rows: Maximum number of rows that a result shows, in [1, 50].
        """
        require_int("level", level, 1, len(LEVELS))
        require_int("worlds", worlds, 1, 2**31 - 1)
        self.rows = require_int("rows", rows, 1, 50)
        self.level = level
        while True:
            self.world = int(rng.integers(worlds))
            self.question = draw_question(rng, level, world(self.world, level)[1])
            gold_rows = self._query(self.question.sql).rows
            self.gold = tuple(row[0] for row in gold_rows)
            # Questions with a long, empty or NULL answer are drawn again.
            is_clear = 1 <= len(self.gold) <= _MOST_ANSWERS and None not in self.gold
            if is_clear and in_split(self.question.text, self.split):
                break
        self._is_shown = False
        return (
            f"Tables: {schema(level)}. {self.question.text} "
            "Use <sql>SELECT ...</sql>, then <answer>...</answer>."
        )

    def use(self, text: str) -> str:
        """Run a query."""
        result = self._query(text)
        values = tuple(row[0] for row in result.rows)
        self._is_shown = values == self.gold and len(values) <= self.rows
        self.used = {"tool": "sql", "query": text, "tool_error": bool(result.error)}
        return table_text(result, self.rows)

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare the values with the right ones, in any order."""
        given = [[_value(part)] for part in answer.split(",")]
        is_right = rows_match(given, [[_value(str(value))] for value in self.gold])
        return float(is_right), is_right

    def more_info(self) -> dict[str, Any]:
        """Return the right answer and query, and the tool's use in this turn."""
        return {
            "gold_answers": [self._answer()],
            "gold_queries": [self.question.sql],
            "tool": None,
            "query": None,
            "tool_error": False,
            **self.used,
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the right query, then its result as the answer."""
        if self._is_shown or self.rows < len(self.gold):
            return f"<answer>{self._answer()}</answer>"
        return f"<sql>{self.question.sql}</sql>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any query of the level, or any city or number as the answer."""
        rows = world(self.world, self.level)[1]
        if rng.random() < 0.5:
            return f"<sql>{draw_question(rng, self.level, rows).sql}</sql>"
        cities = rows["cities"]
        city = cities[int(rng.integers(len(cities)))]
        return f"<answer>{city[0] if rng.random() < 0.5 else rng.integers(10)}</answer>"

    def _query(self, sql: str) -> QueryResult:
        image = world(self.world, self.level)[0]
        return query(image, [name for name, _ in TABLES[: self.level]], sql)

    def _answer(self) -> str:
        return ", ".join(map(str, self.gold))


def _value(text: str) -> float | str:
    """Return a number, or a text normalised for comparison."""
    number = read_number(text)
    return normalise(text) if number is None else number
