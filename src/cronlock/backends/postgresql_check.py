"""What `cronlockctl check` asks a PostgreSQL server, beyond whether it answers (a standby does not get so far)."""

from __future__ import annotations

from cronlock import clock
from cronlock.backends import checks
from cronlock.backends import postgresql_sql as sql
from cronlock.model import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cronlock.backends.postgresql_session import Session

ASK = """
select extract(epoch from clock_timestamp()), current_setting('server_version'),
    current_setting('tcp_keepalives_idle'), current_setting('tcp_user_timeout', true), inet_client_addr() is null,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int,
    (select sum(numbackends) from pg_stat_database),  -- in pg_stat_activity an ordinary role can't tell clients of other roles
    current_setting('fsync'), current_setting('synchronous_commit'),
    (select count(*) from pg_stat_replication), current_setting('synchronous_standby_names') <> '',
    to_regclass('{table}') is not null and to_regclass('{runs}') is not null,
    has_schema_privilege(split_part(replace('{table}', '"', ''), '.', 1), 'create'), current_setting('default_transaction_read_only')"""
RIGHTS = """
select has_table_privilege('{table}', 'select') and has_table_privilege('{table}', 'insert') and has_table_privilege('{table}', 'update')
    and has_table_privilege('{runs}', 'select') and has_table_privilege('{runs}', 'insert') and has_table_privilege('{runs}', 'delete')"""


def findings(session: Session, filled: Mapping[str, str], ddl: str, until: float, *, direct: bool) -> Iterator[Finding]:
    asked = clock.wall()
    rows = session.ask(ASK.format(**filled), (), until)
    middle = (asked + clock.wall()) / 2
    now, version, idle, user_timeout, local, most, used, fsync, commit, replicas, synchronous, there, may, mute = rows[0]
    if mute == "on":
        text = f"PostgreSQL {version}, with default_transaction_read_only=on: it would write no lock"
        yield Finding("trouble", "server", text, "see whether its disk is full; else alter role, database or system … reset")
    else:
        yield Finding("ok", "server", f"PostgreSQL {version}, a primary")  # a standby is refused with the connection
    yield checks.clock(float(now or 0) - middle)
    if direct:
        yield Finding("ok", "pooler", "none: the session is ours, and waiters are woken at once")
    else:
        text = "a pooler stands in between: lock_mode=lease, and waiters look every 200 ms"
        yield Finding("warning", "pooler", text, "connect past it, where connections suffice")
    if local == "t":
        yield Finding("ok", "keepalives", "not needed on a Unix socket")
    elif direct and (idle != "10" or user_timeout not in (None, "20000")):
        text = f"idle {idle} s, tcp_user_timeout {user_timeout} ms: not as asked for"
        yield Finding("warning", "keepalives", text, "see what the server's system allows")
    else:
        yield Finding("ok", "keepalives", "a dead peer is noticed within 20 s" if direct else "the pooler's; see its tcp_keepalive")
    remedy = "raise max_connections, or ?lock_mode=lease, which holds none while a command runs"
    yield checks.connections(int(most or 0) - int(used or 0), int(most or 0), remedy)
    if fsync != "on" or commit == "off":
        text = f"fsync={fsync}, synchronous_commit={commit}: a crash of the server may forget the last grants"
        yield Finding("warning", "durability", text, "fsync=on, synchronous_commit=on")
    elif int(replicas or 0) and synchronous != "t":
        text = f"{replicas} asynchronous standbys: a failover may forget the last grants"
        yield Finding("warning", "durability", text, "synchronous_standby_names, or fencing tokens (docs/guarantees.md)")
    else:
        yield Finding("ok", "durability", "what was granted is on disk")
    if there != "t":
        if may == "t":
            yield Finding("ok", "table", "is not there yet; the first run makes it")
        else:
            yield Finding("trouble", "table", "is missing, and this role may not make it", f"have its owner run: {ddl}")
        return
    rights = session.ask(RIGHTS.format(**filled), (), until)[0][0] == "t"
    remedy = "" if rights else sql.GRANTS.format(**filled)
    yield Finding("ok" if rights else "trouble", "rights", "may read and write the tables" if rights else "are missing", remedy)
