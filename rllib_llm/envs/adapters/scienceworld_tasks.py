"""Adapter of the tasks of ScienceWorld, in its own simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import StopReason, TurnResult
from rllib_llm.envs.adapters.scienceworld_engine import Lease, import_scienceworld
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, did_you_mean

SIMPLIFICATIONS = (
    *("easy", "teleportAction", "selfWateringFlowerPots", "openContainers"),
    *("openDoors", "noElectricalAction"),
)
# The simulator's reply to texts that are not commands.
_UNKNOWN = "No known action matches that input."
_MAX_CHARS = 200
_LINE = re.compile(r"[^\n]*[a-z0-9][^\n]*", re.IGNORECASE)


@register_text_env("scienceworld-v0")
class ScienceWorld(TextEnv):
    """Carry out an elementary experiment, selected by ``task``. Return 1 at full score.

    ScienceWorld (Wang et al. 2022, arXiv:2203.07540). Rewards are increases of the
    score, as shares of 1; the library itself splits the variations.

    A snapshot holds the variation and the commands so far; restoring it replays them.

    Raises:
        MissingExtraError: If ScienceWorld is not installed.
        ConfigError: At the first reset, if Java is not installed.
    """

    max_turns = 50
    format_hint = _UNKNOWN
    _KEPT = TextEnv._KEPT | {"_lease"}

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_scienceworld()
        super().__init__(env_config)
        self._lease: Lease | None = None

    def start(
        self,
        rng: np.random.Generator,
        task: str = "find-living-thing",
        simplifications: Sequence[str] = ("easy",),
    ) -> str:
        """Choose a variation.

        Args:
            rng: Generator of the choice.
            task: A task of ScienceWorld.
            simplifications: Names from ``SIMPLIFICATIONS``; "easy" is all of them.
        """
        names = _check_simplifications(simplifications)
        _check_task(task)
        self._open(names)
        world = self._world
        world.load(task, 0, names, False)
        held_out = self.split == "test"
        variations = list(
            world.getVariationsTest() if held_out else world.getVariationsTrain()
        )
        if not variations:
            raise ConfigError(
                f"task={task!r} has no variations for {self.split!r}. Choose another "
                "task."
            )
        self._game = (task, int(variations[int(rng.integers(len(variations)))]), names)
        self.commands: list[str] = []
        self._gold: list[str] | None = None
        self._score = 0.0
        seen = self._load()
        return f"{world.getTaskDescription().strip()}\n{seen}"

    def parse(self, completion: str) -> str | None:
        """Return the last line with a letter or digit."""
        lines = _LINE.findall(completion)
        command = lines[-1].strip(" \t\r>.`*") if lines else ""
        return command if 0 < len(command) <= _MAX_CHARS else None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn; a command unknown to the simulator is an invalid action."""
        self._unknown = False
        text, reward, terminated, truncated, info = super().step(action)
        if self._unknown:
            info["invalid_action"] = True
            if terminated:
                info["stop_reason"] = StopReason.PARSE_ERROR
        return text, reward, terminated, truncated, info

    def reply(self, action: str) -> TurnResult:
        """Return the simulator's reply."""
        text = self._play(action)
        if text.startswith(_UNKNOWN):
            self._unknown = True
            return self._invalid()
        before, self._score = self._score, float(self._world.getScore())
        success = self._score >= 1.0
        # E.g. after a wrong focus; the simulator itself would continue.
        failed = self._score < 0.0
        over = success or failed or bool(self._world.getCompleted())
        return TurnResult(
            text,
            self._score - before,
            terminated=over,
            success=success if over else None,
            metrics={"score": max(0.0, self._score)},
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any possible command; listing them takes the simulator a while."""
        commands = self._possible_commands()
        return commands[int(rng.integers(len(commands)))]

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next command of the simulator's solution.

        The solution does not recover from mistakes.
        """
        if self._gold is None:
            self._replay(gold=True)
            self._gold = [str(c) for c in self._world.getGoldActionSequence()]
        done = 0
        for command in self.commands:
            if done < len(self._gold) - 1 and command == self._gold[done]:
                done += 1
        return self._gold[done]

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot` by replaying its commands."""
        super().restore(state)
        self._open(self._game[2])
        self._replay()

    def close(self) -> None:
        """Release the simulator, which ends with its last environment."""
        if self._lease is not None:
            self._lease.close()
        self._lease = None

    # Helpers --------------------------------------------------------------------

    @property
    def _world(self) -> Any:
        assert self._lease is not None, "The environment is closed."
        return self._lease.world

    def _open(self, simplifications: str) -> None:
        lease = self._lease
        if lease is not None and lease.simplifications != simplifications:
            lease.close()
            self._lease = lease = None
        if lease is None:
            self._lease = Lease(simplifications)

    def _possible_commands(self) -> list[str]:
        """Return commands about visible or held things, and teleports.

        The simulator also lists commands about the contents of closed things, but then
        rejects them.
        """
        reply = self._world.getValidActionObjectCombinationsJSON()
        listed = json.loads(reply)["validActions"]
        near = {
            int(i) for i in json.loads(self._world.getPossibleObjectReferentLUTJSON())
        }
        for entry in listed:  # things that can be put down are held
            if entry["action"].startswith(("put down ", "look in inventory")):
                near.update(entry["obj_ids"])
        return sorted(
            entry["action"]
            for entry in listed
            if near.issuperset(entry["obj_ids"])
            or entry["action"].startswith("teleport ")
            or entry["action"].isdecimal()  # answers an ambiguous request
        )

    def _load(self, *, gold: bool = False) -> str:
        """Start the variation; return the first view."""
        self._world.load(*self._game, gold)
        self._world.reset()
        return self._world.step("look around").strip()

    def _replay(self, *, gold: bool = False) -> None:
        """Start the variation and repeat the commands so far."""
        played, self.commands = self.commands, []
        self._load(gold=gold)
        for command in played:
            self._play(command)

    def _play(self, command: str) -> str:
        self.commands.append(command)
        return self._world.step(command).strip() or "Nothing happens."


def _check_task(task: str) -> None:
    tasks = set(import_scienceworld().scienceworld.ID2TASK.values())
    if task not in tasks:
        hint = did_you_mean(str(task), tasks)
        raise ConfigError(f"Unknown ScienceWorld task={task!r}. {hint}")


def _check_simplifications(given: Sequence[str]) -> str:
    """Return the names in the simulator's format."""
    is_list = isinstance(given, (list, tuple))
    if not is_list or any(name not in SIMPLIFICATIONS for name in given):
        raise ConfigError(
            f"simplifications={given!r} must be a list of names among "
            f"{', '.join(SIMPLIFICATIONS)}; [] for none."
        )
    return ",".join(given)
