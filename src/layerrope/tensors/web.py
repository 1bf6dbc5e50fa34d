"""A folder on a web server as a place: no listing, every name a request."""

from __future__ import annotations

from urllib.parse import quote

from layerrope.errors import InputError
from layerrope.tensors.blobs import Blob, redacted
from layerrope.tensors.connections import origin_of
from layerrope.tensors.http import Client, HttpError, shown_url
from layerrope.tensors.places import Place
from layerrope.tensors.ranges import RemoteFile

#: Characters that an address may hold as they are; everything else is percent-encoded.
_KEEP = "%/:=&?~#+!$,;'@()*[]"


def tidy_url(text: str) -> str:
    """`text` as an address: spaces and letters beyond ASCII encoded. Raises InputError where it is none."""
    try:
        url = quote(text.strip(), safe=_KEEP)
    except UnicodeEncodeError:  # half a surrogate pair: bytes of the command line that are no text
        raise InputError(f"{redacted(text)} is not an address: check it") from None
    origin_of(url)
    return url


class WebFolder(Place):
    """The files below the address `base`, which ends in "/"."""

    def __init__(self, client: Client, base: str) -> None:
        self.client, self.base, self.label = client, base, shown_url(base)
        self._said: dict[str, HttpError] = {}

    def listing(self) -> None:
        return None

    def open(self, name: str) -> Blob | None:
        """The file, None where the server says that it is not there (404, 410; stores say 403; sites send a page)."""
        try:
            return RemoteFile(self.client, self.base + quote(name))
        except HttpError as error:
            if not error.absent:
                raise
            self._said[name] = error
            return None

    def absence(self, name: str, why: str) -> InputError:
        return InputError(f"{self._said[name]} ({why})") if name in self._said else super().absence(name, why)


def web_folder(client: Client, url: str) -> tuple[WebFolder, str]:
    """The folder that the file at `url` lies in, and its name there."""
    if "?" in url:
        raise InputError(f"{shown_url(url)} is a signed address: it tells nothing of the files beside it")
    base, _, name = url.rpartition("/")
    return WebFolder(client, base + "/"), name
