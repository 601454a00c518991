"""The versions of agents that are files: which a run begins with, and the agent of the version that a run works by."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from mulligan.activities.agent_files.agent_file import DIGEST
from mulligan.activities.agent_files.build_agent import former_version
from mulligan.activities.agent_files.labels import is_version
from mulligan.activities.agent_files.served_files import FileVersion
from mulligan.activities.agent_files.version_store import VersionStore
from mulligan.activities.registry import Registry
from mulligan.activities.run_data.query_workflow import query_this_workflow
from mulligan.agent import Agent
from mulligan.client.content_store import ContentStore, MissingContentError
from mulligan.client.stored_files import StorageError
from mulligan.errors import InvalidRunInputError
from mulligan.schema.cut_text import beginning
from mulligan.wire.agent_version import CURRENT, LEAST_DIGITS, VERSION_QUERY, AgentVersion, VersionRequest
from mulligan.wire.run_context import RunContext

MOST_KEPT = 300
"""Versions in a worker's memory that it does not serve; those that were not used for the longest time go first."""


class AgentVersions:
    """The versions that runs of this worker work by."""

    def __init__(self, registry: Registry, contents: ContentStore | None = None) -> None:
        """`contents`: where versions are that runs have begun with."""
        self._registry, self._store = registry, VersionStore(contents)
        self._kept: OrderedDict[tuple[str, str], FileVersion] = OrderedDict()

    async def chosen(
        self, name: str, wanted: str | None, conversation: str
    ) -> tuple[Agent, AgentVersion | None] | None:
        """The agent by which a run begins, and its version, if it is a file; None: this worker does not serve it.

        Args:
            name: The agent's name.
            wanted: The version that the run's input asks for: a digest, a label or `current`; None: that of the
                conversation's label.
            conversation: The key of the conversation.

        Raises:
            InvalidRunInputError: there is no such version or label.
            StorageError: the content storage does not answer; or it does not have the labels of the agent, whose file is
                wrong, so that which version has been taken back is not known here. The activity is tried again, perhaps by
                another worker.
        """
        files, declared = self._registry.files, self._registry.declared.get(name)
        if declared is not None and wanted not in (None, CURRENT):
            raise InvalidRunInputError(
                f'"version" is {str(wanted)[:80]!r}, but the agent "{name}" is declared in Python, which has no version but '
                f'"{CURRENT}": leave it out.'
            )
        if declared is not None or name not in files.current:
            return None if declared is None else (declared, None)
        if name in files.unlabelled and not (wanted and is_version(wanted)):
            raise StorageError(
                f'The labels of the agent "{name}" are not known on this worker, as labels.toml was wrong when it started: '
                'see its warnings. Until it is repaired, runs begin that name a "version" by its digest, or "current".'
            )
        label = files.label_for(name, wanted, conversation)
        digits = label.version if label else wanted
        version = files.current[name] if digits is None else files.find(name, digits)
        if version is None and digits is not None and DIGEST.fullmatch(digits):
            version = await self._stored(name, digits)
        if version is None:
            raise InvalidRunInputError(self._unknown(name, wanted or digits or ""))
        self._check_whole(name, version)
        file = version.file
        pinned = AgentVersion(digest=file.digest, label=label.name if label else "", share=label.share if label else "")
        if self._store.is_there:
            await self._store.put(name, file.text)
        else:
            pinned.text = file.text
        return version.agent, pinned

    async def agent_of(self, name: str, version: AgentVersion, *, begins: bool = False) -> Agent | None:
        """The agent of a version that a run has pinned; None: it cannot be built here.

        Args:
            name: The agent's name.
            version: The version.
            begins: Whether a run begins with it: what the run pins is of what the agent has now.

        Raises:
            InvalidRunInputError: a run begins with it, but something that it names is not on this worker.
            MissingContentError: it is in a content storage that this worker does not have.
            StorageError: the content storage does not answer.
        """
        known = self._known(name, version.digest)
        if known is None and version.text is None:
            known = await self._stored(name, version.digest)
        elif known is None and version.text is not None:
            known = await self._built(name, version.text)
        if known is None and version.text is None:
            raise MissingContentError(
                f"The version {version.digest[:12]} of the agent {name!r} is not in this worker's content storage: set "
                "MULLIGAN_CONTENT_DIR, or MULLIGAN_EXTERNAL_STORAGE, as on the worker that has opened the run."
            )
        if known is not None and begins:
            self._check_whole(name, known)
        return known.agent if known is not None else None

    async def find(self, context: RunContext) -> Agent | None:
        """The agent of the version that a run works by; None: this worker cannot serve it.

        Where neither its memory nor the content storage has the version, the run's workflow is asked for it.

        Raises:
            RPCError: the workflow does not answer.
            StorageError: the content storage does not have the version, or does not answer.
        """
        name, digest = context.agent, context.version or ""
        known = self._known(name, digest) or await self._stored(name, digest)
        if known is not None:
            return known.agent
        request = VersionRequest(conversation=context.conversation, agent=name)
        return await self.agent_of(name, await query_this_workflow(VERSION_QUERY, request, AgentVersion))

    def _check_whole(self, name: str, version: FileVersion) -> None:
        """Check that a run can begin with a version.

        Raises:
            InvalidRunInputError: something that it names is not on this worker.
        """
        if version.missing:
            raise InvalidRunInputError(
                f'No run can begin with the version {version.file.digest[:12]} of the agent "{name}" on this worker: '
                f"{version.missing}."
            )

    def _known(self, name: str, digest: str) -> FileVersion | None:
        if (served := self._registry.files.find(name, digest)) is not None:
            return served
        if (kept := self._kept.get((name, digest))) is not None:
            self._kept.move_to_end((name, digest))
        return kept

    async def _stored(self, name: str, digest: str) -> FileVersion | None:
        text = await self._store.get(name, digest)
        return None if text is None else await self._built(name, text)

    async def _built(self, name: str, text: str) -> FileVersion | None:
        version = await asyncio.to_thread(former_version, name, text, self._registry.parts)
        if version is not None:
            self._kept[name, version.file.digest] = version
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return version

    def _unknown(self, name: str, wanted: str) -> str:
        labels = beginning(", ".join(each.name for each in self._registry.files.labels.get(name, ())), 300) or "none"
        hint = (
            "" if self._store.is_there else " Without a content storage, a worker knows the versions since its start."
        )
        return (
            f'"version" is {wanted[:80]!r}, which is no label of the agent "{name}" and no digest of a version of it, of '
            f"which {LEAST_DIGITS} digits or more are needed; its labels are: {labels}.{hint}"
        )
