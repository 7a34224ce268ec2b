"""The devices that share a search, in one process or several. Each does the steps of its shares, with its own files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from .. import io
from ..progress import progress

_MEETING = "meeting"  # beginning of the names of files that processes wait for
_POLL_SECONDS = 0.1


class Team:
    """Devices with files in the same folder. Shares of the work are numbered; device ``i`` of ``n`` does every n-th.

    Attributes:
        devices: All devices.
        leads: Whether this process does the steps that are not shared.
        folder: A folder that all processes share, through which they wait for each other.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        """Form a team of the devices of a mesh, None for a single device of this process."""
        self._mesh = Mesh(np.array(jax.local_devices()[:1]), ("device",)) if mesh is None else mesh
        self.devices = list(self._mesh.devices.flat)
        self.leads = self.devices[0].process_index == jax.process_index()
        self.folder: Path | None = None
        self._meetings = 0

    @property
    def own(self) -> list[int]:
        """The numbers of this process's devices."""
        return [i for i, device in enumerate(self.devices) if device.process_index == jax.process_index()]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Wait for all processes at the end of the block, and raise on all if one fails."""
        with io.failing_together(self._mesh):
            try:
                yield
            except Exception:
                self._meet()
                raise
            self._meet()

    def _meet(self) -> None:
        """Wait for all processes without communication, which ends with an error if one is half an hour late."""
        if self.folder is None or not io.is_shared(self._mesh):
            return
        self._meetings += 1
        markers = [self.folder / f"{_MEETING}{self._meetings}_{process}" for process in self._processes]
        markers[self._processes.index(jax.process_index())].touch()
        while not all(marker.exists() for marker in markers):
            time.sleep(_POLL_SECONDS)

    def forget_meetings(self, folder: Path) -> None:
        """Remove the files of an earlier run for which its processes waited."""
        for marker in folder.glob(f"{_MEETING}*"):
            marker.unlink()

    @property
    def _processes(self) -> list[int]:
        return sorted({device.process_index for device in self.devices})

    def each(
        self,
        task: str,
        total: int,
        shares: int,
        work: Callable[[int], Iterator[tuple[int, str]]],
        *,
        quiet: bool = False,
    ) -> None:
        """Do the steps of all shares, and report the progress of the first process.

        Args:
            task: The work in words.
            total: Number of particles of all shares.
            shares: Number of shares.
            work: Does the steps of a share. After each, it yields the number of particles, and the file that follows.
            quiet: Whether to report no progress.
        """
        ended = threading.Event()
        is_wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

        def work_of(device: int) -> None:
            for share in range(device, shares, len(self.devices)):
                for num, file in work(share):
                    advance(num, file)
                    if ended.is_set():
                        return

        def in_thread(device: int) -> None:
            with jax.default_device(self.devices[device]), jax.enable_x64(is_wide):
                work_of(device)

        with progress(task, total * len(self.own) // len(self.devices), quiet=quiet) as advance, self.together():
            if len(self.own) == 1:
                work_of(self.own[0])
                return
            with ThreadPoolExecutor(len(self.own)) as pool:
                try:
                    threads = [pool.submit(in_thread, device) for device in self.own]
                    wait(threads, return_when=FIRST_EXCEPTION)
                finally:
                    ended.set()
            for thread in threads:
                thread.result()
