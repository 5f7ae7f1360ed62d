-- The formulas of token_bucket and sliding_window_counter that the fast path of leases uses too: plain numbers, no tables
-- for states. Every value is exact, as in exact.lua.

-- The first tick from which the level of a bucket is at most `level`; it is empty when `part` subunits more than at the
-- start of `tick` have drained.
local function tick_at_most(drain, tick, part, level)
  if level < part then
    return tick + 1
  end
  local excess = level - part
  return tick - (excess - math.fmod(excess, drain)) / drain
end

-- The part of the count of the window before that is inside the sliding window, `left` ticks before the window ends.
local function share_of(length, count, left)
  local product = count * math.max(left, 0)
  return (product - math.fmod(product, length)) / length
end

-- The first tick of a window at which at most `room` of the count of the window before is still inside.
local function ticks_until_share(length, count, room)
  if count <= room then
    return 0
  end
  -- share <= room exactly if count * left < (room + 1) * length
  local product = (room + 1) * length
  local rest = math.fmod(product, count)
  local whole = (product - rest) / count
  return math.max(length - (rest > 0 and whole or whole - 1), 0)
end

-- The first tick at which `cost` (at most the capacity) fits into the sliding window, if nothing else is charged.
local function tick_that_fits(limit, window, previous, current, cost)
  local length, most = limit.length, limit.capacity - cost
  if current <= most then
    return window * length + ticks_until_share(length, previous, most - current)
  end
  return (window + 1) * length + ticks_until_share(length, current, most)
end
