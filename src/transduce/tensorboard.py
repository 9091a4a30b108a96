"""Numbers of steps as TensorBoard events: the one module that knows tensorboardX."""

import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from transduce.errors import SettingsError


class EventWriter:
    """Appends events to a folder; what an earlier writer wrote there past a step is void.

    Raises:
        SettingsError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        self._protocol, file_writer = library()
        folder.mkdir(exist_ok=True)
        # Read in the order of their names, so numbered: no clock is trusted. Not SummaryWriter: it
        # writes in a thread, and waits for ever once that has met a full disk.
        found = (re.match(r"\d+", path.name) for path in folder.iterdir())
        number = max((int(match[0]) for match in found if match), default=-1) + 1
        self._file = file_writer.EventsWriter(str(folder / f"{number:06}"))
        start = self._event(after + 1)
        start.session_log.status = self._protocol.SessionLog.START
        self._append(start)

    def write(self, step: int, **facts: object) -> None:
        """Append what is a number of the facts of a step, and see that it is in the file."""
        event = self._event(step)
        for name, value in facts.items():
            if isinstance(value, int | float):
                event.summary.value.add(tag=name, simple_value=value)
        self._append(event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _event(self, step: int) -> Any:  # noqa: ANN401 - classes that protobuf makes at run time
        return self._protocol.Event(wall_time=time.time(), step=step)

    def _append(self, event: object) -> None:
        self._file.write_event(event)
        self._file.flush()


def library() -> tuple[ModuleType, ModuleType]:
    """Import tensorboardX: the protocol of its events, and the writer of their files.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        from tensorboardX import event_file_writer
        from tensorboardX.proto import event_pb2
    except ImportError:
        raise SettingsError("--tensorboard needs pip install 'transduce[tensorboard]'") from None
    return event_pb2, event_file_writer
