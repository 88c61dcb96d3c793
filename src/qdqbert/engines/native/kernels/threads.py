"""Synchronization of threads: a barrier, and a mailbox for jobs.

A worker waits for its mailbox in a loop that uses the core for some microseconds, and then returns
to Python, which lets it sleep. No wake-up is lost: a worker says that it sleeps before it looks at
the mailbox for the last time, and a caller posts before it asks whether the worker sleeps.
"""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import I32, I64, VOID, Function, Module, Value
from qdqbert.engines.native.records import FUNCTIONS, JOB, MAILBOX

# Rounds of waiting before a thread sleeps; a round takes about 40 ns.
_PATIENCE = 4096
# Microseconds. If another process has interrupted the thread that is waited for, that thread can go
# on with the core of this one. A thread that only yields keeps its core.
_SLEEP = 50


def emit_barrier(module: Module, isa: InstructionSet) -> None:
    """Write `wait`, which returns when all threads of a job have called it."""
    with module.function("wait", "job*") as f:
        threads = JOB.read(f.job, "threads")
        with f.when(threads > 1):
            count = JOB.read(f.job, "barrier")
            present = count + 8
            before = _load(f, present)
            arrived = _add(f, count, 1)
            is_last = (arrived + 1).equals(threads)
            with f.when(is_last):
                _store(f, 0, count)
                _store(f, before + 1, present)
            with f.when(is_last ^ 1):
                _wait_for(f, isa, present, before, JOB.read(f.job, "sleep"), count + 16)


def emit_mailbox(module: Module, isa: InstructionSet) -> None:
    """Write `post`, `serve` and `finish`, which need the `FUNCTIONS` that the model has.

    `post` gives a worker the job in the fields `model`, `job` and `thread` of its `MAILBOX`, and
    sets `was_asleep`. `serve` runs posted jobs until none came for a while, or until the job is
    null. `finish` waits until a worker has finished its job.
    """
    with module.function("post", "mailbox*") as f:
        _add(f, _field(f, "posted"), 1)
        state = _field(f, "is_asleep")
        asleep = f.emit(I64, f"atomicrmw xchg ptr {state.text}, i64 0 seq_cst")
        MAILBOX.write(f.mailbox, "was_asleep", asleep)
    with module.function("serve", "mailbox*") as f:
        _serve(f, isa)
    with module.function("finish", "mailbox*") as f:
        posted = _load(f, _field(f, "posted"))
        sleep = MAILBOX.read(f.mailbox, "sleep")
        with f.repeat_while() as end:
            done = _load(f, _field(f, "done"))
            end.leave_if(done.equals(posted))
            _wait_for(f, isa, _field(f, "done"), done, sleep)


def _serve(f: Function, isa: InstructionSet) -> None:
    with f.repeat_while() as end:
        done = _load(f, _field(f, "done"))
        tries = f.variable(f.constant(I64, 0))
        with f.repeat_while() as waiting:
            waiting.leave_if(_load(f, _field(f, "posted")).differs(done))
            waiting.leave_if(tries.get() >= MAILBOX.read(f.mailbox, "patience"))
            _pause(f, isa)
            tries.set(tries.get() + 1)
        with f.when(_load(f, _field(f, "posted")).equals(done)):
            state = _field(f, "is_asleep")
            f.emit(I64, f"atomicrmw xchg ptr {state.text}, i64 1 seq_cst")
        # Something may have been posted since; then the caller may have seen that this worker
        # sleeps, and Python's semaphore lets it through once more, which does no harm.
        end.leave_if(_load(f, _field(f, "posted")).equals(done))
        _store(f, 0, _field(f, "is_asleep"))
        job = MAILBOX.read(f.mailbox, "job")
        end.leave_if(job.equals(0))
        model, thread = MAILBOX.each(f.mailbox, "model", "thread")
        function = MAILBOX.read(f.mailbox, "function")
        for index, name in enumerate(FUNCTIONS):
            if name in f.module.functions:
                with f.when(function.equals(index)):
                    f.call(name, model, job, thread)
        _store(f, done + 1, _field(f, "done"))


def _wait_for(
    f: Function,
    isa: InstructionSet,
    place: Value,
    old: Value,
    sleep: Value,
    sleeps: Value | None = None,
) -> None:
    """Wait until a number changes. Sleep if that takes long, and add these sleeps to a counter."""
    tries = f.variable(f.constant(I64, 0))
    with f.repeat_while() as end:
        end.leave_if(_load(f, place).differs(old))
        _pause(f, isa)
        tries.set(tries.get() + 1)
        with f.when(tries.get() > _PATIENCE):
            if sleeps is not None:
                _add(f, sleeps, 1)
            f.emit(I32, f"call i32 {sleep.text}(i32 {_SLEEP})")


def _field(f: Function, name: str) -> Value:
    return f.mailbox + MAILBOX.offset(name)


def _load(f: Function, place: Value) -> Value:
    return f.emit(I64, f"load atomic i64, ptr {place.text} seq_cst, align 8")


def _store(f: Function, value: Value | int, place: Value) -> None:
    f.raw(f"store atomic i64 {f.operand(I64, value).text}, ptr {place.text} seq_cst, align 8")


def _add(f: Function, place: Value, count: int) -> Value:
    return f.emit(I64, f"atomicrmw add ptr {place.text}, i64 {count} seq_cst")


def _pause(f: Function, isa: InstructionSet) -> None:
    if isa.architecture == "x86_64":
        f.intrinsic("llvm.x86.sse2.pause", VOID)
