"""The command-line tools of the C client, as shell scripts use them."""

from __future__ import annotations

import subprocess

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.pika_program import opened
from tests.acceptance.clients.programs.program import Given, NotOfferedError, equal, until


def tool(name: str, url: str, *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
    """Its status, what it printed, and its complaint."""
    done = subprocess.run(
        [f"amqp-{name}", f"--url={url}", *arguments],
        input=given,
        capture_output=True,
        timeout=program.WAIT_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


def works(name: str, url: str, *arguments: str, given: bytes = b"") -> bytes:
    code, said, complaint = tool(name, url, *arguments, given=given)
    equal(code, 0, f"amqp-{name}: {complaint}: status")
    return said


def confirms(given: Given) -> str:
    raise NotOfferedError("the tools publish without confirms")


def acks(given: Given) -> str:
    queue = given.name("acks")
    works("declare-queue", given.url, "-d", "-q", queue)
    lines = b"".join(b"%d\n" % number for number in range(200))
    works("publish", given.url, "-p", "-l", "-r", queue, given=lines)
    found = works("consume", given.url, "-q", queue, "-c", "200", "-p", "10", "cat")
    equal(found, lines, "bodies")
    equal(works("delete-queue", given.url, "-q", queue).strip(), b"0", "what is left")
    return "200 by amqp-publish and amqp-consume"


def channel_error(given: Given) -> str:
    code, _, complaint = tool("get", given.url, "-q", given.name("missing"))
    equal(code != 0, True, "the status tells of it")
    equal("404" in complaint, True, f"404 in {complaint!r}")
    return complaint


def topic(given: Given) -> None:
    """amqp-consume makes a queue of its own, and binds it."""
    arguments = ("-x", "-e", "amq.topic", "-r", f"{given.prefix}.*.b")
    consumer = subprocess.Popen(
        ["amqp-consume", f"--url={given.url}", *arguments, "-c", "1", "cat"],
        stdout=subprocess.PIPE,
    )

    def published() -> bool:
        works("publish", given.url, "-e", "amq.topic", "-r", f"{given.prefix}.a.b", "-b", "yes")
        works("publish", given.url, "-e", "amq.topic", "-r", f"{given.prefix}.a", "-b", "no")
        return consumer.poll() is not None

    # Its queue is bound at some moment after its start.
    until(published, "a message that matches")
    assert consumer.stdout is not None
    equal(consumer.stdout.read(), b"yes", "body")


def get(given: Given) -> None:
    queue = given.name("get")
    works("declare-queue", given.url, "-d", "-q", queue)
    equal(tool("get", given.url, "-q", queue)[0], 2, "the status for an empty queue")
    works("publish", given.url, "-r", queue, "-C", "text/plain", "-H", "mine: 1", "-b", "one")
    until(lambda: tool("get", given.url, "-q", queue)[:2] == (0, b"one"), "the message")
    works("delete-queue", given.url, "-q", queue)


def large(given: Given) -> str:
    queue, body = given.name("large"), bytes(range(251)) * 4178
    works("declare-queue", given.url, "-d", "-q", queue)
    works("publish", given.url, "-r", queue, given=body)
    equal(works("consume", given.url, "-q", queue, "-c", "1", "cat"), body, "body")
    works("delete-queue", given.url, "-q", queue)
    return f"{len(body):,} bytes"


def failover(given: Given) -> str:
    """What was stored before the kill and what was stored after it comes. The tools know neither
    confirms nor arguments of queues: pika declares the queue, and counts what is stored."""
    queue, sent = given.name("failover"), 0
    with opened(given.url) as channel:
        channel.queue_declare(queue, durable=True, arguments=program.REPLICATED)
    urls = given.led(queue)
    with opened(urls[1]) as channel:

        def stored(count: int, urls: list[str]) -> bool:
            """Ten more, until so many are stored."""
            nonlocal sent
            found = channel.queue_declare(queue, passive=True).method.message_count
            if found < count:
                for url in urls:  # what a tool that failed sent may be stored: never the same again
                    lines = b"".join(b"%d\n" % number for number in range(sent, sent + 10))
                    sent += 10
                    if tool("publish", url, "-p", "-l", "-r", queue, given=lines)[0] == 0:
                        break
            return found >= count

        until(lambda: stored(50, urls), "storing 50")
        dead = given.kill(queue)
        until(lambda: stored(100, urls) and dead.is_set(), "storing 100")
        found = works("consume", urls[1], "-q", queue, "-c", "100", "-p", "20", "cat")
        numbers = set(map(int, found.splitlines()))
        equal(len(numbers), 100, "different messages")
        equal(numbers <= set(range(sent)), True, "they were sent")
        channel.queue_delete(queue)
    return "100 stored, 100 consumed"


if __name__ == "__main__":
    program.run(vars())
