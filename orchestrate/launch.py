"""Launches a run: survey, plan, image, place, start, watch, conclude. Executes the plan and nothing else.

Whatever happens after the first container exists, it ends with none of them left, unless the run was detached.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from orchestrate import image as images
from orchestrate import plan as planning
from orchestrate import survey
from orchestrate.errors import Exit, OperatorError, UsageError
from orchestrate.outcome import Outcome, Sighting, derive
from orchestrate.record import record
from orchestrate.runs import RunFolder
from orchestrate.together import all_of, attempt
from orchestrate.watch import Watch
from trainer.contract import FINAL_WEIGHTS, METRICS_FILE, VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orchestrate.backends import Backend
    from orchestrate.engine import Engine
    from orchestrate.inventory import Host
    from orchestrate.plan import Mount, NodeFacts, RunPlan
    from orchestrate.remote import Shell
    from orchestrate.report.launch import View

INTERRUPT_GRACE_S = 10  # for the ranks to write a checkpoint
STOP_GRACE_S = 2  # for what is left of a run that has failed
SURVEY_S = 60.0
LOOK_S = 10.0


class _Closes(Protocol):
    def close(self) -> None: ...


Closing = TypeVar("Closing", bound=_Closes)


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asked for."""

    run: str
    on: str  # ssh, local, process
    nodes: int
    hosts: tuple[Host, ...] = ()
    nproc: int | None = None
    program: tuple[str, ...] = planning.DEFAULT_PROGRAM
    image: str = ""
    preset: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    port: int | None = None


class Prepared:
    """A plan with its open connections, ready to be placed. Use as a context: the connections end with it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._closed = False
        self._engines: dict[str, Engine] = {}
        self.plan: RunPlan

    def __enter__(self) -> Self:
        try:
            plan = {"ssh": self._over_ssh, "local": self._on_engine, "process": self._as_processes}[self.request.on]()
            if plan.image:
                engines = list(dict.fromkeys(self._engines.values()))
                plan = replace(plan, image_id=images.choose(plan.image, self._here, engines))
            self.plan = plan
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        self._stack.close()

    def _hold(self, opened: Closing) -> Closing:
        """Close a connection with the context; one that comes after its end, from a host that was given up, at once."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._stack.callback(opened.close)
        if closed:
            opened.close()
        return opened

    def _planned(self, hosts: Sequence[Host], facts: Mapping[str, NodeFacts], port: int, subnet: str = "") -> RunPlan:
        asked = self.request
        return planning.make(
            run=asked.run,
            backend=asked.on,
            hosts=hosts,
            facts=facts,
            nodes=asked.nodes,
            port=port,
            nproc=asked.nproc,
            program=asked.program,
            image=asked.image or ("muster:cuda" if any(f.gpus for f in facts.values()) else "muster:cpu"),
            preset=asked.preset,
            environment=asked.environment,
            mounts=asked.mounts,
            subnet=subnet,
        )

    def _shell(self, host: Host) -> Shell:
        from orchestrate.remote import connect

        return self._hold(connect(host))

    def _over_ssh(self) -> RunPlan:
        """Connect to the hosts that will be used, and ask them what the plan needs."""
        from orchestrate import engine

        asked = self.request
        used = [h for h in asked.hosts if not h.spare][: asked.nodes]
        planning.refuse_too_many(asked.nodes, asked.hosts)
        shells = self._shells(used)
        engines = all_of(shells, lambda s: self._hold(engine.behind(s)), deadline_s=SURVEY_S)
        self._engines = {host.name: one for host, one in zip(used, engines, strict=True)}
        paths = survey.routes(shells, lambda them, work: all_of(them, work, deadline_s=SURVEY_S))
        extras = all_of(shells, lambda s: (survey.gpus(s), survey.rdma_devices(s)), deadline_s=SURVEY_S)
        facts = {
            shell.host.name: replace(paths[shell.host.name], gpus=found[0], rdma_devices=found[1])
            for shell, found in zip(shells, extras, strict=True)
        }
        return self._planned(asked.hosts, facts, survey.port_on(shells[0], asked.run, asked.port))

    def _shells(self, hosts: Sequence[Host]) -> list[Shell]:
        """Connect to all hosts through the bounded pool; raise the first error in the order of the hosts."""
        from orchestrate.remote import fan_out

        answers = fan_out(hosts, self._shell, deadline_s=SURVEY_S).values()
        for answer in answers:
            if isinstance(answer, OperatorError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, OperatorError)]

    def _on_engine(self) -> RunPlan:
        """Several containers on this machine's engine, on a network of their own."""
        from orchestrate import engine

        here = self._hold(engine.local())
        used = (*here.subnets(), *survey.routed(Path("/proc/net/route")))
        subnet, addresses = planning.one_machine(used, self.request.nodes)
        hosts, facts = self._several(addresses, iface="eth0")
        self._engines = {host.name: here for host in hosts}
        return self._planned(hosts, facts, self.request.port or 29500, subnet)

    def _as_processes(self) -> RunPlan:
        from orchestrate.inventory import Host
        from orchestrate.remote import connect

        if self.request.mounts:
            raise UsageError(
                "plain processes see this machine's files: nothing can be mounted",
                where="--mount",
                next_step="name the path itself in the program's arguments",
            )
        hosts, facts = self._several(["127.0.0.1"] * self.request.nodes, iface="lo")
        shell = connect(Host("localhost", "localhost", local=True))
        port = survey.port_on(shell, self.request.run, self.request.port)
        return replace(self._planned(hosts, facts, port), image="")

    def _several(self, addresses: Sequence[str], iface: str) -> tuple[list[Host], dict[str, NodeFacts]]:
        """Return one host a node, all of them this machine, which share its GPUs out between them."""
        from orchestrate.inventory import Host
        from orchestrate.remote import connect

        shell = connect(Host("localhost", "localhost", local=True))
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}  # the usual way to say: not on GPUs
        gpus = () if hidden else survey.gpus(shell)
        share = len(gpus) // self.request.nodes
        if gpus and not share:
            raise UsageError(
                f"{self.request.nodes} nodes are asked for and this machine has {len(gpus)} GPUs",
                where="--nodes",
                next_step=f"use --nodes {len(gpus)} or fewer on this machine, or CUDA_VISIBLE_DEVICES= to train without GPUs",
            )
        hosts = [Host(f"node{k}", "localhost", local=True) for k in range(self.request.nodes)]
        facts = {
            host.name: planning.NodeFacts(address, iface, gpus[k * share : (k + 1) * share])
            for k, (host, address) in enumerate(zip(hosts, addresses, strict=True))
        }
        return hosts, facts

    def bring_image(self, view: View) -> None:
        """Bring the plan's image to every host that lacks it, and prove that all hold it."""
        if not self.plan.image_id:
            return
        engines = list(dict.fromkeys(self._engines.values()))
        lacking = images.missing(self.plan.image_id, engines)
        if lacking:
            view.phase("image", f"{self.plan.image} goes to {', '.join(e.where for e in lacking)}")
        images.bring(self.plan.image_id, self.plan.image, self._here, engines, view.moved)

    def manifest(self) -> dict[str, Any]:
        """Return what ran where, for whoever wants to run it again: versions, the image's labels, every host's engine."""
        versions = all_of(list(self._engines.values()), lambda one: one.version(), deadline_s=LOOK_S)
        hosts = {name: {"engine": version} for name, version in zip(self._engines, versions, strict=True)}
        image = next(iter(self._engines.values())).image_labels(self.plan.image_id) if self._engines else {}
        return {
            "schema": "muster.manifest/1",
            "run": self.plan.run,
            "started_s": round(time.time(), 3),
            "muster": metadata.version("muster"),
            "contract": VERSION,
            "python": platform.python_version() if not self._engines else None,
            "image": {"ref": self.plan.image, "id": self.plan.image_id, "labels": dict(image)},
            "hosts": hosts,
            "plan": planning.to_json(self.plan),
        }

    @cached_property
    def _here(self) -> Engine | None:
        """This machine's engine, None when it has none that answers."""
        if self.request.on == "local":
            return next(iter(self._engines.values()))
        from orchestrate import engine

        try:
            return self._hold(engine.local())
        except OperatorError:
            return None

    def backend(self, folder: RunFolder) -> Backend:
        """Return the backend that will run the plan."""
        if self.request.on == "process":
            from orchestrate.backends.process import Processes

            return Processes(self.plan, folder)
        from orchestrate import engine
        from orchestrate.backends.containers import on_hosts

        hosts = {h.name: h for h in self.request.hosts}

        def reopen(name: str) -> Engine:
            return engine.behind(self._shell(hosts[name])) if self.request.on == "ssh" else engine.local()

        return on_hosts(self.plan, self._engines, reopen)


def execute(prepared: Prepared, view: View, *, detach: bool = False) -> Outcome | None:
    """Run the prepared plan and return its outcome; None when it was detached.

    KeyboardInterrupt stops the run everywhere and yields the outcome `stopped`.
    """
    plan = prepared.plan
    folder = RunFolder(plan.run)
    folder.create(plan)
    folder.event("planned", hosts=[n.host for n in plan.nodes], world_size=plan.world_size)
    backend = prepared.backend(folder)
    try:
        backend.claim()
        prepared.bring_image(view)
        view.phase("place", f"{len(plan.nodes)} nodes: create all or none")
        backend.place()
        folder.event("placed")
        view.phase("start", f"torchrun, {plan.world_size} ranks, master {plan.master_address}:{plan.master_port}")
        try:
            folder.write("manifest.json", prepared.manifest())
        except (OSError, OperatorError) as error:  # a record that cannot be made never costs the run
            view.warn(f"no manifest.json: {error}")
        backend.start()
        folder.event("started")
        return None if detach else _attend(backend, plan, folder, view)
    except BaseException as error:
        _clear(backend, view)
        if not isinstance(error, (OperatorError, KeyboardInterrupt)):
            raise
        stopped = isinstance(error, KeyboardInterrupt)
        code = Exit.INTERRUPTED if isinstance(error, KeyboardInterrupt) else error.exit_code
        told = None if isinstance(error, KeyboardInterrupt) else error.as_json()
        outcome = Outcome(plan.run, "stopped" if stopped else "refused", int(code), error=told)
        record(folder, plan, outcome, view.warn)
        view.outcome(outcome, folder.path, backend.out_place())
        if not stopped:
            raise
        return outcome
    finally:
        backend.close()


def _attend(backend: Backend, plan: RunPlan, folder: RunFolder, view: View) -> Outcome:
    """Watch a started run to its end, take what it left, and clear the hosts."""
    watch = Watch(backend, plan, folder, on_line=view.line, on_progress=view.progress)
    watch.begin()
    stopped = False
    noticed: float | None = None
    try:
        noticed = watch.wait()
    except KeyboardInterrupt:
        stopped = True
        view.phase("stop", "interrupted: every node is stopped")
    if not stopped:
        watch.force()
    before, failed = watch.sightings(), watch.failed
    if any(not s.over for s in before):
        backend.stop(INTERRUPT_GRACE_S if stopped else STOP_GRACE_S)
    logs = watch.drain()
    outcome = derive(
        plan,
        _settled(backend, plan, before, failed),
        logs,
        stopped=stopped,
        detected_after_s=noticed,
        resumed_from_step=watch.resumed_from_step,
    )
    for host in watch.cut_short:
        view.warn(f"the output of {host} was not read to its end")
    if watch.lines_lost:
        view.warn(f"{watch.lines_lost} lines of output could not be kept in {folder.path / 'logs'}")
    try:
        _take(backend, folder, view)
    except KeyboardInterrupt:  # the verdict stands
        view.warn("interrupted: not all that the run wrote was fetched")
    _clear(backend, view)
    record(folder, plan, outcome, view.warn)
    view.outcome(outcome, folder.path, backend.out_place())
    return outcome


def _settled(backend: Backend, plan: RunPlan, before: Sequence[Sighting], failed: Collection[int]) -> list[Sighting]:
    """Return the sightings for the verdict: a node that was well until we stopped it counts as it stood before that."""
    after = attempt(plan.nodes, backend.look, deadline_s=LOOK_S)
    return [
        new if isinstance(new, Sighting) and new.over and not old.over and old.node in failed else old
        for old, new in zip(before, after, strict=True)
    ]


def _take(backend: Backend, folder: RunFolder, view: View) -> None:
    """Copy the metrics and the final weights here, where they are not here already."""
    for path in (METRICS_FILE, FINAL_WEIGHTS):
        try:
            backend.take(path, folder.path)
        except (OperatorError, OSError) as error:
            view.warn(f"{path} could not be fetched: {error}")
            return


def _clear(backend: Backend, view: View) -> None:
    for left in backend.remove():
        view.warn(f"not cleared: {left}")
