"""The config file: names for backends, defaults, and what holds for one lock. Parsed, never executed.

[backends]
main = "postgresql://cron@db/cron?password_file=/etc/cronlock.password"

[defaults]
backend = "main"

[locks."nightly-report"]
ttl = "5m"
"""

from __future__ import annotations

import os
import stat

from cronlock.errors import ConfigError, PermissionDenied, UsageError
from cronlock.local import home
from cronlock.model import Value
from cronlock.options import OPTIONS, convert, from_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cronlock.options import Option

SYSTEM = "/etc/cronlock.toml"
TABLES = ("backends", "defaults", "locks")
DEFAULTS = {option.key: option.default for option in OPTIONS}
OPPOSITES = (("nonblock", "wait"), ("wait", "nonblock"), ("verbose", "quiet"), ("quiet", "verbose"))  # the nearer one wins
BY_NAME = {option.name: option for option in OPTIONS if option.name != "config"}


class Setting(Value):
    """A value as the file has it, and the file and table for whoever must mend it."""

    raw: Any
    source: str


class Config(Value):
    """What the files say, laid over one another. `locks` and `defaults` by option name."""

    backends: Mapping[str, Setting] = {}
    defaults: Mapping[str, Setting] = {}
    locks: Mapping[str, Mapping[str, Setting]] = {}


def settle(given: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Every option's value for the lock NAME, and where it comes from: what was given on the command line, else the
    environment, else the file's table of this lock, else its defaults, else what is built in; both by option key."""
    values = dict(DEFAULTS)
    sources = dict.fromkeys(values, "built in")
    set_here = from_environment(environ)
    config = load(given.get("config") or set_here.get("config"), environ)
    layers = [
        {BY_NAME[option].key: (_value(BY_NAME[option], setting, environ), setting.source) for option, setting in table.items()}
        for table in (config.defaults, config.locks.get(name, {}))
    ]
    for layer, source in ((set_here, "the environment"), (given, "the command line")):
        layers.append({key: (value, source) for key, value in layer.items()})
    for found in layers:
        for key, other in OPPOSITES:  # before its own: both in one place are a contradiction
            if found.get(key, (None,))[0]:
                values[other], sources[other] = DEFAULTS[other], "built in"
        for key, (value, source) in found.items():
            values[key], sources[key] = value, source
    values["backend"], sources["backend"] = _resolved(values["backend"], sources["backend"], config, environ)
    return values, sources


def load(path: str | None, environ: Mapping[str, str]) -> Config:
    """The file at `path`, which must be there; else the system's and over it the user's, where they exist.
    ConfigError for what is no config, PermissionDenied for one that can't be read or that others can read or change:
    to go on without it would be to take another lock than the other servers."""
    backends: dict[str, Setting] = {}
    defaults: dict[str, Setting] = {}
    locks: dict[str, dict[str, Setting]] = {}
    for one in (path,) if path else (SYSTEM, _of_user(environ)):
        tables = _read(one, needed=path is not None)
        backends |= {name: Setting(raw, f"{one} [backends]") for name, raw in tables.get("backends", {}).items()}
        defaults |= {key: Setting(raw, f"{one} [defaults]") for key, raw in tables.get("defaults", {}).items()}
        for name, table in tables.get("locks", {}).items():
            source = f'{one} [locks."{name}"]'
            locks[name] = locks.get(name, {}) | {key: Setting(raw, source) for key, raw in table.items()}
    return Config(backends, defaults, locks)


def has_password(url: str) -> bool:
    """Whether the URL itself carries one; `${VARIABLE}` does not count."""
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    given = [part.partition("=") for part in url.partition("?")[2].split("&")]
    words = [authority.partition(":")[2], *(value for key, _, value in given if key in ("password", "sslpassword", "ssl_password"))]
    return any(word and not word.startswith("${") for word in words)


def _of_user(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(home(environ), ".config")
    return os.path.join(base, "cronlock/config.toml")


def _read(path: str, *, needed: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        if needed:
            raise ConfigError(f"the config {path}: {error.strerror}") from None
        return {}
    except PermissionError:
        raise PermissionDenied(
            f"{path} can't be read by uid {os.geteuid()}: chgrp and chmod 640 it, or name another with --config"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the config {path}: {getattr(error, 'strerror', None) or error}") from None
    import tomllib  # a machine without a config does not pay for it

    try:
        tables = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    _check(tables, path)
    if mode & stat.S_IWOTH and stat.S_ISREG(mode):
        raise PermissionDenied(f"{path}: others on this host may change it: chmod o-w {path}")
    if mode & stat.S_IROTH and any(has_password(url) for url in _urls(tables)):
        raise PermissionDenied(f"{path}: others on this host may read the password in it: chmod o= {path}, or use ?password_file=")
    return tables


def _check(tables: Mapping[str, Any], path: str) -> None:
    """ConfigError for a key nobody knows, which would otherwise be a setting that silently does nothing."""
    for table, content in tables.items():
        _known(table, TABLES, f"{path}: table")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {table} is a table: write [{table}] and below it NAME = VALUE")
        if table == "defaults":
            for key in content:
                _known(key, BY_NAME, f"{path} [{table}]:")
    for name, url in tables.get("backends", {}).items():
        if not isinstance(url, str) or ":" not in url or ":" in name:
            raise ConfigError(f'{path} [backends]: {name} = … must be a name without colon and a URL, as in main = "redis://host/0"')
    for name, content in tables.get("locks", {}).items():
        if not isinstance(content, dict):
            raise ConfigError(f'{path} [locks]: {name} is a table: write [locks."{name}"] and below it OPTION = VALUE')
        for key in content:
            _known(key, BY_NAME, f'{path} [locks."{name}"]:')


def _known(key: str, known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    if key not in known:
        from difflib import get_close_matches

        near = get_close_matches(key.replace("_", "-"), known, 1)
        raise ConfigError(f"{where} {key!r} is unknown" + (f", did you mean {near[0]}?" if near else f" (known: {', '.join(known)})"))


def _urls(tables: Mapping[str, Any]) -> list[str]:
    options = [tables.get("defaults", {}), *tables.get("locks", {}).values()]
    urls = [*tables.get("backends", {}).values(), *(table.get("backend", "") for table in options)]
    return [url for url in urls if isinstance(url, str)]


def _value(option: Option, setting: Setting, environ: Mapping[str, str]) -> Any:
    raw = setting.raw
    where = f"{setting.source} {option.name}"
    if option.kind == "words":
        if not isinstance(raw, (str, list)) or not all(isinstance(one, str) for one in raw):
            raise ConfigError(f'{where}: a list of strings is wanted, as in ["a", "b"]')
        return tuple(_converted(option, one, where, environ) for one in ([raw] if isinstance(raw, str) else raw))
    if (isinstance(raw, bool) and option.kind != "flag") or not isinstance(raw, (str, int, float)):
        raise ConfigError(f"{where}: {raw!r} is no value for it: write it as on the command line, in quotes")
    return _converted(option, raw if isinstance(raw, str) else str(raw), where, environ)


def _converted(option: Option, text: str, where: str, environ: Mapping[str, str]) -> Any:
    try:
        return convert(option, expanded(text, where, environ), where)
    except UsageError as error:
        raise ConfigError(str(error)) from None


def expanded(text: str, where: str, environ: Mapping[str, str]) -> str:
    """`${VARIABLE}` from the environment: as it is when it is the whole text, percent-encoded inside of one (a URL)."""
    before, found, rest = text.partition("${")
    if not found:
        return text
    variable, closed, after = rest.partition("}")
    if not closed or variable not in environ:
        raise ConfigError(f"{where}: ${{{variable}}} is not set in the environment" if closed else f"{where}: ${{ without }}")
    if not before and not after:
        return environ[variable]
    from urllib.parse import quote

    return before + quote(environ[variable], safe="") + expanded(after, where, environ)


def _resolved(url: str, source: str, config: Config, environ: Mapping[str, str]) -> tuple[str, str]:
    """A name of [backends] becomes its URL. UsageError for one that is in no file."""
    if ":" in url:
        return url, source
    if url not in config.backends:
        if not config.backends:
            return url, source  # the registry says what a URL looks like
        raise UsageError(f"no backend {url!r} in the config's [backends], which has {', '.join(config.backends)}; or give a URL")
    setting = config.backends[url]
    return expanded(setting.raw, f"{setting.source} {url}", environ), f"{setting.source} {url}, named by {source}"
