"""The closed vocabularies. A word that is not here does not enter a record."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """What happens in a campaign, in this order; rule, script, log and record share the name."""

    PROBE_TOPOLOGY = "probe_topology"
    """Read the machine: CPUs, NUMA nodes, memory, GPUs, links."""
    BUILD_IMAGE = "build_image"
    """Make the environment an engine runs in, content-addressed."""
    PREPARE_PROMPTS = "prepare_prompts"
    """Write the prompts of a workload once, for every arm."""
    START_SERVER = "start_server"
    """Lease the devices, start the server, read its configuration back."""
    GATE_BEFORE = "gate_before"
    """Does the server answer correctly before the load?"""
    WARM_UP = "warm_up"
    """Every (workload, concurrency) shape once, in no measured number."""
    RUN_FINITE = "run_finite"
    """One repeat of one point: a fixed number of requests."""
    RUN_SUSTAINED = "run_sustained"
    """One set of windows: issue for a time, drain, again."""
    GATE_AFTER = "gate_after"
    """Does the server still answer correctly after the load?"""
    STOP_SERVER = "stop_server"
    """End the session and pin its evidence."""


AROUND_LOAD = (
    Stage.START_SERVER,
    Stage.GATE_BEFORE,
    Stage.WARM_UP,
    Stage.GATE_AFTER,
    Stage.STOP_SERVER,
)
"""The stages of a leg that are one job each, whatever its points are."""


class StageState(StrEnum):
    """How one attempt at a stage ended."""

    STARTED = "started"
    """Still running, or killed before it could say more."""
    COMPLETED = "completed"
    """It ran to its end; what it measured may still be bad."""
    FAILED = "failed"
    """The server, or what was asked of it, failed; the record holds what was seen."""
    INVALID = "invalid"
    """It ran, but the measurement itself cannot be trusted."""
    NOT_RUN = "not_run"
    """It could not be tried, for the reason given."""


class Verdict(StrEnum):
    """The answer of a finding, a row, an arm or a run."""

    PASS = "pass"
    FAIL = "fail"
    INVALID = "invalid"
    """The measurement cannot be trusted."""
    NOT_RUN = "not_run"


class ScreenResult(StrEnum):
    """The answer of one row screen."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CHECKED = "not_checked"
    """The evidence the screen needs is missing; never a pass."""


class Screen(StrEnum):
    """The row screens; METRICS in docs/metrics.md defines each."""

    NEEDLE_GATE = "needle_gate"
    JSON_GATE = "json_gate"
    TOOL_GATE = "tool_gate"
    CODE_GATE = "code_gate"
    CACHE_SCREEN = "cache_screen"
    FAILURE_RATE = "failure_rate"
    CONCURRENCY_REACHED = "concurrency_reached"
    CLIENT_BOUND = "client_bound"
    OUTPUT_LENGTH = "output_length"
    INPUT_LENGTH = "input_length"
    TOKEN_COUNT_AGREEMENT = "token_count_agreement"
    CLOCK_SCREEN = "clock_screen"
    THINKING_TOGGLE = "thinking_toggle"
    CONFIG_READBACK = "config_readback"
    PLACEMENT = "placement"
    MIXED_SESSION = "mixed_session"


class LoadScreen(StrEnum):
    """Screens of a load that are no row screens."""

    SCHEDULE_KEPT = "schedule_kept"
    """An open loop sent what was due, and not long after it was due."""


class RequestStatus(StrEnum):
    """How one request of a load ended."""

    OK = "ok"
    """HTTP 200, at least one output token, a terminal marker, no error in the stream."""
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    """Still running when the drain limit ended it."""


class ErrorClass(StrEnum):
    """Why a request failed."""

    CONNECT = "connect"
    """No connection, or it broke before response headers."""
    HTTP_STATUS = "http_status"
    """A status other than 200."""
    IN_STREAM = "in_stream"
    """An error object inside a 200 stream."""
    TRUNCATED = "truncated"
    """The stream ended without a terminal marker."""
    NO_OUTPUT = "no_output"
    """A terminal marker came, but no output token."""
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    """Bytes that are not HTTP, SSE or JSON where these are due."""
    CLIENT = "client"
    """Our own side failed."""


class GateOutcome(StrEnum):
    """How one gate task ended."""

    PASS = "pass"
    WRONG_VALUE = "wrong_value"
    """Well formed, but not the expected answer."""
    MALFORMED = "malformed"
    """Not in the form that was asked for."""
    NO_ANSWER = "no_answer"
    """The output budget was spent without a final answer."""
    UNAVAILABLE = "unavailable"
    """HTTP error, stream error or timeout: availability, not correctness."""
    COULD_NOT_RUN = "could_not_run"
    """Our own checker could not run."""


class GateKind(StrEnum):
    """The kinds of gate task."""

    JSON = "json"
    TOOL = "tool"
    NEEDLE = "needle"
    CODE = "code"


class AttemptState(StrEnum):
    """What an attempt counts for, in attempts.csv."""

    CURRENT = "current"
    """A receipt names it."""
    SUPERSEDED = "superseded"
    """It completed, and a later attempt replaced it."""
    FAILED = "failed"
    INVALID = "invalid"


class Reason(StrEnum):
    """Why a stage is failed, invalid or not run."""

    SERVER_CRASHED = "server_crashed"
    REPLICA_LOST = "replica_lost"
    """One of several servers died; the others served on."""
    SERVER_START_FAILED = "server_start_failed"
    SERVER_STOPPED = "server_stopped"
    """Stopped from outside: released, evicted, owner gone."""
    REQUESTS_FAILED = "requests_failed"
    CONCURRENCY_NOT_REACHED = "concurrency_not_reached"
    CLIENT_BOUND = "client_bound"
    CLIENT_REFUSED = "client_refused"
    """The host refused threads, sockets or memory to the client."""
    LENGTH_OFF = "length_off"
    """Prompts or answers were not as long as they were to be."""
    SCHEDULE_NOT_KEPT = "schedule_not_kept"
    """An open loop fell behind its own schedule."""
    GATE_FAILED = "gate_failed"
    WARM_UP_FAILED = "warm_up_failed"
    BRACKET_OPEN = "bracket_open"
    """The session has no gates after the load."""
    CONFIG_MISMATCH = "config_mismatch"
    """The server does not run what was asked."""
    IMAGE_FAILED = "image_failed"
    INTERRUPTED = "interrupted"
    """Ended from outside, or killed before it could say more."""
    EVIDENCE_MISSING = "evidence_missing"
    """A file that a receipt names is not there."""
    EVIDENCE_CHANGED = "evidence_changed"
    """A file is not the one that was recorded."""
    NOT_AS_PLANNED = "not_as_planned"
    """The receipt was asked another point or server than the plan has now."""
    NOTHING_CHECKED = "nothing_checked"
    """No screen had evidence to pass on: zero checks is a failure."""
    REHEARSAL = "rehearsal"
    """Measured on a simulated server; never publishable."""


class ComparisonKind(StrEnum):
    """What a comparison of two arms may claim."""

    MATCHED = "matched"
    """One declared factor differs and nothing else, in what was asked and in what was read back."""
    RECIPE = "recipe comparison"
    """Anything else: two serving recipes, with the differences listed."""


class RunOrder(StrEnum):
    """In which order the sessions of two arms ran."""

    FIXED = "fixed"
    """A then B, once each."""
    INTERLEAVED = "interleaved"
    """A B A B ..."""
    CROSSOVER = "crossover"
    """A B B A: a drift of the machine falls on both."""
    OTHER = "other"


class RehearsalFault(StrEnum):
    """What the rehearsal engine can be told to do wrong."""

    WILL_NOT_LOAD = "will_not_load"
    """The process ends while it loads the model."""
    CRASH_AT_CONCURRENCY = "crash_at_concurrency"
    """The process dies when so many requests are in flight."""
    ILLEGAL_MEMORY = "illegal_memory"
    """The process dies after so many simulated seconds under load."""
    HTTP_500 = "http_500"
    """One request gets HTTP 500; by default the first JSON task after a load."""
    INCOMPLETE_JSON = "incomplete_json"
    """JSON answers break off while a load runs."""
    THINKING_IGNORED = "thinking_ignored"
    """The chat template opens a thinking block whatever the request says."""
    STATE_POOL_LIMIT = "state_pool_limit"
    """Fewer sequences run than the configuration says, and nothing tells it."""
    SLOW_REPLICA = "slow_replica"
    COMPILE_STALL = "compile_stall"
    """The first step of each new batch shape takes seconds longer."""
    HANG = "hang"
    """From some request on nothing is answered, while the process and /health live."""
    STREAM_CUT = "stream_cut"
    """The connection is closed in the middle of an answer."""
    WRONG_USAGE = "wrong_usage"
    """The usage does not say what was sent."""
    BROKEN_DRAFT = "broken_draft"
    """The draft head loads and runs, and next to none of its tokens is accepted."""


class AuditResult(StrEnum):
    """How an audit ends."""

    VERIFIED = "VERIFIED"
    MISMATCH = "MISMATCH"
    """Something is not what was recorded, or does not compute to what is shown."""
    INCOMPLETE = "INCOMPLETE"
    """Something needed is not there."""
