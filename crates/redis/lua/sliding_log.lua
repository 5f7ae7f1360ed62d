-- sliding_window_log: the same algorithm as in Rust. The time of every admission is stored.
--
-- limit: { capacity, length (in microseconds) }
-- state: { newest, total, count, first, last, at, units }
--   newest       the newest time of a charge: the log's time never goes back behind it
--   total        the sum of the units of all entries
--   first, last  entry i, first <= i <= last, has the time at[i] and units[i]; oldest first
--   count        the entries with units. An entry without units was refunded; it counts for nothing, and the first and
--                the last entry have units
-- Charges and refunds change `at` and `units` in place; only the state that they return may be used afterwards.

local sliding_log = {}

sliding_log.unseen = { newest = 0, total = 0, count = 0, first = 1, last = 0 }

-- The log without entries that were lost: the server may evict the cells of a log but not its state. Their units are unknown
-- and must not count for ever. The first entry has units, so one without them was lost.
local function without_lost(log)
  if log.last < log.first or log.units[log.first] > 0 then
    return log
  end
  local kept = {
    newest = log.newest,
    total = 0,
    count = 0,
    first = log.last + 1,
    last = log.last,
    at = log.at,
    units = log.units,
  }
  for i = log.last, log.first, -1 do
    if log.units[i] > 0 then
      kept.total, kept.count, kept.first = kept.total + log.units[i], kept.count + 1, i
    end
  end
  return kept
end

-- The first entry inside the window at `now`, the units of the entries before it, and their number.
local function first_inside(limit, log, now)
  local i, units, count = log.first, 0, 0
  while i <= log.last and now - log.at[i] >= limit.length do
    if log.units[i] > 0 then
      units, count = units + log.units[i], count + 1
    end
    i = i + 1
  end
  return i, units, count
end

-- The log at `now`, without the entries that have left the window.
local function without_expired(limit, log, now)
  log = without_lost(log)
  local newest = math.max(log.newest, now)
  local first, units, count = first_inside(limit, log, newest)
  while first < log.last and log.units[first] == 0 do
    first = first + 1
  end
  return {
    newest = newest,
    total = log.total - units,
    count = log.count - count,
    first = first,
    last = log.last,
    at = log.at,
    units = log.units,
  }
end

-- The time until at least `units` have left the window.
local function until_expired(limit, log, now, units)
  local left = 0
  for i = log.first, log.last do
    left = left + log.units[i]
    if left >= units then
      return since(math.min(log.at[i] + limit.length, MAX), now)
    end
  end
  return since(log.newest, now)
end

-- The time until the newest entry leaves the window.
local function until_left(limit, log, now)
  local newest = log.last >= log.first and log.at[log.last] or 0
  return since(math.min(newest + limit.length, MAX), now)
end

function sliding_log.judge(limit, log, now, cost)
  log = without_lost(log)
  local at = math.max(now, log.newest)
  local _, left = first_inside(limit, log, at)
  local used = log.total - left
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif used + cost <= limit.capacity then
    used = used + cost
  else
    verdict, span = NOT_UNTIL, until_expired(limit, log, now, log.total - (limit.capacity - cost))
  end
  local reset_after = 0
  if verdict == PASS and cost > 0 then
    reset_after = since(math.min(at + limit.length, MAX), now)
  elseif used > 0 then
    reset_after = until_left(limit, log, now)
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = math.max(limit.capacity - used, 0),
    reset_after = reset_after,
  }
end

function sliding_log.charge(limit, log, now, cost)
  log = without_expired(limit, log, now)
  local units = math.min(cost, MAX - log.total)
  if units <= 0 then
    return log
  end
  log.at, log.units = log.at or {}, log.units or {}
  log.total = log.total + units
  local last = log.last
  if last >= log.first and (log.at[last] == log.newest or log.count >= limit.capacity) then
    -- One entry per instant. If the log is full, the newest entry takes the charge.
    units = units + log.units[last]
  else
    last, log.count = last + 1, log.count + 1
  end
  log.at[last], log.units[last], log.last = log.newest, units, last
  return log
end

-- Gives back units of the entry of that charge.
function sliding_log.refund(limit, log, charged, now, cost)
  log = without_lost(log)
  local low, high = log.first, log.last
  while low < high do
    local middle = math.floor((low + high) / 2)
    if log.at[middle] < charged then
      low = middle + 1
    else
      high = middle
    end
  end
  if low > high or log.at[low] ~= charged or log.units[low] == 0 then
    return log, false
  end
  local units = math.min(cost, log.units[low])
  local left, first, last, count = log.units[low] - units, log.first, log.last, log.count
  log.units[low] = left
  if left == 0 then
    count = count - 1
    while last >= first and log.units[last] == 0 do
      last = last - 1
    end
    while first <= last and log.units[first] == 0 do
      first = first + 1
    end
  end
  local counts = since(math.max(now, log.newest), charged) < limit.length
  return {
    newest = log.newest,
    total = log.total - units,
    count = count,
    first = first,
    last = last,
    at = log.at,
    units = log.units,
  }, counts and units > 0
end

function sliding_log.rebase(new, old, log, now)
  if new.length == old.length then
    return log
  end
  return without_expired(old, log, now)
end

-- The time until the state equals an unused one.
function sliding_log.until_fresh(limit, log, now)
  if log.last < log.first then
    return 0
  end
  return until_left(limit, log, now)
end
