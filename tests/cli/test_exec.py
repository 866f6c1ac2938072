"""`fairlead exec` and `fairlead results`: exact output, exit codes, stdin, lost connections, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from starlette.responses import PlainTextResponse, Response

from support.cli.scripted_api import COMMAND, ScriptedApi, problem
from support.waiting import WAIT

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]


def test_output_arrives_unchanged_and_the_exit_code_is_the_programs(api: ScriptedApi, run: Run) -> None:
    api.add_output(b"\x00\xff\xfe not UTF-8 \r\n")
    api.add_output("line\u2028separator \u0085 and é".encode())
    api.add_output(b"to the other stream\n", "stderr")
    api.add_output(b"no line end")
    api.finish("failed", {"exit_code": 7})
    done = run("exec", "agent-1", "--", "prog", "-x", "--", "é", api=api)
    assert done.stdout == b"\x00\xff\xfe not UTF-8 \r\n" + "line\u2028separator \u0085 and é".encode() + b"no line end"
    assert done.stderr == b"to the other stream\n"
    assert done.returncode == 7
    assert json.loads(api.streams[0][3])["payload"]["argv"] == ["prog", "-x", "--", "é"]


def test_request_has_every_option(api: ScriptedApi, run: Run) -> None:
    api.finish("ok", {"exit_code": 0})
    options = ["--deadline", "5", "--queue", "9", "--lane", "bulk", "--env", "A=b=c", "--cwd", "/tmp", "-n"]
    done = run("exec", *options, "agent-1", "--", "ls", "-l", api=api, input=b"ignored")
    assert done.returncode == 0, done.stderr
    ((method, _, headers, body),) = api.streams
    assert method == "POST"
    assert headers["accept"] == "application/x-ndjson"
    assert len(headers["idempotency-key"]) >= 16
    assert api.tokens == {"Bearer development-platform-token"}
    assert json.loads(body) == {
        "agent": "agent-1",
        "method": "exec",
        "payload": {"argv": ["ls", "-l"], "env": {"A": "b=c"}, "cwd": "/tmp", "stdin": False},
        "deadline": 5.0,
        "lane": "bulk",
        "on_offline": {"queue": 9.0},
    }
    assert not api.inputs


@pytest.mark.parametrize(
    "command", [("exec", "agent-1", "--", "prog"), ("results", COMMAND), ("results", COMMAND, "--follow")], ids=" ".join
)
def test_json_output_is_the_apis_stream(api: ScriptedApi, run: Run, command: tuple[str, ...]) -> None:
    api.add_output("é\x1b\u2028".encode())
    api.add_output(b"\xff", "stderr")
    api.finish("failed", {"exit_code": 3})
    done = run(command[0], "-o", "json", *command[1:], api=api)
    assert (done.returncode, done.stderr) == (3, b"")
    assert done.stdout.decode().replace("\n", "").isprintable()
    first, second, end = map(json.loads, done.stdout.splitlines())
    assert first == {"offset": 0, "agent": "agent-1", "n": 0, "kind": "stdout", "text": "é\x1b\u2028"}
    assert second == {"offset": 1, "agent": "agent-1", "n": 1, "kind": "stderr", "base64": "/w=="}
    assert end["id"] == COMMAND
    assert (end["end"]["state"], end["end"]["payload"]) == ("failed", {"exit_code": 3})


def test_output_is_shown_as_it_arrives(api: ScriptedApi, start: Start) -> None:
    api.may_end.clear()
    api.add_output(b"early")
    api.finish("ok", {"exit_code": 0})
    process = start("exec", "agent-1", "--", "prog")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100) == b"early"
    assert process.poll() is None
    api.may_end.set()
    assert process.wait(WAIT) == 0


@pytest.mark.parametrize(
    ("state", "payload", "error", "code", "words"),
    [
        ("ok", {"exit_code": 0}, None, 0, ""),
        ("ok", {"exit_code": 3}, None, 3, ""),
        ("failed", {"exit_code": 255}, None, 255, ""),
        ("failed", {"exit_code": 256}, None, 1, ""),
        ("failed", {"signal": 9}, None, 137, "signal 9"),
        (
            "failed",
            None,
            {"code": "not_found", "message": "no program named prog"},
            1,
            "no program named prog",
        ),
        ("timeout", None, None, 4, "--deadline"),
        ("expired", None, None, 4, "--queue"),
        ("offline", None, {"code": "agent_offline", "message": "gone"}, 3, "agents ls"),
        ("cancelled", {"signal": 15}, None, 130, "cancelled"),
    ],
)
def test_exit_code_tells_how_the_command_ended(
    api: ScriptedApi, run: Run, state: str, payload: object, error: object, code: int, words: str
) -> None:
    api.finish(state, payload, error)
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert (done.returncode, done.stdout) == (code, b"")
    assert words in done.stderr.decode()
    assert bool(done.stderr) == bool(words), "a plain end is told by the exit code alone"


def test_who_waits_for_an_agent_is_told_so(api: ScriptedApi, run: Run) -> None:
    api.finish("ok", {"exit_code": 0})
    api.presence = {"presence": "away", "why": "its link closed with 1001"}
    done = run("exec", "agent-1", "true", api=api)
    assert done.stderr == b"fairlead: the agent is away: its link closed with 1001; the command waits for it\n"
    api.presence = {"presence": "online", "why": "linked to node-1"}
    assert run("exec", "agent-1", "true", api=api).stderr == b""


def test_truncated_output_is_reported(api: ScriptedApi, run: Run) -> None:
    api.finish("ok", {"exit_code": 0}, truncated=True)
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert done.returncode == 0
    assert b"output_limit" in done.stderr


@pytest.mark.parametrize("overlap", [0, 2])
def test_lost_connections_lose_and_repeat_nothing(api: ScriptedApi, run: Run, overlap: int) -> None:
    for i in range(6):
        api.add_output(f"{i},".encode())
    api.finish("failed", {"exit_code": 5})
    api.overlap = overlap
    api.cuts = [3, 3 + overlap, 1]
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert done.stdout == b"0,1,2,3,4,5,"
    assert done.returncode == 5
    assert [(method, query) for method, query, *_ in api.streams] == [
        ("POST", ""),
        ("GET", "from=2&follow=true"),
        ("GET", "from=4&follow=true"),
        ("GET", "from=4&follow=true"),
    ]


def test_a_post_that_got_no_answer_is_repeated_under_the_same_key(api: ScriptedApi, run: Run) -> None:
    api.add_output(b"once")
    api.finish("ok", {"exit_code": 0})
    api.cuts = [0]
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert (done.stdout, done.returncode) == (b"once", 0)
    keys = [(method, headers["idempotency-key"]) for method, _, headers, _ in api.streams]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_reattaching_survives_temporary_refusals(api: ScriptedApi, run: Run) -> None:
    api.add_output(b"a")
    api.add_output(b"b")
    api.finish("ok", {"exit_code": 0})
    api.cuts = [2]
    first = run("exec", "agent-1", "--", "prog", api=api)
    assert (first.stdout, first.returncode) == (b"ab", 0)
    api.refusals = [problem(503, "bus_unavailable", "away", True), problem(503, "node_busy", "full", True)]
    done = run("results", COMMAND, "--follow", api=api)
    assert (done.stdout, done.returncode) == (b"ab", 0)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            problem(503, "agent_offline", "agent-1 holds no link", True),
            3,
            ["agent-1 holds no link", "--queue"],
        ),
        (problem(503, "bus_unavailable", "Redis is away", True), 3, ["Redis is away", "reconnects by itself"]),
        (problem(503, "node_busy", "draining", True), 3, ["draining", "again"]),
        (problem(404, "agent_unknown", "no agent-1", False), 2, ["no agent-1", "agents ls"]),
        (problem(401, "unauthorized", "wrong token", False), 2, ["wrong token", "FAIRLEAD_TOKEN"]),
        (problem(403, "not_allowed", "not yours", False), 2, ["not yours", "FAIRLEAD_TOKEN"]),
        (problem(403, "forbidden", "no such Host", False), 2, ["no such Host", "allowed_hosts"]),
        (problem(400, "something_new", "deadline is over 3600", False), 2, ["deadline is over 3600"]),
        (problem(500, "internal", "a fault of ours", False), 1, ["a fault of ours", "the gateway's log"]),
        (PlainTextResponse("<html>Bad Gateway</html>", 502), 3, ["HTTP 502"]),
        (PlainTextResponse("what?", 418), 2, ["HTTP 418", "fairlead doctor"]),
        (PlainTextResponse("not NDJSON\n", 200), 1, ["invalid line in the stream"]),
    ],
    ids=lambda value: value.status_code if isinstance(value, Response) else "",
)
def test_refusals_become_exit_codes_and_advice(
    api: ScriptedApi, run: Run, answer: Response, code: int, words: list[str]
) -> None:
    api.refusals = [answer]
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    for word in words:
        assert word in done.stderr.decode()
    assert len(api.streams) == 1, "an answer is not asked for again"


def test_stdin_is_sent_in_order_and_a_lost_chunk_is_sent_again(api: ScriptedApi, run: Run, start: Start) -> None:
    data = os.urandom(300_000)
    api.may_end.clear()
    api.finish("ok", {"exit_code": 0})
    api.input_refusals = [problem(503, "bus_unavailable", "away", True)]
    process = start("exec", "agent-1", "--", "cat", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.close()
    assert api.stdin_end.wait(WAIT)
    api.may_end.set()
    assert process.wait(WAIT) == 0
    assert sorted(api.inputs) == list(range(len(api.inputs)))
    assert b"".join(api.inputs[n] for n in sorted(api.inputs)) == data
    assert api.input_requests[:2] == [0, 0], "the refused chunk was sent again under its number"
    assert max(map(len, api.inputs.values())) <= 64 << 10
    body = json.loads(api.streams[0][3])
    assert body["payload"]["stdin"] is True


def test_a_program_may_end_without_reading_its_stdin(api: ScriptedApi, start: Start) -> None:
    api.finish("ok", {"exit_code": 0})
    process = start("exec", "agent-1", "--", "true", stdin=subprocess.PIPE)
    assert process.wait(WAIT) == 0, "the pipe is still open: nobody may wait for it"
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_ctrl_c_cancels_and_waits_for_the_end(api: ScriptedApi, start: Start) -> None:
    api.may_end.clear()
    api.add_output(b"working")
    process = start("exec", "agent-1", "--", "sleep", "1000")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100) == b"working"
    assert not api.cancelled.is_set()
    process.send_signal(signal.SIGINT)
    assert api.cancelled.wait(WAIT)
    assert process.wait(WAIT) == 130
    assert process.stderr is not None
    talk = process.stderr.read().decode()
    assert "Ctrl-C again" in talk
    assert "Traceback" not in talk


def test_a_cancelled_command_is_reported_once(api: ScriptedApi, run: Run) -> None:
    """What the gateway says of it may be that very word."""
    api.finish("cancelled", None, {"code": "cancelled", "message": "cancelled"})
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert (done.returncode, done.stderr) == (130, b"fairlead: agent-1: cancelled\n")


def test_a_second_ctrl_c_exits_at_once(api: ScriptedApi, start: Start) -> None:
    api.may_end.clear()
    api.end_on_cancel = False
    api.add_output(b"working")
    process = start("exec", "agent-1", "--", "stubborn")
    assert process.stdout is not None
    assert process.stderr is not None
    assert os.read(process.stdout.fileno(), 100) == b"working"
    process.send_signal(signal.SIGINT)
    assert b"again" in process.stderr.readline()
    assert api.cancelled.wait(WAIT)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130, "well under the 10 s that the first would have waited"
    assert f"fairlead results {COMMAND}" in process.stderr.read().decode()


def test_a_closed_output_pipe_cancels_the_command(api: ScriptedApi, start: Start) -> None:
    api.may_end.clear()
    for _ in range(50):
        api.add_output(b"y\n" * 10_000)
    process = start("exec", "agent-1", "--", "yes")
    assert process.stdout is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert api.cancelled.wait(WAIT)
    assert process.wait(WAIT) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_results_shows_the_stored_output(api: ScriptedApi, run: Run) -> None:
    api.may_end.clear()
    for word in (b"one ", b"two ", b"three"):
        api.add_output(word)
    done = run("results", COMMAND, "--from", "1", api=api)
    assert (done.stdout, done.returncode) == (b"two three", 0)
    assert b"--follow" in done.stderr
    assert api.streams[0][1] == "from=1&follow=false"
    api.finish("failed", {"exit_code": 9})
    done = run("results", COMMAND.upper(), api=api)
    assert (done.stdout, done.returncode, done.stderr) == (b"one two three", 9, b"")


def test_ctrl_c_on_results_follow_does_not_cancel(api: ScriptedApi, start: Start) -> None:
    api.may_end.clear()
    api.add_output(b"x")
    process = start("results", COMMAND, "--follow")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 10) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 130
    assert not api.cancelled.is_set()


@pytest.mark.parametrize("command", ["exec", "shell"])
@pytest.mark.parametrize("argv", [("--deadline", "2", "--", "id"), ("--deadline=2", "id"), ("-n", "id")])
def test_an_option_after_the_agent_is_refused(api: ScriptedApi, run: Run, command: str, argv: tuple[str, ...]) -> None:
    done = run(command, "agent-1", *argv, api=api)
    assert done.returncode == 2
    assert f"fairlead {command} {argv[0]} … agent-1 -- PROGRAM" in done.stderr.decode()
    assert not api.streams


def test_a_program_name_may_begin_with_a_dash(api: ScriptedApi, run: Run) -> None:
    api.finish("ok", {"exit_code": 0})
    assert run("exec", "agent-1", "--", "--deadline", "2", api=api).returncode == 0
    assert json.loads(api.streams[0][3])["payload"]["argv"] == ["--deadline", "2"]
