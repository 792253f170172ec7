"""Tests of the client against a real server: python3 -m unittest, with LIMITER_SERVER=/path/to/limiter-server.

LIMITER_STORE is the server's store. The tests of limiter-server run this file over memory and over Redis.
"""

import contextlib
import http.client
import http.server
import multiprocessing
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import uuid

from limiter_client import AllOf, Denied, Limiter, LimiterError, Refused, Reservation, Response, SlotLost, Unavailable

SERVER = os.environ["LIMITER_SERVER"]
STORE = os.environ.get("LIMITER_STORE", "memory")
CONFIG = """
domain: d
descriptors:
  - { key: user, rate_limit: { policy: "20/1h" } }
  - { key: meter, rate_limit: { policy: "60000/10m, 1000000/30d~1h" } }
  - { key: cap, rate_limit: { policy: "2500/1h" } }
  - { key: short, rate_limit: { policy: "20/500ms" } }
  - { key: coarse, rate_limit: { policy: "100/500ms, 1000000/30d~1h" } }
  - { key: soon, rate_limit: { policy: "1/300ms" } }
  - { key: slot, rate_limit: { policy: "2/2s" } }
  - { key: narrow, rate_limit: { policy: "100/1h, 1/1s" } }
  - { key: reloaded, rate_limit: { policy: "1/6s" } }
  - { key: free, rate_limit: { unlimited: true } }
"""


class Server:
    """A server that is killed at the end. ``config`` is its configuration."""

    def __init__(self, *options: str, store: str = STORE) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.config = pathlib.Path(self.folder.name, "rules.yaml")
        self.config.write_text(CONFIG)
        free = [option for name in ("grpc", "http", "admin") for option in (f"--{name}", "127.0.0.1:0")]
        command = [SERVER, "--config", str(self.config), "--store", store, *free, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            name, _, address = line.strip().removeprefix("limiter-server: ").partition(" ")
            if name == "http":
                self.host = address
            if name == "admin":
                break
        # A full pipe would block the server.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Proxy(http.server.ThreadingHTTPServer):
    """Stays while servers come and go. Loses the next ``lose`` responses: the server has made these calls."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.lose, self.calls, self.on_loss = "", 0, 0, lambda: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        proxy, body = self.server, self.rfile.read(int(self.headers["content-length"]))
        self.close_connection = True  # Unless there is a response.
        proxy.calls += 1
        try:
            connection = http.client.HTTPConnection(proxy.target, timeout=70)
            connection.request("POST", self.path, body, {"content-type": self.headers["content-type"]})
            response = connection.getresponse()
            answer = response.read()
            connection.close()
        except (OSError, http.client.HTTPException):
            return
        if proxy.lose > 0:
            proxy.lose -= 1
            proxy.on_loss()
            return
        self.close_connection = False
        self.send_response(response.status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_) -> None:
        pass


def raises(error: Exception) -> None:
    raise error


def same(value: object) -> object:
    return value


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(lambda: self.server.kill())
        self.proxy = Proxy()
        self.proxy.target = self.server.host
        self.addCleanup(lambda: (self.proxy.shutdown(), self.proxy.server_close()))
        self.limiter = Limiter(self.proxy.url(), "d", timeout=30, patience=30)
        # One Redis serves all tests.
        self.user = {"user": uuid.uuid4().hex}

    def used(self) -> int:
        return self.limiter.status(self.user).used

    def in_child(self, block) -> object:
        """Enters the block, and leaves it in a forked child. The child's exit ends only the child."""
        entered = block.__enter__()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                block.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        return entered

    def restart(self) -> None:
        self.server.kill()
        self.server = Server()
        self.proxy.target = self.server.host

    def test_units_are_reserved_settled_and_refunded(self) -> None:
        decision = self.limiter.acquire(self.user, 12)
        self.assertEqual((decision.allowed, decision.rule, decision.remaining), (True, "user", 8))
        self.assertEqual([limit.window_us for limit in decision.limits], [3_600_000_000])
        self.assertTrue(self.limiter.settle(decision, 3))
        self.assertEqual(self.used(), 3)
        recorded = self.limiter.record(list(self.user.items()), 4)
        self.assertEqual((recorded.allowed, recorded.used), (True, 7))
        self.assertTrue(self.limiter.refund(decision))
        self.assertFalse(self.limiter.refund(decision))
        self.assertEqual(self.used(), 4)
        self.assertEqual((self.limiter.peek(self.user, 16).allowed, self.limiter.peek(self.user, 17).allowed), (True, False))

    def test_several_descriptors_are_one_decision(self) -> None:
        other, self.proxy.lose = {"user": uuid.uuid4().hex}, 1
        both = self.limiter.acquire_all([(self.user, 12), (other, 3)])
        self.assertEqual((both.allowed, both.retry_after, [call.used for call in both.calls]), (True, None, [12, 3]))
        self.assertTrue(self.limiter.settle(both.calls[0], 5))
        denied = self.limiter.acquire_all([(other, 1), (self.user, 16)])
        self.assertEqual((denied.allowed, [call.allowed for call in denied.calls]), (False, [True, False]))
        self.assertGreater(denied.retry_after, 0)
        never = self.limiter.acquire_all([(other, 1), (self.user, 21)])
        self.assertEqual((never.allowed, never.retry_after), (False, None))
        self.assertEqual((self.used(), self.limiter.status(other).used), (5, 3))
        self.assertTrue(self.limiter.acquire_all([(self.user, 15), (other, 0)]).allowed)
        self.assertFalse(self.limiter.acquire_all([(other, 1), (self.user, 0)]).allowed)

    def test_each_of_several_calls_is_renewed_with_their_id(self) -> None:
        other = {"user": uuid.uuid4().hex}
        both = self.limiter.acquire_all([(self.user, 1), (other, 1)], id=self.user["user"])
        for call in both.calls:
            self.proxy.lose = 1
            renewed = self.limiter._call("renew", call.descriptor, receipt=call.receipt, id=self.user["user"])
            self.assertTrue(renewed.applied)

    def test_a_reservation_charges_what_the_block_says(self) -> None:
        with self.limiter.reserve(self.user, 12) as reservation:
            self.assertEqual(self.used(), 12)
            reservation.cost = 5
        self.assertEqual(self.used(), 5)
        with self.limiter.reserve(self.user, 2):
            pass
        self.assertEqual(self.used(), 7)
        with self.assertRaises(ZeroDivisionError), self.limiter.reserve(self.user, 5):
            1 / 0
        self.assertEqual(self.used(), 12, "a prompt whose stream fails is not free")
        with self.assertRaises(Denied) as denied, self.limiter.reserve(self.user, 9):
            self.fail("admitted")
        self.assertGreater(denied.exception.decision.retry_after, 0)

    def test_a_stream_that_breaks_off_costs_what_it_has_sent(self) -> None:
        def stream():
            with self.limiter.reserve(self.user, 12) as reservation:
                reservation.cost = 0
                while True:
                    reservation.cost += 1
                    yield

        for number in range(1, 3):
            reader = stream()
            for _ in range(3):
                next(reader)
            reader.close()
            self.assertEqual(self.used(), 3 * number)
        with self.assertRaises(ZeroDivisionError), self.limiter.reserve(self.user, 12) as reservation:
            reservation.cost = 4
            1 / 0
        self.assertEqual(self.used(), 10)
        with contextlib.suppress(ZeroDivisionError), self.limiter.reserve(self.user, 10) as reservation:
            reservation.cost = 0
            1 / 0
        self.assertEqual(self.used(), 10)

    def test_instalments_start_every_stream_and_stop_at_the_cap(self) -> None:
        # A cap of 25, in hundredths, and 40 streams that cost 4 at worst. Each runs until it is denied, or has cost 3.
        cap, all_started, started, spent = {"cap": self.user["user"]}, threading.Barrier(40), [], []

        def stream(block) -> None:
            cost = 0
            with contextlib.suppress(Denied):
                with block as paid:
                    started.append(1)
                    all_started.wait(60)
                    while cost < 300:
                        paid.spend(7)
                        cost += 7
            spent.append(cost)

        with contextlib.ExitStack() as blocks, contextlib.suppress(Denied):
            while True:
                blocks.enter_context(self.limiter.reserve(cap, 400)).cost = 0
                started.append(1)
        self.assertEqual((len(started), self.limiter.status(cap).used), (6, 0))
        started.clear()
        streams = [threading.Thread(target=stream, args=(self.limiter.instalments(cap, 50),)) for _ in range(40)]
        for thread in streams:
            thread.start()
        for thread in streams:
            thread.join()
        self.assertEqual((len(started), self.limiter.status(cap).used), (40, sum(spent)))
        self.assertTrue(2000 <= sum(spent) <= 2500, spent)

    def test_an_instalment_covers_what_it_lacks_and_the_rest_is_given_back(self) -> None:
        with self.assertRaises(Denied), self.limiter.instalments(self.user, 4) as paid:
            for cost, used in (0, 4), (3, 4), (8, 11), (1, 15), (3, 15):
                paid.spend(cost)
                self.assertEqual(self.used(), used, cost)
            paid.spend(6)
        self.assertEqual((paid.spent, self.used()), (15, 15))
        # What the server would refuse at the end would cost the whole instalment.
        with self.limiter.instalments(self.user, 4) as paid:
            for cost in 0.5, -1, "1":
                with self.assertRaises(ValueError):
                    paid.spend(cost)
        self.assertEqual((paid.spent, self.used()), (0, 15))
        with self.assertRaises(Denied), self.limiter.instalments(self.user, 6):
            self.fail("admitted")

    def test_an_instalment_whose_response_was_lost_counts_once(self) -> None:
        with Limiter(self.proxy.url(), "d", patience=0).instalments(self.user, 4) as paid:
            self.proxy.lose = 9
            with self.assertRaises(Unavailable):
                paid.spend(5)
            self.proxy.lose = 0
            paid.spend(8)
            self.assertEqual(self.used(), 8)
        self.assertEqual((paid.spent, self.used()), (8, 8))

    def test_a_block_that_outlives_its_window_is_charged(self) -> None:
        short = {"short": self.user["user"]}
        for cost, ends in (3, "returns"), (4, "raises"), (None, "returns"), (None, "raises"):
            before = self.limiter.status(short).used
            with contextlib.suppress(ZeroDivisionError), self.limiter.reserve(short, 5) as reservation:
                time.sleep(0.6)
                if cost is not None:
                    reservation.cost = cost
                if ends == "raises":
                    1 / 0
            used = self.limiter.status(short).used
            self.assertEqual(used, 5 if cost is None else cost, (cost, ends, before))
            time.sleep(0.6)

    def test_a_block_that_outlives_its_receipt_is_charged_once(self) -> None:
        # A limit with a resolution still counts what was reserved.
        for cost, total in (5, 5), (13, 13), (3, 5):
            coarse = {"coarse": uuid.uuid4().hex}
            with self.limiter.reserve(coarse, 5) as reservation:
                time.sleep(0.6)
                reservation.cost = cost
            self.assertEqual(self.limiter.status(coarse).limits[1].used, total, cost)

    def test_a_block_whose_entry_is_gone_is_charged(self) -> None:
        with self.limiter.reserve(self.user, 5) as reservation:
            self.limiter.refund(reservation.decision)
            reservation.cost = 3
        self.assertEqual(self.used(), 3)
        with contextlib.suppress(ZeroDivisionError), self.limiter.reserve(self.user, 5) as reservation:
            self.limiter.refund(reservation.decision)
            reservation.cost = 0
            1 / 0
        self.assertEqual(self.used(), 3)

    def test_exceptions_and_values_cross_processes(self) -> None:
        response = self.limiter.acquire(self.user, 20)
        denied = Denied(self.limiter.acquire(self.user))
        values = [response, response.limits[0], AllOf(True, (response,)), Reservation(response, 3)]
        errors = [denied, LimiterError("a", 1), Refused("b", 2), Unavailable("c"), SlotLost("d")]
        with multiprocessing.Pool(1) as pool:
            for value in values:
                got = pool.apply_async(same, (value,)).get(60)
                self.assertEqual(vars(got), vars(value))
            for error in errors:
                with self.assertRaises(type(error)) as raised:
                    pool.apply_async(raises, (error,)).get(60)
                got = vars(raised.exception)
                got.pop("__notes__", None)
                self.assertEqual((str(raised.exception), got), (str(error), vars(error)))

    def test_a_forked_child_gives_nothing_back(self) -> None:
        job = {"slot": self.user["user"]}
        instalments = self.limiter.instalments(self.user, 5)
        for block, descriptor in (self.limiter.reserve(self.user, 5), self.user), (instalments, self.user), (self.limiter.slot(job), job):
            self.in_child(block)
            self.assertIn(self.limiter.status(descriptor).used, (1, 5, 10))
            block.__exit__(None, None, None)
        self.assertEqual((self.used(), self.limiter.status(job).used), (5, 0))

    def test_the_shortest_exact_window_is_the_longest_silence(self) -> None:
        narrow = {"narrow": self.user["user"]}
        with self.limiter.slot(narrow):
            end = time.monotonic() + 3
            while time.monotonic() < end:
                self.assertFalse(self.limiter.acquire(narrow).allowed)
        self.assertTrue(self.limiter.acquire(narrow).allowed)

    def test_a_slot_that_others_took_before_the_response_is_lost(self) -> None:
        for wait in 5, 0:
            narrow, taken = {"narrow": uuid.uuid4().hex}, []

            def take() -> None:
                time.sleep(0.9)
                taken.append(Limiter(f"http://{self.server.host}", "d").acquire(narrow, wait=5).allowed)

            self.proxy.lose, self.proxy.on_loss = 1, take
            with self.assertRaises(SlotLost), Limiter(self.proxy.url(), "d", timeout=9, patience=9).slot(narrow, wait=wait):
                self.fail("begun")
            self.assertEqual((taken, self.limiter.status(narrow).limits[0].used), ([True], 1))

    def test_a_slot_whose_renewal_was_late_stays_lost(self) -> None:
        narrow, taken, post = {"narrow": self.user["user"]}, [], self.limiter._post

        def late(op: str, *args):
            if op == "renew" and not taken:
                taken.append(Limiter(f"http://{self.server.host}", "d").acquire(narrow, wait=5).allowed)
            return post(op, *args)

        self.limiter._post = late
        with self.assertRaises(SlotLost), self.limiter.slot(narrow) as slot:
            slot._thread.join(5)
            self.assertTrue(slot.lost)
        self.assertEqual((taken, self.limiter.status(narrow).limits[0].used), ([True], 1))

    def test_a_slot_follows_a_reload(self) -> None:
        job = {"reloaded": self.user["user"]}
        with self.limiter.slot(job) as slot:
            self.assertEqual(slot._window, 6)
            self.server.config.write_text(CONFIG.replace("1/6s", "1/1s"))
            while slot._window == 6:
                self.assertFalse(slot.lost)
                time.sleep(0.01)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                self.assertFalse(self.limiter.acquire(job).allowed)

    def test_a_slot_whose_first_renewal_fails_is_refunded(self) -> None:
        job = {"slot": self.user["user"]}
        calls, limiter = [], Limiter(self.proxy.url(), "d", patience=0)
        post = limiter._post

        def fail(op: str, *args):
            calls.append(op)
            if op == "renew":
                raise OSError("unplugged")
            return post(op, *args)

        limiter._post = fail
        with self.assertRaises(Unavailable), limiter.slot(job, wait=1):
            self.fail("begun")
        self.assertEqual((calls[:2], self.limiter.status(job).used), (["acquire", "renew"], 0))

    def test_a_wait_outlives_an_orderly_restart(self) -> None:
        if STORE == "memory":
            self.skipTest("the log is lost")
        self.assertTrue(self.limiter.acquire({"slot": self.user["user"]}, 2).allowed)
        done = []
        waiting = threading.Thread(target=lambda: done.append(self.limiter.acquire({"slot": self.user["user"]}, wait=60)))
        waiting.start()
        time.sleep(0.3)
        self.server.process.terminate()
        self.server.process.wait()
        self.server = Server()
        self.proxy.target = self.server.host
        waiting.join()
        self.assertTrue(done[0].allowed)

    def test_a_denial_says_how_long_to_wait_and_an_acquire_can_wait(self) -> None:
        soon = {"soon": self.user["user"]}
        self.assertTrue(self.limiter.acquire(soon).allowed)
        self.assertTrue(self.limiter.acquire(soon, wait=60).allowed)
        self.assertTrue(self.limiter.acquire(self.user, 20).allowed)
        denied = self.limiter.acquire(self.user, wait=0.05)
        self.assertFalse(denied.allowed)
        self.assertGreater(denied.retry_after, 0.05)
        with self.assertRaises(ValueError):
            self.limiter.acquire(soon, wait=61)

    def test_what_is_not_counted_needs_no_settlement(self) -> None:
        never = self.limiter.acquire(self.user, 21)
        self.assertEqual((never.allowed, never.error, never.retry_after), (False, "cost_exceeds_limit", None))
        free, nobody = self.limiter.acquire({"free": "x"}), self.limiter.acquire({"nobody": "x"})
        self.assertEqual((free.allowed, free.rule, nobody.allowed, nobody.rule), (True, "free", True, None))
        calls = self.proxy.calls
        for decision in never, free, nobody, Response("acquire"):
            self.assertEqual((self.limiter.settle(decision, 1), self.limiter.refund(decision)), (False, False))
        self.assertEqual(self.proxy.calls, calls)
        self.assertIsNone(self.limiter.status({"nobody": "x"}).used)

    def test_a_call_whose_response_is_lost_counts_once(self) -> None:
        meter = {"meter": self.user["user"]}
        for call, descriptor in (self.limiter.acquire, self.user), (self.limiter.record, self.user), (self.limiter.record, meter):
            before, calls, self.proxy.lose = self.limiter.status(descriptor).used, self.proxy.calls, 3
            decision = call(descriptor, 5)
            self.assertEqual((decision.allowed, decision.used, self.proxy.calls), (True, before + 5, calls + 4))
            self.proxy.lose = 1
            self.assertTrue(self.limiter.settle(decision, 2))
            self.assertEqual(self.limiter.status(descriptor).used, before + 2)
        self.proxy.lose = 1
        # The repetition finds nothing.
        self.assertFalse(self.limiter.refund(decision))
        self.assertEqual(self.limiter.status(meter).used, 0)

    def test_a_slot_is_held_while_its_block_runs_and_a_lost_one_raises(self) -> None:
        job = {"slot": self.user["user"]}
        with self.limiter.slot(job) as slot, self.limiter.slot(job):
            self.proxy.lose = 2
            time.sleep(5)
            self.assertFalse(slot.lost)
            with self.assertRaises(Denied), self.limiter.slot(job):
                self.fail("admitted")
        self.assertEqual(self.limiter.status(job).used, 0)
        for calls in True, False:
            with self.assertRaises(SlotLost), self.limiter.slot(job, wait=1) as slot:
                # Its first renewal has given it a new receipt.
                self.limiter.refund(Response("acquire", receipt=slot._receipt, descriptor=job))
                while not slot.lost:
                    time.sleep(0.01)
                if calls:
                    self.limiter.status(job)
                    self.fail("called")
            self.assertEqual(self.limiter.status(job).used, 0)
        with self.limiter.slot({"free": "x"}) as slot:
            self.assertIsNone(slot)

    def test_the_callers_own_key_counts_once(self) -> None:
        first, second = (self.limiter.acquire(self.user, 5, id="order 7") for _ in range(2))
        self.assertEqual((first.used, second.used, first.receipt), (5, 5, second.receipt))

    def test_the_server_is_killed_in_between(self) -> None:
        kept = STORE != "memory"
        before = self.limiter.acquire(self.user, 4)
        # It has decided, and ends before anyone reads the response. The next one starts while the client repeats the call.
        self.proxy.lose = 1
        self.proxy.on_loss = lambda: (self.server.kill(), threading.Thread(target=self.restart).start())
        decision = self.limiter.acquire(self.user, 5)
        self.assertEqual((decision.allowed, decision.used), (True, 9 if kept else 5))
        self.assertEqual(self.limiter.refund(before), kept)
        self.restart()
        self.assertEqual(self.limiter.settle(decision, 2), kept)
        self.assertEqual(self.used(), 2 if kept else 0)

    def test_without_a_server_the_call_ends_with_an_error(self) -> None:
        self.server.kill()
        limiter = Limiter(self.proxy.url(), "d", patience=0.2)
        with self.assertRaises(Unavailable) as error, limiter.reserve(self.user, 1):
            self.fail("admitted")
        self.assertIsNone(error.exception.status)
        self.assertGreater(self.proxy.calls, 1)

    def test_a_response_that_arrives_byte_by_byte_is_not_waited_for(self) -> None:
        ended = threading.Event()
        self.addCleanup(ended.set)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def drip() -> None:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                    while not ended.wait(0.05):
                        connection.sendall(b" ")

            threading.Thread(target=drip, daemon=True).start()
            limiter = Limiter("http://127.0.0.1:%d" % listener.getsockname()[1], "d", timeout=0.3, patience=0)
            # Without a deadline, 1,000,000 bytes take 14 hours.
            with self.assertRaises(Unavailable) as error:
                limiter.acquire(self.user)
            self.assertIn("timed out", str(error.exception))

    def test_refusals_and_failures_have_their_statuses(self) -> None:
        calls = self.proxy.calls
        for call, status in (lambda: self.limiter.acquire(self.user, 0), 400), (lambda: self.limiter.acquire({}), 400):
            with self.assertRaises(Refused) as error:
                call()
            self.assertEqual(error.exception.status, status)
        with self.assertRaises(Refused) as error:
            Limiter(self.proxy.url() + "/other", "d").status(self.user)
        self.assertEqual((error.exception.status, self.proxy.calls), (404, calls + 3))
        failing = Server("--unmatched", "error", "--on-outage", "error", store="redis://127.0.0.1:1")
        self.addCleanup(failing.kill)
        limiter = Limiter(f"http://{failing.host}", "d", patience=0.2)
        with self.assertRaises(Unavailable) as unavailable:
            limiter.acquire(self.user)
        self.assertEqual(unavailable.exception.status, 503)
        with self.assertRaises(Refused) as error:
            limiter.acquire({"nobody": "x"})
        self.assertIn("no rule matches", str(error.exception))
        for url in "127.0.0.1:8080", "ftp://x", "http://":
            with self.assertRaises(ValueError):
                Limiter(url, "d")

    def test_threads_share_a_limiter(self) -> None:
        admitted = []
        work = lambda: admitted.extend(self.limiter.acquire(self.user).allowed for _ in range(10))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(admitted), sum(admitted)), (80, 20))
