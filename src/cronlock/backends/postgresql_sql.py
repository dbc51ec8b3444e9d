"""What cronlock says to PostgreSQL: the two tables, and one statement for every decision.

Always clock_timestamp(): now() stands still inside a transaction. Never a SELECT before the write: it would decide on
what was true a moment ago. {table}, {runs} and {key} (the advisory lock's) are filled in by postgresql.py.
"""

from __future__ import annotations

# The runs first: whoever finds the first table of the two missing makes both, whoever finds the second has both.
DDL = (
    """create table if not exists {runs} (
    name text not null,
    seq bigint generated always as identity,  -- needs no right on a sequence, unlike serial
    run jsonb not null,
    primary key (name, seq)
)""",
    """create table if not exists {table} (
    name text primary key,                    -- prefix and NAME; hashtextextended(name, 0) is the advisory lock
    version int not null default 1,
    token text not null,                      -- who may renew and release
    expires timestamptz not null,             -- until then nobody else is let in
    held timestamptz,                         -- --min-hold
    granted timestamptz not null,
    fence bigint not null,
    run jsonb,                                -- the last grant; no outcome: nobody has seen its end
    before jsonb not null default '[]',       -- the runs since the last one that came to an end, and that one
    claims jsonb not null default '[]'        -- the last run of each of the last 100 period labels
)""",
)
GRANTS = (
    "grant usage on schema {schema} to ROLE; "
    "grant select, insert, update on {table} to ROLE; grant select, insert, delete on {runs} to ROLE"
)
OPEN = "alter table {table} disable row level security; alter table {runs} disable row level security"

# $1 name, $2 the backend pid libpq was told, $3 settings. A pooler hands out a pid of its own, and nothing that
# outlives the statement may stick to a server connection that the next client gets: hence "not direct" (is_local).
HEAD = """
with n as materialized (select clock_timestamp() as now, pg_backend_pid() = $2::int as direct),
s as materialized (select count(set_config(key, value, not n.direct)) from n, jsonb_each_text($3::jsonb)),"""
# $4 lock mode, $5 this session has the advisory lock already (it waited for it)
TRY = """
l as materialized (select n.*, case
        when pg_is_in_recovery() then null
        when direct and $4 <> 'lease' then case when $5::bool then true else pg_try_advisory_lock({key}) end
        when $4 in ('auto', 'lease') then pg_try_advisory_xact_lock({key})
    end as got from n, s)"""
# $6 token, $7 ttl, $8 min-hold, $9 run, $10 label, $11 retry_failed. `n.now` is read before the row's lock is waited
# for: an old now refuses or expires too early, never too late. The claim's rule is state.claim's.
CLAIM = "".join(
    (
        HEAD,
        TRY,
        """,
w as (
    insert into {table} as c (name, token, expires, held, granted, fence, run, claims)
    select $1, $6, now + $7::float8 * interval '1s', now + $8::float8 * interval '1s', now, f,
        r, case when $10 = '' then '[]' else jsonb_build_array(r) end
    from l, lateral (select (extract(epoch from now) * 1000000)::bigint as f) x,
        lateral (select $9::jsonb || jsonb_build_object('fence', f::text) as r) y
    where got
    on conflict (name) do update set
        token = excluded.token, expires = excluded.expires, held = excluded.held, granted = excluded.granted,
        fence = greatest(c.fence + 1, excluded.fence),
        run = excluded.run || jsonb_build_object('fence', greatest(c.fence + 1, excluded.fence)::text),
        before = case
            when c.run is null then c.before
            when c.run ? 'outcome' then jsonb_build_array(c.run)
            else c.before - case when jsonb_array_length(c.before) < 100 then 100 else 0 end || c.run end,
        claims = case when excluded.claims = '[]' then c.claims
            else coalesce((select jsonb_agg(e order by i) from (select e, i from jsonb_array_elements(c.claims) with ordinality a (e, i)
                    where e->>'label' <> $10 order by i desc limit 99) others), '[]')
                || (excluded.run || jsonb_build_object('fence', greatest(c.fence + 1, excluded.fence)::text)) end
    where c.version <= 1 and c.expires <= excluded.granted
        and not coalesce(c.held > excluded.granted and c.granted <= excluded.granted + interval '1s', false)
        and not exists (select from jsonb_array_elements(c.claims) e
            where e->>'label' = $10 and not ($11::bool and e->>'outcome' is distinct from 'ok'))
    returning c.fence, c.before
)
select l.got, l.direct, w.fence, w.before->-1, r.version, r.run, extract(epoch from r.expires - l.now),
    extract(epoch from r.held - l.now), had.e,
    case when l.got and w.fence is null and l.direct and $4 <> 'lease' then pg_advisory_unlock({key}) end
from l left join w on true left join {table} r on r.name = $1
    left join lateral (select e from jsonb_array_elements(r.claims) with ordinality as a (e, i)
        where e->>'label' = $10 order by i desc limit 1) had on true""",
    )
)
ADVISORY = "".join((HEAD, TRY, " select got, direct, (extract(epoch from now) * 1000000)::bigint from l"))
# $4 take the advisory lock again, $5 token, $6 ttl
KEEP = """
l as materialized (select case when $4::bool and direct then pg_try_advisory_lock({key}) end as got from n, s),
u as (update {table} c set expires = clock_timestamp() + $6::float8 * interval '1s'"""
# … and whose the row is, in case it is not mine any more
KEPT = " select l.got, u.ours, (select run from {table} where name = $1) from l left join u on true"
RENEW = "".join(
    (
        HEAD,
        KEEP,
        """
    where name = $1 and token = $5 and expires > clock_timestamp() returning true as ours)""",
        KEPT,
    )
)
# $7 the token this grant replaced, $8 run, $9 fence
# The run I replaced ($7) must be over: a lagging failover may bring back a row whose lease still stands.
REGAIN = "".join(
    (
        HEAD,
        KEEP,
        """, token = $5, run = $8::jsonb, fence = $9::bigint,
        claims = case when $8::jsonb ? 'label' and not claims @> jsonb_build_array(jsonb_build_object('token', $5))
            then claims || $8::jsonb else claims end
    where name = $1 and (token = $5 or token = $7 and expires <= clock_timestamp()) returning true as ours)""",
        KEPT,
    )
)
# The last grant's end, into the claims and the history, as parts of the statements below
_CLAIMS = """coalesce((select jsonb_agg(case when e->>'token' = $2 then $3::jsonb else e end order by i)
            from jsonb_array_elements(c.claims) with ordinality as a (e, i)), '[]')"""
_RECORD = """
h as (insert into {runs} (name, run) select $1, e from (
        select e || '{{"outcome": "vanished"}}' as e, i
        from u, jsonb_array_elements(u.before) with ordinality as a (e, i) where not e ? 'outcome'
        union all select $3::jsonb, 1000 from u) x order by i),
d as (delete from {runs} where name = $1 and exists(select from u)
    and seq <= (select seq from {runs} where name = $1 order by seq desc offset 99 limit 1))"""
# 'epoch': by no clock that is set back, nor by a standby's that is behind, does what is free seem to be held.
# $2 token, $3 run, $4 unlock. The unlock comes after the update: a waiter it wakes meets the row's lock until the commit.
RELEASE = "".join(
    (
        """
with u as (update {table} c set expires = 'epoch', run = $3::jsonb,
        claims = """,
        _CLAIMS,
        """
    where name = $1 and token = $2 and not run ? 'outcome' returning c.before),""",
        _RECORD,
        """
select x.n, (select token = $2 from {table} where name = $1), case when $4::bool then pg_advisory_unlock({key}) end
from (select count(*) as n from u) x""",
    )
)
# $2 the holder's token, $3 its run, ended; $4 and $5 the operator's. It expires when the holder's lease would have.
SEIZE = "".join(
    (
        """
with u as (update {table} c set token = $4, held = null, run = $5::jsonb, claims = """,
        _CLAIMS,
        """
    where name = $1 and token = $2 and expires > clock_timestamp() returning c.before),""",
        _RECORD,
        """
select count(*) from u""",
    )
)
ABANDON = """
with u as (update {table} c set expires = 'epoch', held = null, run = c.before->-1, before = c.before - -1,
        claims = coalesce((select jsonb_agg(e order by i)
            from jsonb_array_elements(c.claims) with ordinality as a (e, i) where e->>'token' <> $2), '[]')
    where name = $1 and run->>'token' = $2 returning 1)
select x.n, case when $3::bool then pg_advisory_unlock({key}) end from (select count(*) as n from u) x"""
UNLOCK = "select pg_advisory_unlock({key})"
# On its own before WAIT: the check of the client's connection is armed when a statement begins.
SET = "".join((HEAD, " l as materialized (select direct from n, s) select direct from l where $1::text is not null"))
WAIT = "select pg_advisory_lock({key})::text"
STATUS = """
select r.version, r.run, extract(epoch from r.expires - clock_timestamp()), extract(epoch from r.held), k.pid, k.application_name
from (select {key} as k) x left join (select * from {source} where name = $1) r on true
left join lateral (select a.pid, a.application_name from pg_locks o left join pg_stat_activity a using (pid)
    where o.locktype = 'advisory' and o.granted and o.objsubid = 1
        and o.database = (select oid from pg_database where datname = current_database())
        and o.classid::bigint = (x.k >> 32 & 4294967295) and o.objid::bigint = (x.k & 4294967295) limit 1) k on true"""
NO_TABLE = "(select null::text as name, 1 as version, null::jsonb as run, null::timestamptz as expires, null::timestamptz as held) none"
ROW = "select * from {table} where name = {name}"
NAMES = "select name from (select name from {table} union select name from {runs}) x where starts_with(name, $1) order by 1"
HISTORY = "select run from (select seq, run from {runs} where name = $1 order by seq desc limit 100) x order by seq"
