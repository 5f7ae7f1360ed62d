-- Permits of concurrency limits that nodes share.
--
-- KEYS     the sets of permits, without duplicates
-- ARGV     1 now in microseconds, or "" for this server's own time
--          2 the life of a permit in microseconds
--          3 the time to live of a key in milliseconds
--          4 the requests, packed, little-endian, 23 bytes each:
--              kind (1 byte: 1 acquire, 2 renew, 3 release, 4 withdraw), key (2 bytes: its index in KEYS), maximum
--              (4 bytes), permit (16 bytes)
-- Reply    one string with one byte per request: 1 done, 0 all permits are in use, or the permit was withdrawn
--
-- A key is a sorted set of permits by the time at which they expire. A permit of a node that was killed is not renewed, and
-- counts until then. A renewal adds a permit that is not there: its request is in progress, although this server has lost the
-- permit. A permit is withdrawn if this server may not have run an earlier request for it yet: it stays in the set, with the
-- negative of the time at which it expires, so that it can be neither acquired nor renewed. The set has no format version:
-- another format would need another key name.

local ACQUIRE, RENEW, RELEASE = 1, 2, 3
local REQUEST_BYTES = 23

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local expired, expiry = string.format('%.0f', now), string.format('%.0f', now + tonumber(ARGV[2]))

local function acquire(key, maximum, permit)
  redis.call('ZREMRANGEBYSCORE', key, '-' .. expired, expired)
  if redis.call('ZCARD', key) >= maximum and redis.call('ZCOUNT', key, '(0', '+inf') >= maximum
    or redis.call('ZADD', key, 'NX', expiry, permit) == 0 then
    return '\0'
  end
  redis.call('PEXPIRE', key, ARGV[3])
  return '\1'
end

local function renew(key, permit)
  if tonumber(redis.call('ZSCORE', key, permit) or '0') >= 0 then
    redis.call('ZADD', key, expiry, permit)
    redis.call('PEXPIRE', key, ARGV[3])
  end
end

local function withdraw(key, permit)
  redis.call('ZADD', key, '-' .. expiry, permit)
  redis.call('PEXPIRE', key, ARGV[3])
end

local replies = {}
for at = 1, #ARGV[4], REQUEST_BYTES do
  local kind, index, maximum = struct.unpack('<BI2I4', ARGV[4], at)
  local key, permit = KEYS[index], string.sub(ARGV[4], at + 7, at + REQUEST_BYTES - 1)
  local reply = '\1'
  if kind == ACQUIRE then
    reply = acquire(key, maximum, permit)
  elseif kind == RENEW then
    renew(key, permit)
  elseif kind == RELEASE then
    redis.call('ZREM', key, permit)
  else
    withdraw(key, permit)
  end
  replies[#replies + 1] = reply
end
return table.concat(replies)
