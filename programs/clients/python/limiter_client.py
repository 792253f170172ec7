"""A client for limiter-server. One file without dependencies, for Python 3.9 or newer.

    limiter = Limiter("http://127.0.0.1:8080", "edge")
    decision = limiter.acquire({"customer": "7"}, cost=20)
    if decision.allowed:
        limiter.settle(decision, 13)

A call whose response is lost may have been counted. So each ``acquire`` and ``record`` carries an idempotency key, and calls are
repeated until the server responds, or for ``patience`` seconds. They count once.

Threads can share a ``Limiter``, which keeps a connection for each. With asyncio, use ``asyncio.to_thread``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import io
import json
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

Parsed = TypeVar("Parsed")

Descriptor = Union[Mapping[str, str], Sequence[Tuple[str, str]]]
"""The keys and values that rules match, in the order of the rules."""

MAX_WAIT = 60.0
"""The longest wait of an ``acquire``, in seconds."""


class LimiterError(Exception):
    """A call without a decision. ``status`` is the HTTP status, or None if there was no response."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


class Refused(LimiterError):
    """The server refused the request. A repetition would be refused as well."""


class Unavailable(LimiterError):
    """No attempt had a response, or the server's store failed. The call may have been counted."""


class Denied(Exception):
    """A reservation that does not fit. ``decision`` says how long to wait."""

    def __init__(self, decision: Response) -> None:
        super().__init__(decision)  # So that it can be unpickled.
        self.decision = decision

    def __str__(self) -> str:
        wait = "no wait helps" if self.decision.retry_after is None else f"retry after {self.decision.retry_after} s"
        return f"denied by the rule {self.decision.rule!r}: {wait}"


class SlotLost(Exception):
    """A slot that is no longer held. Others may hold it by now, so the work in its block must end."""


@dataclasses.dataclass(frozen=True)
class LimitUsage:
    """The usage of one limit. Times are in microseconds."""

    limit: int
    window_us: int
    resolution_us: Optional[int]
    used: int
    remaining: int
    retry_after_us: Optional[int]
    refill_after_us: int
    reset_after_us: int


@dataclasses.dataclass(frozen=True)
class Response:
    """A response. docs/v1.md of limiter-server says what each field is, and when it is None. Times are in microseconds."""

    op: str
    rule: Optional[str] = None
    key: Optional[str] = None
    cost: Optional[int] = None
    allowed: Optional[bool] = None
    error: Optional[str] = None
    receipt: Optional[str] = None
    applied: Optional[bool] = None
    at_us: Optional[int] = None
    limit: Optional[int] = None
    used: Optional[int] = None
    remaining: Optional[int] = None
    retry_after_us: Optional[int] = None
    refill_after_us: Optional[int] = None
    reset_after_us: Optional[int] = None
    limits: Tuple[LimitUsage, ...] = ()
    descriptor: Descriptor = dataclasses.field(default=(), repr=False)  # What the caller asked for.

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until the same request fits. None if it was not denied, or if no wait helps."""
        return None if self.retry_after_us is None else self.retry_after_us / 1e6


@dataclasses.dataclass(frozen=True)
class AllOf:
    """The response to ``acquire_all``: whether all units were taken, and the response to each call, in their order."""

    allowed: bool
    calls: Tuple[Response, ...]

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until each call fits by itself. None if none was denied, or if no wait helps."""
        waits = [call.retry_after for call in self.calls if not call.allowed]
        return None if not waits or None in waits else max(wait for wait in waits if wait is not None)


class Reservation:
    """Units that are reserved for the time of a ``with`` block.

    Set ``cost`` to what the block has used so far. It is charged at the end, however the block ends: a stream that breaks off costs
    what it has sent. Until the block sets it, ``cost`` is what was reserved.
    """

    def __init__(self, decision: Response, cost: int) -> None:
        self.decision, self.cost = decision, cost


class Instalments:
    """Units that a ``with`` block takes in instalments. ``spent`` is what the block has used so far."""

    def __init__(self, limiter: Limiter, descriptor: Descriptor, size: int) -> None:
        self._limiter, self._descriptor, self._size = limiter, descriptor, size
        self.spent, self._taken, self._last_cost = 0, 0, 0
        self._asked: Optional[Tuple[int, str]] = None

    def spend(self, cost: int = 1) -> None:
        """Counts units before they are used. Takes an instalment if they need one, and raises ``Denied`` if it does not fit."""
        if not isinstance(cost, int) or cost < 0:
            raise ValueError(f"cost is {cost!r}, expected a whole number from 0")
        while (lacking := self.spent + cost - self._taken) > 0:
            self._take(max(lacking, self._size))
        self.spent += cost

    def _take(self, cost: int) -> None:
        # After a lost response, the same instalment is asked for again, and counts once.
        self._asked = self._asked or (cost, uuid.uuid4().hex)
        cost, id = self._asked
        decision = self._limiter.acquire(self._descriptor, cost, id=id)
        self._asked = None
        if not decision.allowed:
            raise Denied(decision)
        self._last, self._last_cost, self._taken = decision, cost, self._taken + cost

    def _give_back(self) -> None:
        unspent = self._taken - self.spent
        if unspent > 0:
            self._limiter.settle(self._last, self._last_cost - unspent)


class Slot:
    """Units that are held for the time of a ``with`` block: a thread renews them each third of the shortest exact window."""

    def __init__(self, limiter: Limiter, decision: Response, id: str, sent: Tuple[float, float]) -> None:
        self._limiter, self.decision, self._id, self._sent = limiter, decision, id, sent
        self._process, self._window = os.getpid(), min(_exact_windows(decision))
        self._receipt, self._gone, self._ended = decision.receipt, False, threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the slot is no longer held: 63/64 of the window since the last renewal was sent, by the clock that ran faster."""
        passed = [now - then for now, then in zip(_clocks(), self._sent)]
        return self._gone or max(passed) >= self._window * 63 / 64 or min(passed) < 0

    def _keep(self) -> None:
        pause = self._until_due()
        while not self._ended.wait(pause) and not self.lost:
            try:
                self._renew()
                pause = self._until_due()
            except LimiterError:
                pause = self._window / 24

    def _until_due(self) -> float:
        return max(0.0, self._sent[0] + self._window / 3 - time.monotonic())

    def _renew_first(self, receipt: str) -> None:
        """Renews an entry of unknown age, unless it has left the shortest window: then others may hold its units."""
        entry, at, _ = receipt.split("-")
        self._renew(f"{entry}-{at}-{round(self._window * 1e6):014x}")

    def _renew(self, receipt: Optional[str] = None) -> None:
        sent = _clocks()
        renewed = self._limiter._call("renew", self.decision.descriptor, receipt=receipt or self._receipt, id=self._id)
        # One that took too long has renewed what others may hold by now.
        self._gone = not renewed.applied or (receipt is None and self.lost)
        if renewed.applied:
            self._receipt = renewed.receipt
        if not self._gone:
            self._sent = sent
            # The server may have reloaded its rules.
            self._window = min(_exact_windows(renewed), default=self._window)

    def _give_back(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        # The block's result matters more. What is not refunded expires.
        with contextlib.suppress(LimiterError, SlotLost):
            gave = self._limiter._call("refund", self.decision.descriptor, receipt=self._receipt)
            if not gave.applied and not self._gone:
                # A renewal whose response was lost has moved it.
                self._renew()
                self._limiter._call("refund", self.decision.descriptor, receipt=self._receipt)


class Limiter:
    """Calls one limiter-server about the rules of one domain.

    ``timeout`` is how long one attempt may take, besides its wait, and ``patience`` how long a call is repeated that has no
    response, both in seconds. ``context`` is for ``https`` URLs: the authorities to trust, or a client's certificate.
    """

    def __init__(
        self, url: str, domain: str, *, timeout: float = 1.0, patience: float = 2.0, context: Optional[ssl.SSLContext] = None
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL that starts with http:// or https:// and a host")
        self.domain, self.timeout, self.patience = domain, timeout, patience
        self._path = parts.path.rstrip("/") + "/v1/"
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = functools.partial(http.client.HTTPSConnection, context=context)
        self._connect = functools.partial(kind, parts.hostname, parts.port, timeout=timeout)
        self._local = threading.local()

    def acquire(self, descriptor: Descriptor, cost: int = 1, *, id: Optional[str] = None, wait: float = 0.0) -> Response:
        """Takes units if they fit, or as soon as they do within ``wait`` seconds, at most 60.

        ``id`` is the idempotency key. Give one if the caller itself may be repeated; the default is a new one for each call. So the
        rule needs an exact limit, such as ``60000/10m`` in addition to ``1000000/30d~1h``. Take a new one for a new attempt after a
        denial, and never let your clients choose it: a repetition counts nothing, whatever its cost is.
        """
        if not 0 <= wait <= MAX_WAIT:
            raise ValueError(f"wait is {wait}, expected 0 to {MAX_WAIT} seconds")
        id, end, pause = id or uuid.uuid4().hex, time.monotonic() + wait, 0.02
        while True:
            left = max(0.0, end - time.monotonic())
            decision = self._call("acquire", descriptor, left, cost=cost, id=id)
            left = end - time.monotonic()
            if decision.allowed or decision.retry_after is None or decision.retry_after > left:
                return decision
            # A server that stops has ended the wait early. The next one continues it.
            time.sleep(min(pause, left))
            pause = min(1.0, pause * 2)

    def acquire_all(self, calls: Sequence[Tuple[Descriptor, int]], *, id: Optional[str] = None) -> AllOf:
        """Takes units of several descriptors, each with its cost, in one decision: all or none.

        A cost of 0 takes nothing, and denies unless one more unit fits. Settle or refund each call of the response. ``id`` is that of
        ``acquire``.
        """
        asked = [{"descriptor": _pairs(descriptor), "cost": cost} for descriptor, cost in calls]

        def parse(found: Any) -> AllOf:
            each = zip(found["calls"], calls)
            return AllOf(found["allowed"], tuple(_parse(call, descriptor) for call, (descriptor, _) in each))

        return self._send("acquire_all", parse, calls=asked, id=id or uuid.uuid4().hex)

    def record(self, descriptor: Descriptor, cost: int = 1, *, id: Optional[str] = None) -> Response:
        """Counts units, whether or not they fit. ``allowed`` says whether they did."""
        return self._call("record", descriptor, cost=cost, id=id or uuid.uuid4().hex)

    def peek(self, descriptor: Descriptor, cost: int = 1) -> Response:
        """Returns whether units would fit. Takes none."""
        return self._call("peek", descriptor, cost=cost)

    def status(self, descriptor: Descriptor) -> Response:
        """Returns the usage."""
        return self._call("status", descriptor)

    def settle(self, decision: Response, cost: int) -> bool:
        """Replaces the cost of an ``acquire`` or a ``record``. 0 removes it.

        Returns whether that took effect. False if nothing was counted, or if the entry has left its windows.
        """
        if decision.receipt is None:
            return False
        return self._call("settle", decision.descriptor, receipt=decision.receipt, cost=cost).applied is True

    def refund(self, decision: Response) -> bool:
        """Takes back an ``acquire`` or a ``record``. Returns whether there was something to take back.

        False as well if the response to a refund was lost, and the repetition finds nothing.
        """
        if decision.receipt is None:
            return False
        return self._call("refund", decision.descriptor, receipt=decision.receipt).applied is True

    @contextlib.contextmanager
    def reserve(self, descriptor: Descriptor, cost: int, *, wait: float = 0.0) -> Iterator[Reservation]:
        """Reserves units for a ``with`` block, which sets the actual cost: ``reservation.cost = 13``.

        If the block raises, the same is charged: what it has set, or else what was reserved. So set what is charged in any case first,
        such as a prompt's tokens, or 0. If the server no longer knows the entry, the block is charged anew at its end. After the exact
        windows, the entry cannot change; what the block has used above it is charged as long as a limit with a resolution counts it. A
        forked child that leaves the block charges nothing. Raises ``Denied`` if the units do not fit.
        """
        began, process = time.monotonic(), os.getpid()
        decision = self.acquire(descriptor, cost, wait=wait)
        if not decision.allowed:
            raise Denied(decision)
        reservation = Reservation(decision, cost)
        try:
            yield reservation
        except BaseException:
            # The block's exception matters more. What is not settled costs what was reserved.
            with contextlib.suppress(LimiterError, SlotLost):
                if process == os.getpid():
                    self._settle_or_record(decision, reservation.cost, began)
            raise
        if process == os.getpid():
            self._settle_or_record(decision, reservation.cost, began)

    @contextlib.contextmanager
    def instalments(self, descriptor: Descriptor, size: int) -> Iterator[Instalments]:
        """Takes units as a ``with`` block spends them, ``size`` at a time, where a reservation would deny others the worst case.

        The block calls ``spend`` before it uses units. That raises ``Denied`` at the cap, and the stream is cut there. The first
        instalment is taken before the block, and what is left of the last one is given back at the end, however the block ends. A forked
        child gives nothing back.
        """
        paid, process = Instalments(self, descriptor, size), os.getpid()
        paid._take(size)
        try:
            yield paid
        finally:
            # The block's result matters more. What is not given back expires.
            with contextlib.suppress(LimiterError, SlotLost):
                if process == os.getpid():
                    paid._give_back()

    def _settle_or_record(self, decision: Response, cost: int, began: float) -> None:
        if decision.receipt is None:
            return
        # A receipt lasts as long as the longest exact window. Limits with a resolution may count the entry for longer.
        passed, expires = time.monotonic() - began, max(_exact_windows(decision))
        if (cost == decision.cost and passed < expires) or self.settle(decision, cost):
            return
        counts = expires <= passed < max(limit.window_us for limit in decision.limits) / 1e6
        covered = decision.cost or 0 if counts else 0
        if cost > covered:
            self.record(decision.descriptor, cost - covered)

    @contextlib.contextmanager
    def slot(self, descriptor: Descriptor, cost: int = 1, *, wait: float = 0.0) -> Iterator[Optional[Slot]]:
        """Holds units while a ``with`` block runs, so that the rule bounds how much work runs at the same time.

        The rule's shortest exact window is the longest silence of a holder: a slot whose process crashed is free within that time. If
        the slot is lost, the next call on this limiter in the block's thread raises ``SlotLost``, and so does the end of the block;
        ``Slot.lost`` asks without a call. Raises ``Denied`` if the units do not fit. Yields None if nothing is counted, as during an
        outage with ``--on-outage open``. A forked child holds nothing: its calls do not raise ``SlotLost``, and if it leaves the
        block, its parent keeps the slot.
        """
        id, sent = uuid.uuid4().hex, _clocks()
        decision = self.acquire(descriptor, cost, id=id, wait=wait)
        if not decision.allowed:
            raise Denied(decision)
        if decision.receipt is None:
            yield None
            return
        slot = Slot(self, decision, id, sent)
        held = self._local.__dict__.setdefault("slots", [])
        try:
            if wait:
                # The server decided at an unknown time during the wait.
                slot._renew_first(decision.receipt)
            if slot.lost:
                raise SlotLost(f"the slot of {descriptor!r} was lost before its block began")
            held.append(slot)
            slot._thread.start()
            yield slot
            if slot.lost and slot._process == os.getpid():
                raise SlotLost(f"the slot of {descriptor!r} was lost before its block ended")
        finally:
            if slot in held:
                held.remove(slot)
            if slot._process == os.getpid():
                slot._give_back()

    def _call(self, op: str, descriptor: Descriptor, wait: float = 0.0, **fields: Any) -> Response:
        return self._send(op, lambda found: _parse(found, descriptor), wait, descriptor=_pairs(descriptor), **fields)

    def _send(self, op: str, parse: Callable[[Any], Parsed], wait: float = 0.0, **fields: Any) -> Parsed:
        lost = [slot for slot in getattr(self._local, "slots", ()) if slot.lost and slot._process == os.getpid()]
        if lost:
            raise SlotLost(f"the slot of {lost[0].decision.descriptor!r} is lost")
        body: Dict[str, Any] = {"domain": self.domain, **fields}
        waited = time.monotonic() + wait
        deadline, pause = waited + self.patience, 0.0
        while True:
            left = max(0.0, waited - time.monotonic())
            if wait:
                body["wait_ms"] = int(left * 1000)
            try:
                return self._read(*self._post(op, json.dumps(body).encode(), self.timeout + left), parse)
            except (Unavailable, OSError, http.client.HTTPException) as error:
                if time.monotonic() + pause >= deadline:
                    if isinstance(error, Unavailable):
                        raise
                    raise Unavailable(f"{op}: no response within {self.patience} s: {error!r}") from error
            # The first repetition is immediate: the server may have closed an idle connection.
            time.sleep(pause)
            pause = min(1.0, max(0.02, pause * 2) * random.uniform(0.7, 1.3))

    def _post(self, op: str, body: bytes, timeout: float) -> Tuple[int, bytes]:
        # A forked process must not share its parent's connection.
        if getattr(self._local, "process", None) != os.getpid():
            self._local.process, self._local.connection = os.getpid(), self._connect()
        connection: http.client.HTTPConnection = self._local.connection
        end = time.monotonic() + timeout
        connection.response_class = functools.partial(_response, end)
        connection.timeout = timeout
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(_left(end))
            connection.request("POST", self._path + op, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            # The next call must not read the response to this one. It connects anew.
            connection.close()
            raise

    @staticmethod
    def _read(status: int, body: bytes, parse: Callable[[Any], Parsed]) -> Parsed:
        try:
            found = json.loads(body) if body else {}
            if status == 200:
                return parse(found)
            text = f"status {status}: {found.get('error', 'without a reason')}"
        except (AttributeError, KeyError, TypeError, ValueError):
            text = f"status {status} with a body that limiter-server does not send: {body[:100]!r}"
        if status >= 500 or status in (408, 429):
            raise Unavailable(text, status)
        raise Refused(text, status)


class _Timed(io.RawIOBase):
    """Reads from a socket until a time. The socket's own timeout would begin anew with each byte."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end, self._raw = sock, end, sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        self._sock.settimeout(_left(self._end))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(end: float, sock: socket.socket, *args: Any, **fields: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Timed(sock, end), *args, **fields)  # type: ignore[arg-type]


def _clocks() -> Tuple[float, float]:
    """The monotonic clock, which may stop while the machine sleeps, and the system's, which may step."""
    return time.monotonic(), time.time()


def _exact_windows(response: Response) -> List[float]:
    return [limit.window_us / 1e6 for limit in response.limits if limit.resolution_us is None]


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _pairs(descriptor: Descriptor) -> List[List[str]]:
    pairs = descriptor.items() if isinstance(descriptor, Mapping) else descriptor
    return [[key, value] for key, value in pairs]


def _parse(found: Any, descriptor: Descriptor) -> Response:
    # Later servers may have more fields.
    known = {name: found[name] for name in _names(Response) if name in found}
    limits = tuple(LimitUsage(**{name: limit[name] for name in _names(LimitUsage)}) for limit in known["limits"])
    return Response(**{**known, "limits": limits, "descriptor": descriptor})


def _names(kind: type) -> Tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name != "descriptor")
