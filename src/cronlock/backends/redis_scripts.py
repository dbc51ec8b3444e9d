"""What the server does for us in one piece. The only texts in Lua; `redis.py` says which keys and values they get.

A command inside a script is checked against the user's ACL and logged in ACL LOG like any other, hence
`redis.acl_check_cmd` (7.0; before, pcall and a line in the log) for whatever a minimal user may lack.
"""

from __future__ import annotations

# Every script: KEYS lock, state, … and ARGV token, …; the lock is mine if its value begins with "TOKEN ".
COMMON = """
local check = redis.acl_check_cmd or function() return true end
local function may(...) local known, yes = pcall(check, ...); return known and yes end -- not known: renamed away
local at = redis.call('GET', KEYS[1])
local mine = at and string.sub(at, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
local function tell(channel) if may('PUBLISH', channel, '1') then redis.pcall('PUBLISH', channel, '1') end end
"""
# Runs behind SET NX. The rule of state.claim(), which Python applies to the same text again: the two must agree.
# A state that nothing here can be read from is set aside; one that only Python finds broken, Python sets aside.
# `now` is the caller's clock where TIME is forbidden.
CLAIM = (
    COMMON
    + """
local token, run, label, retry, hold, keep, claimed, now, channel = unpack(ARGV)
if not mine then
  return {'busy', may('PTTL', KEYS[1]) and redis.call('PTTL', KEYS[1]) or -3, may('SUBSCRIBE', channel) and 1 or 0}
end
now, hold, run = tonumber(now), tonumber(hold), cjson.decode(run)
if may('TIME') then
  local t = redis.pcall('TIME')
  if t[1] then now = t[1] + t[2] / 1e6 end
end
local old = redis.call('GET', KEYS[2])
local s = {v = 1, fence = '0', held = 0, claims = {}}
local function readable()
  local t = cjson.decode(old)
  if t.v == 1 then
    assert(string.match(t.fence, '^%d+$') and type(t.held) == 'number' and type(t.hold) == 'number')
    for _, c in ipairs(t.claims) do assert(type(c) == 'table') end
  else
    assert(t.v > 1)
  end
  return t
end
local aside = 0
if old then
  local ok, t = pcall(readable)
  if ok then s = t else redis.call('SET', KEYS[3], old, 'PX', keep); aside = 1 end
end
local stamp = string.format('%.17g', now)
local function refused() redis.call('DEL', KEYS[1]); return {'refused', stamp, aside} end
if s.v > 1 then return refused() end
local last = type(s.run) == 'table' and s.run
if last and last.token == token then return {'granted', stamp, aside} end
for _, c in ipairs(s.claims) do
  if c.label == label and (retry ~= '1' or c.outcome == 'ok') then return refused() end
end
if last and now < s.held and s.held <= now + s.hold + 1 then return refused() end
run.fence = string.format('%.0f', math.max(tonumber(s.fence) + 1, math.floor(now * 1e6)))
local claims = s.claims
if label ~= '' then
  claims = {}
  for _, c in ipairs(s.claims) do if c.label ~= label then table.insert(claims, c) end end
  table.insert(claims, run)
end
while #claims > 100 do table.remove(claims, 1) end
s = {v = 1, fence = run.fence, held = hold > 0 and now + hold or 0, hold = hold, run = run, claims = claims}
redis.call('SET', KEYS[2], cjson.encode(s), 'PX', #claims > 0 and claimed or keep)
return {'granted', stamp, aside}
"""
)
RENEW = COMMON + "if mine then redis.call('PEXPIRE', KEYS[1], ARGV[2]); return {'held'} end return {'lost', at}"
REGAIN = (
    COMMON
    + """
local token, value, ttl, replaced, state, keep = unpack(ARGV)
local _, last = pcall(function() return cjson.decode(redis.call('GET', KEYS[2])).run.token end) -- or the reason why not
if (at and not mine) or (last ~= token and last ~= replaced) then return {'lost', at} end
redis.call('SET', KEYS[1], value, 'PX', ttl)
redis.call('SET', KEYS[2], state, 'PX', keep)
return {'held'}
"""
)
# First the lock, then the rest: trouble with the history keeps nobody waiting. The same text in the state
# already: this is a second attempt, the first one's answer was lost.
RELEASE = (
    COMMON
    + """
local token, rest, channel, keep, state = unpack(ARGV)
if not mine then return {redis.call('GET', KEYS[2]) == state and 'held' or 'lost', at} end
if tonumber(rest) > 0 then redis.call('PEXPIRE', KEYS[1], rest) else redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[2], state, 'PX', keep)
local kept = 0
if may('RPUSH', KEYS[3], state) and may('LTRIM', KEYS[3], 0, 1) then
  kept = redis.pcall('RPUSH', KEYS[3], unpack(ARGV, 6))
  redis.pcall('LTRIM', KEYS[3], -100, -1)
  redis.pcall('PEXPIRE', KEYS[3], keep)
end
tell(channel)
return {'held', type(kept) == 'table' and kept.err}
"""
)
# An attempt that was cut short: the lock goes, and the label it claimed is not used up (state.withdrawn).
DELETE = (
    COMMON
    + """
local token, channel, keep, claimed = unpack(ARGV)
if not mine then return {'held'} end
pcall(function()
  local s, others = cjson.decode(redis.call('GET', KEYS[2])), {}
  if s.run.token ~= token then return end
  for _, c in ipairs(s.claims) do if c.token ~= token then table.insert(others, c) end end
  s.run.outcome, s.held, s.claims = 'interrupted', 0, others
  redis.call('SET', KEYS[2], cjson.encode(s), 'PX', #others > 0 and claimed or keep)
end)
redis.call('DEL', KEYS[1])
tell(channel)
return {'held'}
"""
)
