"""Adapter: the tasks of ScienceWorld, played in its own simulator."""

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
# What the simulator says of texts that are no commands.
_UNKNOWN = "No known action matches that input."
_MAX_CHARS = 200
_LINE = re.compile(r"[^\n]*[a-z0-9][^\n]*", re.IGNORECASE)


@register_text_env("scienceworld-v0")
class ScienceWorld(TextEnv):
    """Carry out an elementary experiment; ``task`` names it. Return 1 at full score.

    ScienceWorld (Wang et al. 2022, arXiv:2203.07540). Rewards are what the score rises
    by, as shares of 1; the library's own split decides which variations are held out.

    A snapshot is the variation and the commands so far; restoring it plays them again.

    Raises:
        MissingExtraError: If ScienceWorld is not installed.
        ConfigError: If Java is not, at the first reset.
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
            rng: Decides which.
            task: A name of ScienceWorld.
            simplifications: Of ``SIMPLIFICATIONS``; "easy" is all of them.
        """
        names = _check_simplifications(simplifications)
        _check_task(task)
        self._open()
        world = self._world
        world.load(task, 0, names, False)
        held_out = self.split == "test"
        variations = list(
            world.getVariationsTest() if held_out else world.getVariationsTrain()
        )
        if not variations:
            raise ConfigError(f"task={task!r} has no variations for {self.split!r}.")
        self._game = (task, int(variations[int(rng.integers(len(variations)))]), names)
        self.commands: list[str] = []
        self._gold: list[str] | None = None
        self._score = 0.0
        seen = self._load()
        return f"{world.getTaskDescription().strip()}\n{seen}"

    def parse(self, completion: str) -> str | None:
        """Read the last line with a letter or digit."""
        lines = _LINE.findall(completion)
        command = lines[-1].strip(" \t\r>.`*") if lines else ""
        return command if 0 < len(command) <= _MAX_CHARS else None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn; what the simulator does not know is an invalid action."""
        self._unknown = False
        text, reward, terminated, truncated, info = super().step(action)
        if self._unknown:
            info["invalid_action"] = True
            if terminated:
                info["stop_reason"] = StopReason.PARSE_ERROR
        return text, reward, terminated, truncated, info

    def reply(self, action: str) -> TurnResult:
        """Tell what the simulator answers."""
        told = self._play(action)
        if told.startswith(_UNKNOWN):
            self._unknown = True
            return self._invalid()
        before, self._score = self._score, float(self._world.getScore())
        success = self._score >= 1.0
        # A wrong focus, say; the simulator would go on.
        failed = self._score < 0.0
        over = success or failed or bool(self._world.getCompleted())
        return TurnResult(
            told,
            self._score - before,
            terminated=over,
            success=success if over else None,
            metrics={"score": max(0.0, self._score)},
        )

    def random_action(self, rng: np.random.Generator) -> str:
        """Do anything that is possible; listing it takes the simulator a while."""
        commands = self._known_commands()
        return commands[int(rng.integers(len(commands)))]

    def expert_action(self, rng: np.random.Generator) -> str:
        """Say the next command of the simulator's solution that was not yet given.

        It does not recover from mistakes.
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
        """Go back to a :meth:`snapshot` by playing its commands again."""
        super().restore(state)
        self._open()
        self._replay()

    def close(self) -> None:
        """Give the simulator back; the last environment ends it."""
        if self._lease is not None:
            self._lease.close()
        self._lease = None

    # Helpers --------------------------------------------------------------------

    @property
    def _world(self) -> Any:
        return self._lease.world

    def _open(self) -> None:
        if self._lease is None:
            self._lease = Lease()

    def _known_commands(self) -> list[str]:
        """List commands about what is seen or held, and teleports.

        The simulator also lists commands about what closed things hide, which it does
        not know when they are given.
        """
        told = self._world.getValidActionObjectCombinationsJSON()
        listed = json.loads(told)["validActions"]
        near = {
            int(i) for i in json.loads(self._world.getPossibleObjectReferentLUTJSON())
        }
        for entry in listed:  # what can be put down is held
            if entry["action"].startswith(("put down ", "look in inventory")):
                near.update(entry["obj_ids"])
        return sorted(
            entry["action"]
            for entry in listed
            if near.issuperset(entry["obj_ids"])
            or entry["action"].startswith("teleport ")
        )

    def _load(self, *, gold: bool = False) -> str:
        """Begin the variation; return what is seen."""
        self._world.load(*self._game, gold)
        self._world.reset()
        return self._world.step("look around").strip()

    def _replay(self, *, gold: bool = False) -> None:
        """Begin the variation and give the commands so far."""
        played, self.commands = self.commands, []
        self._load(gold=gold)
        for command in played:
            self._play(command)

    def _play(self, command: str) -> str:
        self.commands.append(command)
        return self._world.step(command).strip() or "Nothing happens."


def _check_task(task: str) -> None:
    known = set(import_scienceworld().scienceworld.ID2TASK.values())
    if task not in known:
        hint = did_you_mean(str(task), known)
        raise ConfigError(f"task={task!r} is none of ScienceWorld's. {hint}")


def _check_simplifications(given: Sequence[str]) -> str:
    """Return them as the simulator wants them."""
    is_list = isinstance(given, (list, tuple))
    if not is_list or any(name not in SIMPLIFICATIONS for name in given):
        raise ConfigError(
            f"simplifications={given!r} must be a list of names among "
            f"{', '.join(SIMPLIFICATIONS)}; [] for none."
        )
    return ",".join(given)
