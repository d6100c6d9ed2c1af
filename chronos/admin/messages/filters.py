"""The saved filters of the console: links to its lists that the configuration names."""

from typing import Any, cast
from urllib.parse import parse_qsl

from chronos.admin.http.context import Call, Context
from chronos.admin.http.schemas import SavedFilter, SavedFilters
from chronos.core.reach import Reach


class Filters:
    """The handler of `/v1/filters`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def filters(self, call: Call) -> tuple[int, object]:
        """The filters, without those that name a target of others."""
        found = []
        for name, text in self._context.node.config.admin.filters.items():
            view, _, query = text.partition("?")
            if _is_own(query, call.sender.reach):
                found.append(SavedFilter(name=name, view=cast(Any, view), query=query))
        return 200, SavedFilters(filters=found)


def _is_own(query: str, reach: Reach) -> bool:
    return all(reach.admits_target(value) for name, value in parse_qsl(query) if name == "target")
