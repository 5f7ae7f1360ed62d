-- The records that nodes share: the version that was changed last counts.
--
-- KEYS     1 records: a hash of field -> changed (16 digits) and the sealed record; `epoch` and `version` are fields too
--          2 changes: a sorted set of fields, by the version at which they were changed
--          3 expiry: a sorted set of fields, by the time (us) from which they are of no use
-- ARGV     1 operation: push | pull
--          2 the time to live of the keys, in seconds
--          3 the epoch of a new set of keys: a random text
--          push   then for each record: field, changed (16 digits), expiry (us, "" for never), sealed record
--          pull   4 the epoch and 5 the version that the caller knows, 6 the most records to return
-- Reply    epoch, version, then
--          push   the number of records that were newer than the stored ones
--          pull   the version up to which this page reaches, then field and value of each record
--
-- A caller that knows another epoch or a later version gets all records: this server lost some.

local records, changes, expiry = KEYS[1], KEYS[2], KEYS[3]
local ttl = tonumber(ARGV[2])
local REMOVALS = 1000

redis.call('HSETNX', records, 'epoch', ARGV[3])
local epoch = redis.call('HGET', records, 'epoch')
local version = tonumber(redis.call('HGET', records, 'version') or '0')

local function keep_alive()
  redis.call('EXPIRE', records, ttl)
  redis.call('EXPIRE', changes, ttl)
  redis.call('EXPIRE', expiry, ttl)
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

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
  for at = 4, #ARGV, 4 do
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
  return { epoch, version, accepted }
end

if redis.call('TTL', records) < ttl / 2 then
  keep_alive()
end
local known = ARGV[5]
if ARGV[4] ~= epoch or tonumber(known) > version then
  known = '0'
end
local reply = { epoch, version, version }
local page = redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[6])
for at = 1, #page, 2 do
  local value = redis.call('HGET', records, page[at])
  if value then
    reply[#reply + 1] = page[at]
    reply[#reply + 1] = value
  end
end
if #page / 2 == tonumber(ARGV[6]) then
  reply[3] = tonumber(page[#page])
end
return reply
