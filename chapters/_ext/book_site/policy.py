"""The content security policy of each page: the site's own scripts run there, and no other host is asked.

The theme writes scripts into its pages, which the policy names by their digests. Python in a page
runs in a worker that inherits the policy, so code that came with a link reaches no other host, either.
"""

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

# A page from disk has no origin in Firefox, where 'self' means none of the files beside it. A page
# from a server may load no file from disk, whatever its policy says.
SITE = "'self' file:"
POLICY = {
    "default-src": SITE,
    # Pyodide is WebAssembly; the theme's buttons have handlers in their attributes.
    "script-src": f"{SITE} 'wasm-unsafe-eval' 'unsafe-hashes'",
    "style-src": f"{SITE} 'unsafe-inline'",
    "img-src": f"{SITE} data:",
    "worker-src": "blob:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": SITE,
}
NO_PAGES = ("_static", "_downloads")
AFTER_ALL = 900  # extensions that write pages have at most 500

CHARSET = re.compile(r'<meta charset="utf-8" ?/?>')
EARLIER = re.compile(r'\n<meta http-equiv="Content-Security-Policy" content="[^"]*">')
# Other scripts are files, or data.
SCRIPT = re.compile(r"<script(?![^>]* (?:src|type)=)[^>]*>(.*?)</script>", re.DOTALL)
HANDLER = re.compile(r'<\w[^<>]* on[a-z]+="([^"]*)"')


def write(app: Any, failure: Exception | None) -> None:
    """Put its policy into the head of each page of the site."""
    if failure is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    paths = [it for it in site.rglob("*.html") if it.relative_to(site).parts[0] not in NO_PAGES]
    pages = {path: path.read_text(encoding="utf8") for path in paths}
    # The search parses other pages, with their handlers, to quote them.
    handlers = {unescape(it) for page in pages.values() for it in HANDLER.findall(page)}
    for path, page in pages.items():
        path.write_text(guarded(page, handlers), encoding="utf8")


def guarded(page: str, handlers: set[str]) -> str:
    """Return a page with its policy, before all that the policy is for.

    >>> page = '<head><meta charset="utf-8"><script>alert()</script></head>'
    >>> guarded(page, {"print()"}).count("'sha256-")
    2
    """
    page = EARLIER.sub("", page)
    digests = [digest(script) for script in (*SCRIPT.findall(page), *sorted(handlers))]
    scripts = " ".join(dict.fromkeys([POLICY["script-src"], *digests]))
    allowed = POLICY | {"script-src": scripts}
    policy = "; ".join(f"{name} {sources}" for name, sources in allowed.items())
    tag = f'\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return CHARSET.sub(lambda found: found[0] + tag, page, count=1)


def digest(script: str) -> str:
    """Return the source that allows one script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
