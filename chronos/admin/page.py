"""The page of the service: one HTML file, and the Content-Security-Policy that permits only its own script and style."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from chronos import __version__


@cache
def page() -> tuple[bytes, str]:
    """The HTML and its Content-Security-Policy: the page's own script and style by their hashes, requests to its own origin."""
    html = files("chronos.admin").joinpath("page.html").read_text("utf-8").replace("{{version}}", __version__)
    scripts, styles = (_hashes(html, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _hashes(html: str, tag: str) -> str:
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in bodies)
