"""A scripted stand-in for the `xllamacpp` wheel: the same few names, a real HTTP server behind them.

It is put into a venv image by the tests, so that the whole chain (image, launcher, lease, read-back, gates,
load) runs unchanged and in seconds. `<sys.prefix>/control.json` scripts it; it logs its life and each
request to `<sys.prefix>/events.jsonl`.
"""

import asyncio
import enum
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

BUILD_INFO = "scripted"
DEFAULTS = {
    "startup_s": 0.3,
    "ttft_s": 0.005,
    "itl_s": 0.002,
    "fail_if_ctx": None,
    "exit_after_chat_streams": None,
    "exit_at_request": None,
    "slow_after_chat_streams": None,
    "slow_ttft_s": 0.0,
    "ignore_flags": [],
    "hang_on_stop_s": 0.0,
}


class common_speculative_type(enum.Enum):
    COMMON_SPECULATIVE_TYPE_NONE = 0
    COMMON_SPECULATIVE_TYPE_NGRAM_MOD = 5


def control():
    try:
        return DEFAULTS | json.loads((Path(sys.prefix) / "control.json").read_text())
    except FileNotFoundError:
        return dict(DEFAULTS)


def log(event, **facts):
    line = {"t": time.time(), "pid": os.getpid(), "event": event, **facts}
    with (Path(sys.prefix) / "events.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(
            model=SimpleNamespace(path=""),
            model_alias=set(),
            hostnames=[],
            port=0,
            n_ctx=4096,
            n_parallel=1,
            n_batch=2048,
            n_ubatch=512,
            cont_batching=True,
            cache_prompt=True,
            cache_ram_mib=8192,
            kv_unified=False,
            n_threads_http=-1,
            cpuparams=SimpleNamespace(n_threads=1),
            cpuparams_batch=SimpleNamespace(n_threads=1),
            speculative=SimpleNamespace(
                types=[common_speculative_type.COMMON_SPECULATIVE_TYPE_NONE],
                ngram_mod=SimpleNamespace(n_match=24, n_min=48, n_max=64),
            ),
        )


class Server:
    def __init__(self, params):
        self.params, self.script = params, control()
        log("start", alias=sorted(params.model_alias), port=params.port)
        if self.script["fail_if_ctx"] == params.n_ctx:
            print("cannot load the model: scripted failure", flush=True)
            log("exit", why="fail_if_ctx")
            sys.exit(3)
        for flag in self.script["ignore_flags"]:
            setattr(params, flag, getattr(CommonParams(), flag))
        time.sleep(self.script["startup_s"])
        self.counters = dict.fromkeys(
            ("prompt_tokens_total", "tokens_predicted_total", "prompt_tokens_cached_total"), 0
        )
        self.n_all = self.n_requests = self.n_running = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.listening_address = f"http://127.0.0.1:{params.port}"
        ready = threading.Event()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        ready.wait()
        log("ready")

    def _serve(self, ready):
        async def main():
            server = await asyncio.start_server(self._connection, "127.0.0.1", self.params.port)
            ready.set()
            await server.serve_forever()

        asyncio.run(main())

    async def _connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                length = 0
                for line in head.split(b"\r\n"):
                    name, _, value = line.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                body = json.loads(await reader.readexactly(length)) if length else None
                await self._answer(path.decode().split("?")[0], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path, body, writer):
        slot_ctx = self.params.n_ctx // self.params.n_parallel
        speculative = self.params.speculative.types[0].value != 0
        slot = {"n_ctx": slot_ctx, "speculative": speculative, "is_processing": False}
        if path.endswith("/completions"):
            await self._complete(path, body, writer)
            return
        if path == "/metrics":
            rows = [f"# TYPE llamacpp:{k} counter\nllamacpp:{k} {v}\n" for k, v in self.counters.items()]
            rows.append(
                f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {self.n_running}\n"
            )
            rows.append("# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n")
            await self._send(writer, "".join(rows).encode(), "text/plain")
            return
        answers = {
            "/health": {"status": "ok"},
            "/props": {
                "default_generation_settings": {"n_ctx": slot_ctx},
                "total_slots": self.params.n_parallel,
                "model_path": self.params.model.path,
                "build_info": BUILD_INFO,
            },
            "/slots": [slot] * self.params.n_parallel,
            "/v1/models": {"object": "list", "data": [{"id": next(iter(self.params.model_alias))}]},
        }
        if path == "/apply-template":
            answers[path] = {"prompt": " ".join(str(m["content"]) for m in body["messages"])}
        if path == "/tokenize":
            answers[path] = {"tokens": list(range(len(str(body.get("content", "")).split())))}
        if path in answers:
            await self._send(writer, json.dumps(answers[path]).encode())
        else:
            await self._send(writer, b'{"error": "no such path"}', status=b"404 Not Found")

    async def _send(self, writer, data, kind="application/json", status=b"200 OK"):
        head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (
            status,
            kind.encode(),
            len(data),
        )
        writer.write(head + data)
        await writer.drain()

    async def _complete(self, path, body, writer):
        self.n_all += 1
        if self.n_all == self.script["exit_at_request"]:
            log("exit", why="exit_at_request")
            os._exit(139)
        limit = self.script["exit_after_chat_streams"]
        self.n_requests += bool(body.get("stream")) and "tools" not in body
        if limit is not None and self.n_requests > limit:
            # What came before is answered whole, so that the number of served streams is exact.
            await asyncio.wait_for(self.idle.wait(), 10)
            log("exit", why="exit_after_chat_streams")
            os._exit(139)
        chat = "chat" in path
        n_output = body.get("max_tokens") or 8
        prompt = body.get("messages") if chat else body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            n_prompt = len(prompt)
        else:
            n_prompt = len(json.dumps(prompt).split())
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_output,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        self.n_running += 1
        self.idle.clear()
        try:
            if not body.get("stream"):
                message = {"role": "assistant", "content": "tok " * n_output}
                choice = {
                    "index": 0,
                    "finish_reason": "length",
                    "message": message,
                    "text": message["content"],
                }
                await self._send(writer, json.dumps({"choices": [choice], "usage": usage}).encode())
                return
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            slow_after = self.script["slow_after_chat_streams"]
            if slow_after is not None and self.n_requests > slow_after:
                log("slow")
                await asyncio.sleep(self.script["slow_ttft_s"])
            await asyncio.sleep(self.script["ttft_s"])
            for i in range(n_output):
                piece = {"delta": {"content": " tok"}} if chat else {"text": " tok"}
                self._event(writer, {"choices": [{"index": 0, "finish_reason": None, **piece}]})
                await writer.drain()
                if i + 1 < n_output:
                    await asyncio.sleep(self.script["itl_s"])
            end = {"delta": {}} if chat else {"text": ""}
            self._event(writer, {"choices": [{"index": 0, "finish_reason": "length", **end}]})
            self._event(writer, {"choices": [], "usage": usage})
            data = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
            await writer.drain()
        finally:
            self.n_running -= 1
            if not self.n_running:
                self.idle.set()
            self.counters["prompt_tokens_total"] += n_prompt
            self.counters["tokens_predicted_total"] += n_output

    @staticmethod
    def _event(writer, value):
        data = b"data: " + json.dumps(value).encode() + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
