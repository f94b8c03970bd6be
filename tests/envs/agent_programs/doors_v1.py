"""A taskset of verifiers: name the door of the prompt."""

import verifiers.v1 as vf

DOORS = ("red", "blue", "gold", "pink")


class DoorData(vf.TaskData):
    """A door."""

    door: str


class DoorTask(vf.Task[DoorData]):
    """Rewards the name of the door."""

    @vf.reward
    async def named(self, trace: vf.Trace) -> float:
        """Return 1 if the last reply is the door's name."""
        return float(trace.last_reply == self.data.door)


class Doors(vf.Taskset[DoorTask]):
    """One task per door."""

    def load(self):
        """Yield the tasks."""
        for door in DOORS:
            yield DoorTask(DoorData(prompt=f"Say {door}.", door=door), self.config.task)


__all__ = ["Doors"]
