"""`mulligan worker --agents DIR`: the agents of a folder are served as its files are now, without a restart.

What is wrong is said, and the version before stays in service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from mulligan.activities.agent_files.agent_file import AgentFile, digest_of, parse_agent_file
from mulligan.activities.agent_files.build_agent import build_agent, check_endpoints_of, former_version
from mulligan.activities.agent_files.labels import LABELS_FILE, MOST_LABELS_BYTES, Label, parse_labels
from mulligan.activities.agent_files.served_files import FileVersion, ServedFiles
from mulligan.activities.agent_files.version_store import VersionStore
from mulligan.activities.registry import Registry
from mulligan.client.content_store import configured_content_store
from mulligan.client.settings import settings
from mulligan.client.stored_files import StorageError
from mulligan.errors import DeclarationError
from mulligan.extras import require_extra
from mulligan.schema.cut_text import beginning
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.yaml_fields import FileFault
from mulligan.worker.all_endpoints import all_endpoints
from mulligan.worker.read_agent_folder import SUFFIX, AgentFolderContents, Look, look_at, read_agent_folder

MOST_FORMER = 300
"""Versions that this process has served before, and that it knows without the content storage."""
SECONDS_TO_SETTLE, SECONDS_BETWEEN_LOOKS = 0.25, 1.0
"""For how long nothing may change before the files are read: one that is being written is not. And how often they are
looked at, as file systems of other machines report no changes, nor does a folder that was put in the place of another."""
SECONDS_BETWEEN_TRIES = 10.0
"""Until what was wrong is tried again: another worker may have stored a version meanwhile."""
SECONDS_OF_USE = 3_600.0
"""How often the versions that are served are stored again, so that jobs that delete old content keep them."""

_NOT_KNOWN = "are not known, so that its runs begin with a version that they name alone."


class AgentFolder:
    """The agents of a folder, for one registry.

    Attributes:
        path: The folder.
        problems: What is wrong now: a sentence each, with the file and the line.
    """

    def __init__(
        self, path: Path, registry: Registry, endpoints: Container[str], say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`endpoints`: those that models may name. `say`: prints what is wrong, and what is served.

        Raises:
            DeclarationError: there is no such folder, or the extra that it needs is not installed.
        """
        require_extra("agents", f"The folder of agents {path}")
        if not path.is_dir():
            raise DeclarationError(f"The folder of agents {path} is not there; create it, or name another one.")
        self.path, self.problems = path, list[str]()
        self.elsewhere: Mapping[str, str] = {}
        """The versions of agents that are known to be served by other programs, by the agents' names."""
        self.store = VersionStore(configured_content_store())
        self._registry, self._endpoints, self._say = registry, endpoints, say
        self._seen: Look | None = None
        self._loaded_at = self._stored_at = 0.0
        self._stored = ServedFiles()
        self._faults: dict[str, tuple[str, FileFault]] = {}
        self._has_warned = False

    @property
    def served(self) -> list[str]:
        """The names of the agents that are files and are served."""
        return list(self._registry.files.current)

    @property
    def labels(self) -> Mapping[str, Sequence[Label]]:
        """The labels of each agent that has some."""
        return {name: labels for name, labels in self._registry.files.labels.items() if labels}

    @property
    def warning(self) -> str:
        """What goes well now and not after a restart; "": nothing."""
        if self.store.is_there or not self.labels:
            return ""
        return (
            f"{self.path / LABELS_FILE}: labels name versions, and after a restart a worker without a content storage has "
            "only those that are in the files: set MULLIGAN_CONTENT_DIR, or MULLIGAN_EXTERNAL_STORAGE."
        )

    async def load(self) -> None:
        """Read the folder, and serve what is right in it."""
        problems = list[str]()
        self._loaded_at = time.monotonic()
        try:
            seen = await asyncio.to_thread(look_at, self.path)
            contents = await asyncio.to_thread(read_agent_folder, self.path)
            if await asyncio.to_thread(look_at, self.path) != seen and self._seen is not None:
                return  # it changes just now
            files = await self._served(contents, problems)
            self._tell_changes(files)
            self._registry.serve_files(files)
            self._seen = seen
            if self.warning and not self._has_warned:
                self._say(f"warning: {self.warning}")
            self._has_warned = bool(self.warning)
            await self._store()
        except FileFault as fault:
            problems.append(f"{self.path}: {fault.text}. The agents are served as before.")
        except OSError as error:
            problems.append(
                f"{self.path}: the folder cannot be read: {error.strerror}. Its agents are served as before."
            )
        except StorageError as error:
            problems.append(f"{self.path}: the versions are not in the content storage: {error}")
        for problem in problems:
            if problem not in self.problems:
                self._say(f"warning: {problem}")
        if self.problems and not problems:
            self._say(f"{self.path}: nothing is wrong any more.")
        self.problems = problems

    async def versions(self) -> list[dict[str, Any]]:
        """The versions of each agent: `agent`, `version`, `served` (whether the file has it now), `since` (when it began to
        be served the last time, where the content storage knows it), and `labels`, each with its `share`. The newest first.

        Raises:
            StorageError: the content storage does not answer.
        """
        files, rows = self._registry.files, list[dict[str, Any]]()
        for name, current in sorted(files.current.items()):
            since = {each.digest: each.since for each in await self.store.listed(name)}
            labelled = [digest for agent, digest in files.labelled if agent == name]
            for digest in dict.fromkeys([current.file.digest, *reversed(since), *labelled]):
                labels = [each.listed for each in files.labels.get(name, ()) if digest.startswith(each.version)]
                row = {"agent": name, "version": digest, "served": digest == current.file.digest}
                row |= {"since": since[digest]} if digest in since else {}
                rows.append({**row, "labels": [{**each, "version": digest} for each in labels]})
        return rows

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Serve each change of the folder while the block runs."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> NoReturn:
        from watchfiles import awatch

        while True:
            try:
                number = await asyncio.to_thread(lambda: self.path.stat().st_ino)
                async for _ in awatch(
                    self.path, recursive=False, debounce=100, yield_on_timeout=True,
                    rust_timeout=round(SECONDS_BETWEEN_LOOKS * 1000),
                ):  # fmt: skip
                    await self._look()
                    if await asyncio.to_thread(lambda: self.path.stat().st_ino) != number:
                        break  # another folder is in its place
            except OSError:  # there is no folder
                await self._look()
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            except Exception as error:  # noqa: BLE001 - whatever it is, the agents are served as before
                self.problems = [
                    f"{self.path}: {type_name(error)}: {error_text(error)}. The agents are served as before."
                ]
                self._say(f"warning: {self.problems[0]}")
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    async def _look(self) -> None:
        """Load the folder if it has changed, and is not being changed; or if something was wrong a while ago."""
        seen: Look | None
        try:
            seen = await asyncio.to_thread(look_at, self.path)
            if seen != self._seen:
                await asyncio.sleep(SECONDS_TO_SETTLE)
                if await asyncio.to_thread(look_at, self.path) != seen:
                    return
        except OSError:
            seen = None
        passed = time.monotonic() - self._loaded_at
        if seen != self._seen or (self.problems and passed > SECONDS_BETWEEN_TRIES):
            await self.load()
        elif time.monotonic() - self._stored_at > SECONDS_OF_USE:
            self._stored = ServedFiles()
            await self.load()

    async def _served(self, contents: AgentFolderContents, problems: list[str]) -> ServedFiles:
        """What is served from now on. `problems` gets what is wrong."""
        before = self._registry.files
        self._faults = {name: each for name, each in self._faults.items() if name in contents.files}
        current: dict[str, FileVersion] = {}
        for name in sorted(contents.names):
            fault = contents.faults.get(f"{name}{SUFFIX}")
            version = None
            try:
                if fault is not None:
                    raise fault
                version = await asyncio.to_thread(self._version, name, contents)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other agents are served
                fault = (
                    error if isinstance(error, FileFault) else FileFault(1, f"{type_name(error)}: {error_text(error)}")
                )
                if name not in self._registry.declared:
                    version = before.current.get(name) or await self._last_served(name, contents)
                problems.append(self._problem(f"{name}{SUFFIX}", fault, name, version))
            if version is not None:
                current[name] = version
        gone = {(name, each.file.digest): each for name, each in before.current.items()}
        former = {**before.former, **gone}
        former = dict(list(former.items())[-MOST_FORMER:])
        return await self._labelled(contents, replace(before, current=current, former=former), problems)

    def _version(self, name: str, contents: AgentFolderContents) -> FileVersion:
        """The version of an agent that its file has now.

        Raises:
            FileFault: the file is wrong.
        """
        if name in self._registry.declared:
            raise FileFault(1, f"a loaded module declares an agent {name!r} too, which is served; rename the file")
        data = contents.files[name]
        known = self._registry.files.find(name, digest_of(data))
        if known is None or known.missing:
            file = self._parsed(name, data)
            known = FileVersion(file, build_agent(file, self._registry.parts, str(self.path / f"{name}{SUFFIX}")))
        self._check_names(known, contents)
        return known

    def _parsed(self, name: str, data: bytes) -> AgentFile:
        """An agent's file. What is wrong is looked at every few seconds: these bytes are parsed once.

        Raises:
            FileFault: the file is wrong.
        """
        digest, fault = self._faults.get(name, ("", None))
        if fault is not None and digest == digest_of(data):
            raise FileFault(fault.line, fault.text)
        try:
            return parse_agent_file(name, data)
        except FileFault as wrong:
            self._faults[name] = digest_of(data), wrong
            raise

    def _check_names(self, version: FileVersion, contents: AgentFolderContents) -> None:
        """Check that a run can begin with a version: that all of what its file names is here.

        Raises:
            FileFault: something is not.
        """
        file, agent = version.file, version.agent
        if version.missing:
            raise FileFault(1, version.missing)
        check_endpoints_of(file, agent, self._endpoints)
        for target in agent.handoff_names:
            if target not in self._registry.declared and target not in contents.names:
                text = f"handoffs names {target[:80]!r}, but there is no agent of that name"
                raise FileFault(file.line_of(text), text)

    async def _last_served(self, name: str, contents: AgentFolderContents) -> FileVersion | None:
        """The version that workers served last before this process began, of those with which a run can begin here."""
        with suppress(StorageError):
            for listed in (await self.store.listed(name))[::-1]:
                if listed.digest == digest_of(contents.files.get(name, b"")):
                    continue  # it is the one with the fault
                with suppress(FileFault):
                    if (version := await self._read_version(name, listed.digest)) is not None:
                        self._check_names(version, contents)
                        return version
        return None

    async def _read_version(self, name: str, digest: str) -> FileVersion | None:
        text = await self.store.get(name, digest)
        return None if text is None else await asyncio.to_thread(former_version, name, text, self._registry.parts)

    async def _labelled(self, contents: AgentFolderContents, files: ServedFiles, problems: list[str]) -> ServedFiles:
        """Add the labels and their versions. Where the file of labels is wrong, those before stay."""
        files = await self._with_stored_labels(files, contents)
        fault = contents.faults.get(LABELS_FILE)
        text = (contents.labels or b"").decode("utf-8-sig", errors="replace")
        try:
            if fault is not None:
                raise fault
            if len(text) > MOST_LABELS_BYTES:
                raise FileFault(1, f"the file is larger than {MOST_LABELS_BYTES:,} bytes")
            wanted = await asyncio.to_thread(parse_labels, text)
        except FileFault as wrong:
            # What cannot be read may name any agent.
            unlabelled = sorted(name for name in files.current.keys() - files.labels if fault is wrong or name in text)
            names = beginning(", ".join(unlabelled), 300)
            rest = f"The labels of {names} {_NOT_KNOWN} Others stay" if names else "The labels stay"
            problems.append(f"{self.path / LABELS_FILE}, line {wrong.line}: {wrong.text}. {rest} as they were.")
            return replace(files, unlabelled=unlabelled)
        labels, labelled = dict[str, Sequence[Label]](dict.fromkeys(files.current, ())), dict(files.labelled)
        unlabelled = []
        for name, of_agent in wanted.items():
            try:
                if name not in files.current:
                    raise FileFault(of_agent[0].line if of_agent else 1, f"no file {name[:80]}{SUFFIX} is served")
                for label in of_agent:
                    version = await self._version_of_label(name, label, files, contents)
                    labelled[name, version.file.digest] = version
                labels[name] = of_agent
            except FileFault as wrong:
                labels.pop(name, None)
                if name in files.labels:
                    labels[name] = files.labels[name]
                else:
                    unlabelled.append(name)
                rest = "stay as they were." if name in labels else _NOT_KNOWN
                problems.append(
                    f"{self.path / LABELS_FILE}, line {wrong.line}: {wrong.text}. The labels of {name[:80]!r} {rest}"
                )
        named = {
            key: each
            for key, each in labelled.items()
            if any(key[1].startswith(label.version) for label in labels.get(key[0], ()))
        }
        return replace(files, labels=labels, labelled=named, unlabelled=unlabelled)

    async def _with_stored_labels(self, files: ServedFiles, contents: AgentFolderContents) -> ServedFiles:
        """Add the labels that were right last before this process began, of agents whose labels it does not know."""
        labels, labelled = dict(files.labels), dict(files.labelled)
        for name in files.current.keys() - files.labels:
            with suppress(StorageError, FileFault):
                if (of_agent := await self.store.labels(name)) is not None:
                    versions = [await self._version_of_label(name, label, files, contents) for label in of_agent]
                    labels[name] = of_agent
                    labelled |= {(name, each.file.digest): each for each in versions}
                    self._stored = replace(self._stored, labels={**self._stored.labels, name: of_agent})
        return replace(files, labels=labels, labelled=labelled)

    async def _version_of_label(
        self, name: str, label: Label, files: ServedFiles, contents: AgentFolderContents
    ) -> FileVersion:
        """The version that a label names.

        Raises:
            FileFault: it is not known, or no run can begin with it here.
        """
        if (version := files.find(name, label.version)) is not None:
            return version
        try:
            listed = [each.digest for each in await self.store.listed(name)]
            known = [digest for digest in listed if digest.startswith(label.version)]
            stored = await self._read_version(name, known[0]) if len(known) == 1 else None
        except StorageError as error:
            raise FileFault(label.line, str(error).rstrip(".")) from None
        if stored is None:
            hint = "" if self.store.is_there else ": set MULLIGAN_CONTENT_DIR, so that workers have former versions"
            raise FileFault(label.line, f"{label.name!r} of {name!r}: no version {label.version[:12]!r} is known{hint}")
        try:
            self._check_names(stored, contents)
        except FileFault as fault:
            text = f"{label.name!r} of {name!r}: the version {label.version[:12]} cannot be served: {fault.text}"
            raise FileFault(label.line, text) from None
        return stored

    async def _store(self) -> None:
        """Store the versions that are served from now on, if they are not stored yet.

        Raises:
            StorageError: that fails.
        """
        files, stored = self._registry.files, self._stored
        for name, version in files.current.items():
            if not _is_same(stored.current.get(name), version):
                await self.store.serve(name, version.file.text, version.file.digest)
        for key, version in files.labelled.items():
            if key not in stored.labelled:
                await self.store.put(key[0], version.file.text)
        for name, labels in files.labels.items():
            if name not in stored.labels or [*labels] != [*stored.labels[name]]:
                await self.store.put_labels(name, labels)
        self._stored, self._stored_at = files, time.monotonic()

    def _tell_changes(self, files: ServedFiles) -> None:
        before = self._registry.files.current
        for name, version in files.current.items() if self._seen is not None else ():
            if not _is_same(before.get(name), version):
                self._say(f"The agent {name!r} is served in the version {version.file.digest[:12]}.")
        for name in before.keys() - files.current.keys():
            self._say(f"The agent {name!r} is no longer served: its file is gone.")

    def _problem(self, file: str, fault: FileFault, name: str, version: FileVersion | None) -> str:
        if name in self._registry.declared:
            rest = ""
        elif version is None:
            digest = self.elsewhere.get(name)
            rest = f" Workers serve the version {digest[:12]}." if digest else f" The agent {name!r} is not served."
        else:
            rest = f" The version before ({version.file.digest[:12]}) is served."
        return f"{self.path / file}, line {fault.line}: {fault.text}.{rest}"


def _is_same(version: FileVersion | None, other: FileVersion) -> bool:
    return version is not None and version.file.digest == other.file.digest


def agent_folder(
    path: str | None, registry: Registry, say: Callable[[str], None] = lambda _: None
) -> AgentFolder | None:
    """The folder of agents that an option names, or the setting; None if neither does.

    Raises:
        DeclarationError: there is no such folder, or the extra that it needs is not installed.
    """
    chosen = settings()
    named = path or chosen.agents
    if not named:
        return None
    return AgentFolder(Path(named).absolute(), registry, all_endpoints(registry, chosen.endpoints), say)


def names_in_folder(path: str | None) -> list[str]:
    """The names of the agents that the folder has files of, right or wrong; none without a folder."""
    named = path or settings().agents
    try:
        return [name.removesuffix(SUFFIX) for name in look_at(Path(named)) if name.endswith(SUFFIX)] if named else []
    except OSError:
        return []
