-- One atomic script for all operations of the central store.
--
-- KEYS     the counters, without duplicates, then the names of the cells of logs that the operations may use
-- ARGV     1 now in microseconds, or "" for this server's own time
--          2 the shortest time to live of a key, in seconds
--          3 the limits, one after another, each in the format of `read_limit`
--          4 the operations, one after another; each starts with its code:
--              1 decide one binding check, not of a sliding log
--                                           key (2 bytes, high first), limit (1), cost (1)
--              2 decide, 4 peek             count (2), and for each check: key (2), limit (2), cost (7), role (1: 1 binding,
--                                           2 advisory, 3 overage)
--              3 attempt, 5 cancel          identifier of the attempt (7), time of the charge (7, us), then as 2
--              6 refund, 7 reset, 8 override
--                                           count (2), and for each: key (2), limit (2, 0 for none), cost (7), time (7, us:
--                                           of the charge, or the end of the override; with cost 1 it is set only if its limit
--                                           is not in force)
--            numbers are little-endian if nothing else is said; keys and limits are positions, from 1
--          5 the number of counters in KEYS; all of them if there is none
-- Reply    one string: now (7 bytes, us), then for each operation: for each check the verdict (1: 0 pass, 1 not until,
--          2 never), span (7, us: wait or retry_after), limit (7), remaining (7), reset_after (7, us); for operations 6 to
--          8 one byte: 3, or 5 for refunds of which nothing was contained. If an entry has a newer format or is malformed: one byte, 4, and the operation has changed nothing.
--
-- An attempt is a decision that may be cancelled. The fast path (one binding check of a token bucket whose entry holds
-- nothing else) is judge and charge of token_bucket.lua, inlined: a call of many decisions costs little more than its
-- reads and writes. Functions are created by each call, so those of the algorithms and of `general`, which runs everything
-- else, are created only if they are needed.

local VERSION, LENDING = 1, 2
local MAX = 9007199254740991
local DECIDE_ONE, DECIDE, ATTEMPT, PEEK, CANCEL, REFUND, RESET, OVERRIDE = 1, 2, 3, 4, 5, 6, 7, 8
local TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW, SLIDING_LOG, SLIDING_COUNTER = 1, 2, 3, 4, 5
local DONE, FOREIGN, UNCHANGED = '\3', '\4', '\5'

-- A number as in a packed limit: one digit and an exponent in a byte, three digits and an exponent in two bytes, or the
-- length and the bytes. Returns the position after it, too.
local function read_number(text, at)
  local head, low = string.byte(text, at, at + 1)
  if head < 128 then
    return (head % 9 + 1) * 10 ^ math.floor(head / 9), at + 1
  elseif head < 192 then
    return ((head - 128) * 16 + math.floor(low / 16)) * 10 ^ (low % 16), at + 2
  end
  local size = head - 192
  return struct.unpack('<I' .. size, text, at + 1), at + 1 + size
end

-- A packed limit: a byte of 16 * version + 3 * algorithm + tick + 1, with algorithms (token bucket, leaky bucket, fixed
-- window, sliding log, sliding counter) and ticks (1 us, 1 ms, 1 s) numbered from 0; then the capacity and
--   buckets   subunits per unit, subunits per tick; leaky bucket: the longest backlog in subunits
--   others    the length of the window in ticks
-- With the version LENDING it is a token bucket, and the units that it lends and the price of each follow.
-- Returns the position after it, too.
local function read_limit(text, at)
  local head, start = string.byte(text, at), at
  local shape = head % 16 - 1
  local limit = { algorithm = math.floor(shape / 3) + 1, tick = 1000 ^ (shape % 3) }
  limit.capacity, at = read_number(text, at + 1)
  if limit.algorithm <= LEAKY_BUCKET then
    limit.unit, at = read_number(text, at)
    limit.drain, at = read_number(text, at)
    limit.format = limit.drain == 1 and '<I7' or limit.drain <= 256 and '<I7B' or '<I7I7'
    if limit.algorithm == LEAKY_BUCKET then
      limit.backlog, at = read_number(text, at)
    elseif math.floor(head / 16) == LENDING then
      limit.lent, at = read_number(text, at)
      limit.repay, at = read_number(text, at)
    end
  else
    limit.length, at = read_number(text, at)
    limit.format = limit.algorithm == FIXED_WINDOW and '<I7I7'
      or limit.algorithm == SLIDING_COUNTER and '<I7I7I7'
      or '<I7I7I7I7I7B'
  end
  limit.blob = string.sub(text, start, at - 1)
  return limit, at
end

local function read_limits(text)
  local limits, at = {}, 1
  while at <= #text do
    local limit
    limit, at = read_limit(text, at)
    limits[#limits + 1] = limit
  end
  return limits
end
