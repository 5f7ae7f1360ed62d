-- The records that nodes share: the version that was changed last counts.
--
-- KEYS     1 records: a hash of field -> changed (16 digits) and the sealed record; `version` and `history` are fields too
--          2 changes: a sorted set of fields, by the version at which they were changed; the history has version 0
--          3 expiry: a sorted set of fields, by the time (us) from which they are of no use; the history is always of use
--          4 mark: the number of the caller's last call that changed its mark, a space and the history
-- ARGV     1 operation: push | pull
--          2 the time to live of the records, and 3 that of the mark, in seconds
--          4 the number of this call: larger than that of every earlier call of the caller
--          5 the mark that the caller knows; 0 if it knows nothing of these records
--          push   then for each record: field, changed (16 digits), expiry (us, "" for never), sealed record
--          pull   6 the version that the caller knows, 7 the most records to return
-- Reply    nothing if this server lacks the mark that the caller knows: then it has lost what the caller has pushed or
--          pulled, and nothing has happened. Otherwise the mark, this server's time (us), then
--          push   the number of records that were newer than the stored ones
--          pull   the version, the version up to which this page reaches, then field and value of each record
--
-- A version orders changes only within one history. After a restart from an older snapshot, or a failover to a replica that
-- was behind, the same versions are given to other changes. So each push, and each pull that a caller learns something from,
-- leaves a mark: a caller whose mark is gone may not use its version.
--
-- A history has a name, which is in all keys. If one of the first three is lost, by an eviction for example, they no longer
-- agree: a new history begins, without records and with no valid mark, so every caller pushes what it knows.

local records, changes, expiry, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl, known_mark = tonumber(ARGV[2]), tonumber(ARGV[5])
local REMOVALS = 1000

-- A key of another type is as good as lost.
local function may_use(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end

local history = may_use(records, 'hash') and may_use(changes, 'zset') and may_use(expiry, 'zset')
  and redis.call('HGET', records, 'history')
local is_complete = history and redis.call('ZSCORE', changes, history) and redis.call('ZSCORE', expiry, history)
local stored_mark = 0
if is_complete and may_use(mark, 'string') then
  local number, name = string.match(redis.call('GET', mark) or '', '^(%d+) (.*)$')
  stored_mark = name == history and tonumber(number) or 0
end
if stored_mark < known_mark then
  return {}
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if not is_complete then
  history = string.format('history:%.0f:', now) .. mark
  redis.call('DEL', records, changes, expiry)
  redis.call('HSET', records, 'history', history)
  redis.call('ZADD', changes, 0, history)
  redis.call('ZADD', expiry, '+inf', history)
end
local version = tonumber(redis.call('HGET', records, 'version') or '0')

-- A call that runs late, after its caller has made others, changes nothing.
local function set_mark()
  stored_mark = math.max(stored_mark, tonumber(ARGV[4]))
  redis.call('SET', mark, string.format('%.0f ', stored_mark) .. history, 'EX', ARGV[3])
end

local function keep_alive()
  redis.call('EXPIRE', records, ttl)
  redis.call('EXPIRE', changes, ttl)
  redis.call('EXPIRE', expiry, ttl)
end

-- Every call removes more records than a call can add, so expired ones do not accumulate.
local function remove_expired()
  local till = string.format('%.0f', now)
  for _, field in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', till, 'LIMIT', 0, REMOVALS)) do
    redis.call('HDEL', records, field)
    redis.call('ZREM', changes, field)
    redis.call('ZREM', expiry, field)
  end
end

remove_expired()
if ARGV[1] == 'push' then
  local accepted = 0
  for at = 6, #ARGV, 4 do
    local field, changed, till, sealed = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local stored = redis.call('HGET', records, field)
    local accepts
    if stored then
      accepts = tonumber(string.sub(stored, 1, 16)) < tonumber(changed)
    else
      -- An expired record is of use only if it replaces another.
      accepts = till == '' or tonumber(till) > now
    end
    if accepts then
      accepted = accepted + 1
      version = version + 1
      redis.call('HSET', records, field, changed .. sealed)
      redis.call('ZADD', changes, version, field)
      if till == '' then
        redis.call('ZREM', expiry, field)
      else
        redis.call('ZADD', expiry, till, field)
      end
    end
  end
  redis.call('HSET', records, 'version', string.format('%.0f', version))
  keep_alive()
  set_mark()
  return { stored_mark, now, accepted }
end

if redis.call('TTL', records) < ttl / 2 then
  keep_alive()
end
local known = known_mark == 0 and 0 or tonumber(ARGV[6])
local page = redis.call(
  'ZRANGEBYSCORE', changes, '(' .. string.format('%.0f', known), '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[7])
local reached = version
if #page / 2 == tonumber(ARGV[7]) then
  reached = tonumber(page[#page])
end
if reached ~= known or known_mark == 0 then
  set_mark()
end
local reply = { stored_mark, now, version, reached }
for at = 1, #page, 2 do
  local value = redis.call('HGET', records, page[at])
  if value then
    reply[#reply + 1] = page[at]
    reply[#reply + 1] = value
  end
end
return reply
