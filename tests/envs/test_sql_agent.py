"""sql_agent: the guard against attacks, the questions against plain Python, answers."""

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.sql_agent.guard import MAX_ROWS, query, table_text
from rllib_llm.envs.sql_agent.world import world
from rllib_llm.envs.transcript import expert_policy, play

TABLES = ("cities", "countries", "rivers")
IMAGE, ROWS = world(0, 3)
LONG = "'" + "a" * 300 + "'"
DOUBLED = f"replace({LONG}, 'a', {LONG})"

# Each must be refused or stopped. FILE stands for a path where nothing may appear,
# OTHER for a database of others.
ATTACKS = {
    # Changing something.
    "insert": "INSERT INTO cities VALUES ('x', 'y', 1)",
    "update": "UPDATE cities SET people = 1",
    "delete": "DELETE FROM cities",
    "replace": "REPLACE INTO cities VALUES ('x', 'y', 1)",
    "drop": "DROP TABLE cities",
    "alter": "ALTER TABLE cities ADD COLUMN x",
    "create table": "CREATE TABLE x (a)",
    "create temp": "CREATE TEMP TABLE x AS SELECT * FROM cities",
    "create index": "CREATE INDEX x ON cities (name)",
    "create view": "CREATE VIEW x AS SELECT 1",
    "create trigger": "CREATE TRIGGER x AFTER INSERT ON cities BEGIN SELECT 1; END",
    "virtual table": "CREATE VIRTUAL TABLE x USING fts5(a)",
    "with delete": "WITH x AS (SELECT 1) DELETE FROM cities",
    "with update": "WITH x AS (SELECT 1) UPDATE cities SET people = 0",
    "with insert": "WITH x AS (SELECT 1) INSERT INTO cities SELECT 1, 2, 3",
    "returning": "WITH x AS (SELECT 1) DELETE FROM cities RETURNING name",
    "two statements": "SELECT 1; DROP TABLE cities",
    "second behind comment": "SELECT 1 --\n; DELETE FROM cities",
    "comment first": "/* SELECT */ DELETE FROM cities",
    # Files and other databases.
    "attach": "ATTACH DATABASE 'FILE' AS x",
    "attach other": "ATTACH 'OTHER' AS x",
    "detach": "DETACH DATABASE main",
    "vacuum": "VACUUM",
    "vacuum into": "VACUUM INTO 'FILE'",
    "with attach": "WITH x AS (SELECT 1) ATTACH 'FILE' AS y",
    "readfile": "SELECT readfile('OTHER')",
    "writefile": "SELECT writefile('FILE', 'x')",
    "edit": "SELECT edit('x', 'touch FILE')",
    "load extension": "SELECT load_extension('FILE')",
    "fts tokenizer": "SELECT fts3_tokenizer('simple', x'4141414141414141')",
    # Settings and states.
    "pragma": "PRAGMA query_only = OFF",
    "pragma journal": "PRAGMA journal_mode = DELETE",
    "pragma writable": "PRAGMA writable_schema = ON",
    "pragma table": "SELECT * FROM pragma_table_info('cities')",
    "pragma databases": "SELECT * FROM pragma_database_list",
    "pragma functions": "SELECT * FROM pragma_function_list",
    "begin": "BEGIN EXCLUSIVE",
    "savepoint": "SAVEPOINT x",
    "rollback": "ROLLBACK",
    "explain": "EXPLAIN SELECT * FROM cities",
    "analyze": "ANALYZE",
    "reindex": "REINDEX",
    # What is not among the tables.
    "schema": "SELECT sql FROM sqlite_master",
    "schema anew": "SELECT sql FROM sqlite_schema",
    "temp schema": "SELECT * FROM sqlite_temp_master",
    "dbstat": "SELECT * FROM dbstat",
    "stmt": "SELECT * FROM sqlite_stmt",
    "json each": "SELECT * FROM json_each('[1, 2]')",
    "series": "SELECT * FROM generate_series(1, 1000000000)",
    "hidden in a subquery": "SELECT (SELECT count(*) FROM sqlite_master)",
    "hidden in a join": "SELECT 1 FROM cities, sqlite_master",
    "version": "SELECT sqlite_version()",
    "source": "SELECT sqlite_source_id()",
    "changes": "SELECT total_changes()",
    "random": "SELECT random()",
    "now": "SELECT datetime('now')",
    # Time.
    "endless": "WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM x) "
    "SELECT count(*) FROM x",
    "endless unnamed": "WITH x(a) AS (SELECT 1 UNION ALL SELECT a FROM x) "
    "SELECT * FROM x WHERE a > 1",
    "cross join": "SELECT count(*) FROM "
    + ", ".join(f"cities AS c{i}" for i in range(9)),
    "cross join sorted": "SELECT a.name || b.name || c.name FROM cities a, cities b, "
    "cities c, cities d, cities e ORDER BY 1",
    "cross join distinct": "SELECT DISTINCT a.name, b.name, c.name, d.name "
    "FROM cities a, cities b, cities c, cities d, cities e ORDER BY 1",
    "many tables": "SELECT count(*) FROM "
    + ",".join(f"cities a{i}" for i in range(63)),
    "self join by like": "SELECT count(*) FROM "
    + ",".join(f"cities a{i}" for i in range(8))
    + " WHERE "
    + " || ".join(f"a{i}.name" for i in range(8))
    + " LIKE '%a%b%c%d%e%f%g'",
    # Memory.
    "random blob": "SELECT randomblob(1000000000)",
    "zero blob": "SELECT zeroblob(1000000000)",
    "printf": "SELECT printf('%1000000000d', 1)",
    "format": "SELECT format('%.*c', 1000000000, 'x')",
    "hex": f"SELECT hex(hex(hex({LONG})))",
    "replace function": f"SELECT {DOUBLED}",
    "quote": f"SELECT quote({LONG})",
    "concat": "SELECT length(x.y || x.y || x.y) "
    "FROM (SELECT group_concat(a.name || b.name || c.name) AS y "
    "FROM cities a, cities b, cities c) AS x",
    "char": "SELECT char(65, 66)",
    "many columns": "SELECT a.*, b.*, c.*, d.*, e.*, f.*, g.*, h.*, i.*, j.*, k.* FROM "
    "cities a, cities b, cities c, cities d, cities e, cities f, cities g, cities h, "
    "cities i, cities j, cities k",
    "deep": "SELECT " + "(" * 200 + "1" + ")" * 200,
    "deep plus": "SELECT " + "+".join("1" * 400),
    "compound": " UNION ALL ".join(["SELECT 1"] * 40),
    "long": "SELECT " + " " * 2_000 + "1",
    "nul": "SELECT 1\0; DELETE FROM cities",
    "surrogate": "SELECT '\ud800'",
    "parameter": "SELECT ?",
    "broken": "SELECT FROM WHERE",
    "empty": "",
    "words": "please tell me",
}


@pytest.fixture
def scene(tmp_path):
    """A database of others, and a place where nothing may appear."""
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE secrets (a)")
        database.execute("INSERT INTO secrets VALUES ('sesame')")
    return {"FILE": str(tmp_path / "trace"), "OTHER": str(other)}


def test_attacks_are_refused_or_stopped(scene):
    assert len(ATTACKS) >= 60
    before = set(os.listdir(os.path.dirname(scene["FILE"])))
    for name, sql in ATTACKS.items():
        for word, path in scene.items():
            sql = sql.replace(word, path)
        began = time.thread_time()
        result = query(IMAGE, TABLES, sql)
        seconds = time.thread_time() - began
        assert result.error, f"{name}: {result}"
        assert seconds < 1.5, f"{name}: {seconds}"
        assert "sesame" not in result.error
    assert set(os.listdir(os.path.dirname(scene["FILE"]))) == before
    assert world(0, 3)[0] == IMAGE
    count = query(IMAGE, TABLES, "SELECT count(*) FROM cities").rows
    assert count == ((len(ROWS["cities"]),),)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1 + 1, 'a', NULL, 1.5", ((2, "a", None, 1.5),)),
        ("  with x as (select count(*) n from cities) select n from x", ((24,),)),
        ("SELECT count(*) FROM CITIES", ((24,),)),
        ("SELECT upper('a') WHERE 'abc' LIKE 'A_c' AND 'abc' GLOB 'a*'", (("A",),)),
        (
            "SELECT 'a' LIKE '%', '' LIKE '_', 'ab' LIKE 'b', NULL LIKE 'a'",
            ((1, 0, 0, None),),
        ),
        ("SELECT 'xaxb' LIKE '%a%b', 'Ab' GLOB 'a?', 'ab' LIKE 'ab%%'", ((1, 0, 1),)),
        ("SELECT x'00ff'", (("00ff",),)),
        ("SELECT CAST(x'ff' AS TEXT)", (("\ufffd",),)),
        ("SELECT name FROM cities WHERE people < 0", ()),
        ("SELECT row_number() OVER (ORDER BY people) FROM cities LIMIT 1", ((1,),)),
        ("SELECT 9223372036854775807 + 1", ((9.223372036854775807e18,),)),
    ],
)
def test_permitted_queries_work(sql, rows):
    result = query(IMAGE, TABLES, sql)
    assert (result.error, result.rows) == ("", rows)


def test_like_agrees_with_sqlite():
    rng = np.random.default_rng(0)
    plain = sqlite3.connect(":memory:")
    for _ in range(400):
        text, pattern = ("".join(rng.choice(list("ab%_"), n)) for n in (5, 4))
        text = text.replace("%", "A").replace("_", "c")
        sql = f"SELECT '{text}' LIKE '{pattern}'"
        assert query(IMAGE, TABLES, sql).rows == tuple(plain.execute(sql)), sql


def test_results_are_cut_and_shown_as_lines():
    result = query(IMAGE, TABLES, "SELECT a.name, 1 FROM cities a, cities b")
    assert (len(result.rows), result.more) == (MAX_ROWS, True)
    shown = table_text(result, 2).splitlines()
    assert shown == [f"{ROWS['cities'][0][0]} | 1"] * 2 + ["..."]
    assert table_text(query(IMAGE, TABLES, "SELECT 1 WHERE 0"), 2) == "No rows."
    wrong = table_text(query(IMAGE, TABLES, "SELECT x FROM cities"), 2)
    assert wrong == "Error: no such column: x."


def test_threads_may_query_at_once():
    sql = "SELECT count(*) FROM cities a, cities b, cities c"
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: query(IMAGE, TABLES, sql), range(20)))
    assert {r.rows for r in results if not r.error} == {((24**3,),)}


def test_questions_are_answered_by_plain_python():
    """Families whose answer is easily found without SQL."""
    env, found = make_env("sql_agent-v0", {"level": 2}), 0
    for seed in range(300):
        env.reset(seed=seed)
        rows = world(env.world, 2)[1]
        place = {name: (where, money) for name, where, money in rows["countries"]}
        words = env.question.text.rstrip("?").split()
        if words[:3] == ["How", "many", "cities"]:
            expected = sum(
                place[country][0] == words[4] and people > int(words[-2])
                for _, country, people in rows["cities"]
            )
        elif words[0] == "What":
            (country,) = [c for name, c, _ in rows["cities"] if name == words[-1]]
            expected = place[country][1]
        else:
            expected = sum(
                people
                for _, country, people in rows["cities"]
                if place[country][1] == words[-1] and people < int(words[9])
            )
        assert env.gold == (expected,)
        found += 1
    assert found == 300


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_expert_solves_every_level_with_and_without_room(level):
    for rows in (1, 5):
        env = make_env("sql_agent-v0", {"level": level, "rows": rows})
        for seed in range(100):
            options = {"split": ("train", "test")[seed % 2]}
            assert play(env, seed, expert_policy, options=options).success


def test_answers_are_compared_as_values():
    env = make_env("sql_agent-v0")

    def judged(gold, answer):
        env.reset(seed=0)
        env.gold = gold
        return env.step(f"<answer>{answer}</answer>")[1]

    assert judged(("Kenor", "Basun"), "basun,Kenor.") == 1.0
    assert judged((12,), "12.0") == 1.0
    assert judged((12,), " 12 ") == 1.0
    assert judged((12,), "12, 12") == 0.0
    assert judged((12,), "twelve") == 0.0
    assert judged(("Kenor", "Basun"), "Kenor") == 0.0


def test_infos_hold_the_keys_of_reward_components():
    env = make_env("sql_agent-v0")
    env.reset(seed=0)
    *_, info = env.step("<sql>SELECT x FROM cities</sql>")
    assert (info["tool"], info["tool_error"]) == ("sql", True)
    *_, info = env.step("<sql>SELECT count(*) FROM cities</sql>")
    assert (info["query"], info["tool_error"]) == ("SELECT count(*) FROM cities", False)
    *_, info = env.step("nothing")
    assert info["tool"] is None
    assert info["gold_queries"] == [env.question.sql]
