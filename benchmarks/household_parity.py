"""Comparison of household-v0 with ALFWorld's engine, game by game.

    pip install alfworld==0.4.2      # builds a planner: needs cmake and a C++ compiler
    python benchmarks/household_parity.py --games 504 --steps 25

Every game of household-v0 is written as a planning problem of ALFRED's domain, as in
the data set of ALFWorld, and loaded by TextWorld with ALFWorld's grammar. Then both get
the same commands. In every step the answer, the list of possible commands, and whether
the game is won are compared.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import time
from typing import Any

import numpy as np

from rllib_llm.envs.household import Household
from rllib_llm.envs.household.instances import TASKS
from rllib_llm.envs.household.rooms import LAMP, house
from rllib_llm.envs.household.world import Receptacle, Thing

GOALS = {
    "put": "pick_and_place_simple",
    "light": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
_ODD_COMMANDS = (
    "fly away",
    "go to attic 1",
    "take apple 9 from fridge 9",
    "open bed 1",
)


@dataclasses.dataclass
class Tally:
    """Counts of comparisons, and the first difference."""

    games: int = 0
    steps: int = 0
    commands: int = 0
    wins: int = 0
    difference: str = ""


def entity(named: Receptacle | Thing) -> str:
    """Return an id for which ALFWorld has the same name and the same order."""
    number = 99 - int(named.name.split()[1])
    basin = named.type.removesuffix("Basin")
    tail = "" if basin == named.type else f"_bar_{named.type}"
    return f"{basin}_bar_{number:02d}{tail}"


def problem(env: Household) -> str:
    """Write the room of a fresh episode as a problem of ALFRED's planning domain."""
    world, tables = env.world, house()
    objects = [
        "agent1 - agent",
        "loc_start - location",
        *(f"loc_{r} - location" for r in sorted({r.place for r in world.receptacles})),
        *(f"{entity(t)} - object" for t in world.things),
        *(f"{entity(r)} - receptacle" for r in world.receptacles),
        *(f"{t}Type - otype" for t in _held_types(env)),
        *(f"{t}Type - rtype" for t in sorted(tables.fits)),
    ]
    return (
        "(define (problem household)\n(:domain alfred)\n"
        f"(:objects\n{_lines(objects)})\n"
        f"(:init\n(= (total-cost) 0)\n{problem_facts(env)})\n{_goal(env)}"
    )


def problem_facts(env: Household) -> str:
    """Return the initial facts, one per line."""
    facts = ["(atLocation agent1 loc_start)"]
    for r in env.world.receptacles:
        facts += _receptacle_facts(r)
    for thing in env.world.things:
        facts += _thing_facts(thing)
    fits = house().fits
    types = _held_types(env)
    facts += [
        f"(canContain {r}Type {t}Type)"
        for r in sorted(fits)
        for t in types
        if t in fits[r]
    ]
    return _lines(facts)


def _lines(parts: list[str]) -> str:
    return "".join(f"    {part}\n" for part in parts)


def _held_types(env: Household) -> list[str]:
    # The domain names the two kinds of knives.
    return sorted({t.type for t in env.world.things} | {"Knife", "ButterKnife"})


def _receptacle_facts(r: Receptacle) -> list[str]:
    name = entity(r)
    return [
        f"(receptacleType {name} {r.type}Type)",
        f"(receptacleAtLocation {name} loc_{r.place})",
        *([f"(openable {name})"] if r.openable else []),
        *([f"(opened {name})"] if r.is_open else []),
    ]


def _thing_facts(thing: Thing) -> list[str]:
    name, tables = entity(thing), house()
    able = [a for a, types in tables.able.items() if thing.type in types]
    return [
        f"(objectType {name} {thing.type}Type)",
        f"(inReceptacle {name} {entity(thing.at)})",
        f"(objectAtLocation {name} loc_{thing.at.place})",
        f"({'toggleable' if thing.type == LAMP else 'pickupable'} {name})",
        *([f"(isReceptacleObject {name})"] if thing.type in tables.holders else []),
        *(f"({a} {name})" for a in able),
    ]


def _goal(env: Household) -> str:
    from alfworld.gen.goal_library import gdict

    goal = env.goal
    text = gdict[GOALS[goal.task]]["pddl"].replace("#", "-")
    names = {"obj": goal.target, "recep": goal.destination, "toggle": goal.destination}
    return text.format(**names)


@functools.cache
def hasten() -> None:
    """Cache the parts of the engine that do not depend on the state.

    These are parsed rules and the wording of commands (not of answers).
    """
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    parse = functools.cache(
        functools.partial(textgen._parse_and_convert, rule_name="symbols")
    )
    # Symbols are written to when they are used.
    textgen._parse_and_convert = lambda text, **_: copy.deepcopy(parse(text))
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    derive = textgen.ContextSensitiveGrammar.derive

    def derive_once(grammar: Any, start: str, context: dict[str, Any]) -> str:
        if start.startswith("#"):  # an answer
            return derive(grammar, start, context)
        known = grammar.__dict__.setdefault("_known_commands", {})
        key = start, *(v.name for v in context["mapping"].values())
        if key not in known:
            known[key] = derive(grammar, start, context)
        return known[key]

    textgen.ContextSensitiveGrammar.derive = derive_once
    fast_downward.pddl2sas = functools.lru_cache(maxsize=4)(fast_downward.pddl2sas)


class Reference:
    """The same game in ALFWorld's engine.

    Args:
        env: Freshly reset.
    """

    def __init__(self, env: Household):
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
        from textworld.envs import PddlEnv

        hasten()
        with open(ALFRED_PDDL_PATH) as domain, open(ALFRED_TWL2_PATH) as grammar:
            data = {
                "pddl_domain": domain.read(),
                "grammar": grammar.read().replace("UNKNOWN GOAL", env.instance.text),
                "pddl_problem": problem(env),
            }
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env = AlfredDemangler(PddlEnv(infos))
        self._env.load(data)
        self.state: Any = self._env.reset()

    def step(self, command: str) -> None:
        """Send a command to the engine."""
        self.state, _, _ = self._env.step(command)


def compare(env: Household, seed: int, share: float, tally: Tally, steps: int) -> None:
    """Run a game in both engines and record the first difference.

    Args:
        env: The environment.
        seed: Seed of the episode and of the random commands.
        share: Share of the expert's commands; the others are random.
        tally: Counts, which are updated.
        steps: Maximum number of commands.
    """
    answer, info = env.reset(
        seed=seed, options={"split": ("train", "test")[seed // 6 % 2]}
    )
    reference, rng = Reference(env), np.random.default_rng(seed)
    history = []
    tally.games += 1
    _check(reference, answer, info["admissible_actions"], False, history, tally)
    while not tally.difference and len(history) < steps:
        if rng.random() < share:
            command = env.expert_action(rng)
        elif rng.random() < 0.05:
            command = _ODD_COMMANDS[int(rng.integers(len(_ODD_COMMANDS)))]
        else:
            command = _any_verb(env.admissible_actions(), rng)
        history.append(command)
        # Past max_turns and past a win too: as long as both can go on.
        answer = env.world.do(command)
        won = env.goal.reached(env.world) == len(env.goal.steps)
        reference.step(command)
        tally.steps += 1
        _check(reference, answer, env.admissible_actions(), won, history, tally)
        if won:
            tally.wins += 1
            return


def _any_verb(commands: list[str], rng: np.random.Generator) -> str:
    """Sample a verb first; otherwise nearly all random commands would be movements."""
    verbs = sorted({command.split()[0] for command in commands})
    verb = str(rng.choice(verbs))
    return str(rng.choice([c for c in commands if c.split()[0] == verb]))


def _check(
    reference: Reference,
    answer: str,
    commands: list[str],
    won: bool,
    history: list[str],
    tally: Tally,
) -> None:
    state = reference.state
    tally.commands += len(commands)
    pairs = {
        "answer": (answer, state.feedback),
        "commands": (commands, state.admissible_commands),
        "won": (won, state.won),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            tally.difference = f"{what} after {history}:\n{ours!r}\n{theirs!r}"


def main() -> None:
    """Compare games and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40, help="most of a game")
    args = parser.parse_args()
    tally, began = Tally(), time.process_time()
    for seed in range(args.first_seed, args.first_seed + args.games):
        env = Household(
            {
                "tasks": [list(TASKS)[seed % len(TASKS)]],
                "max_receptacles": (4, 8, 16, 30)[seed // 18 % 4],
                "clutter": (3, 10, 25)[seed // 72 % 3],
                "closed": (1.0, 0.5)[seed // 216 % 2],
            }
        )
        compare(env, seed, (1.0, 0.5, 0.0)[seed // 6 % 3], tally, args.steps)
        if tally.difference:
            raise SystemExit(f"seed {seed}, {env.instance}\n{tally.difference}")
        if tally.games % 20 == 0 or tally.games == args.games:
            report(tally, time.process_time() - began)


def report(tally: Tally, seconds: float) -> None:
    """Print the counts so far."""
    print(
        f"{tally.games} games, {tally.steps} commands, {tally.wins} games won, "
        f"{tally.commands} possible commands listed: all equal "
        f"({seconds:.0f} CPU seconds)",
        flush=True,
    )


if __name__ == "__main__":
    main()
