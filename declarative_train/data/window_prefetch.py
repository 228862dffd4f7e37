"""Prefetch of windows: threads make them ahead of their use, within a limit of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from declarative_train.data.stall_report import CLOSE_S, LOOK_S, Wait
from declarative_train.files.file_activity import activity_of, set_file

T = TypeVar("T")
WindowName = tuple[int, int]
"""Window by its epoch and number."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Ahead(Generic[T]):
    """Results of `make` for names, in their order, made ahead by threads.

    No more than `room` is kept (by `size_of`), except for one that is made while all others are in use.
    """

    def __init__(
        self,
        make: Callable[[WindowName], T],
        names: Iterator[WindowName],
        size_of: Callable[[WindowName], int],
        room: int,
        threads: int,
    ) -> None:
        self._make = make
        self._names = names
        self._size_of = size_of
        self._room = room
        self._sizes: dict[WindowName, int] = {}  # of what is made or being made
        self._made: dict[WindowName, T | _Failure] = {}
        self._next: WindowName | None = next(names, None)
        self._taken: set[WindowName] = set()
        self._wanted: WindowName | None = None
        self._by: dict[WindowName, int] = {}  # the threads that make them
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"dtrain-window-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (name := self._claim()) is not None:
            try:
                made: T | _Failure = self._make(name)
            except BaseException as error:  # handed over: raised where the window is taken
                made = _Failure(error)
            with self._changed:
                self._made[name] = made
                self._by.pop(name, None)
                self._changed.notify_all()

    def _claim(self) -> WindowName | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._next is None or self._has_room())
            name = self._next
            if self._is_closed or name is None:
                return None
            self._sizes[name] = self._size_of(name)
            self._by[name] = threading.get_ident()
            set_file(None)
            self._next = next(self._names, None)
            return name

    def _has_room(self) -> bool:
        assert self._next is not None
        if self._wanted is not None and self._wanted not in self._sizes:
            return True
        if self._sizes.keys() <= self._taken:  # at least one is made while others are in use
            return True
        return sum(self._sizes.values()) + self._size_of(self._next) <= self._room

    def get(self, name: WindowName) -> T:
        """Wait for the result of a name; it is kept until it is dropped."""
        with self._changed:
            if name not in self._made:
                self._wanted = name
                self._changed.notify_all()
                wait = Wait(lambda: activity_of(self._by.get(name)))
                while not self._changed.wait_for(lambda: name in self._made or self._cannot_come(name), LOOK_S):
                    wait.look()
                self._wanted = None
            if name not in self._taken:  # otherwise threads would wake without need
                self._taken.add(name)
                self._changed.notify_all()
            found = self._made[name]
        if isinstance(found, _Failure):
            raise found.error
        return found

    def _cannot_come(self, name: WindowName) -> bool:
        return self._is_closed or (self._next is None and name not in self._sizes)

    def drop(self, is_done: Callable[[WindowName], bool]) -> list[T]:
        """Drop the results of these names and return them."""
        with self._changed:
            done = [name for name in self._made if is_done(name)]
            found = [self._made.pop(name) for name in done]
            for name in done:
                del self._sizes[name]
                self._taken.discard(name)
            self._changed.notify_all()
        return [each for each in found if not isinstance(each, _Failure)]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))  # one that a file does not answer is left behind
        self._made.clear()  # a reference cycle with the threads would keep them until the next garbage collection
        self._sizes.clear()
