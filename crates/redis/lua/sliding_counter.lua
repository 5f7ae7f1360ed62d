-- sliding_window_counter: the same algorithm as in Rust. The counts of two windows approximate a sliding window.
--
-- limit: { capacity, tick (in microseconds), length (in ticks) }
-- state: { window (its number), previous, current }

local sliding_counter = {}

sliding_counter.unseen = { window = 0, previous = 0, current = 0 }

-- The state at `now` and the elapsed ticks of its window; never an earlier window than the state's.
local function settle_windows(limit, state, now)
  local tick = floor_div(now, limit.tick)
  local window = floor_div(tick, limit.length)
  if window == state.window + 1 then
    state = { window = window, previous = state.current, current = 0 }
  elseif window > state.window then
    state = { window = window, previous = 0, current = 0 }
  end
  return state, math.max(tick - state.window * limit.length, 0)
end

-- The units inside the sliding window.
local function used_at(limit, state, elapsed)
  return share_of(limit.length, state.previous, limit.length - elapsed) + state.current
end

-- The time until `cost` (at most the capacity) fits, if nothing else is charged.
local function until_fits(limit, state, now, cost)
  local tick = tick_that_fits(limit, state.window, state.previous, state.current, cost)
  return since(math.min(tick * limit.tick, MAX), now)
end

-- The largest count whose product with the length is exact.
local function max_count(limit)
  return floor_div(MAX, limit.length)
end

function sliding_counter.judge(limit, state, now, cost)
  local elapsed
  state, elapsed = settle_windows(limit, state, now)
  local used = used_at(limit, state, elapsed)
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif used + cost <= limit.capacity then
    used = used + cost
    state = { window = state.window, previous = state.previous, current = state.current + cost }
  else
    verdict, span = NOT_UNTIL, until_fits(limit, state, now, cost)
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = math.max(limit.capacity - used, 0),
    reset_after = used == 0 and 0 or until_fits(limit, state, now, limit.capacity),
  }
end

function sliding_counter.charge(limit, state, now, cost)
  state = settle_windows(limit, state, now)
  local current = math.min(state.current + cost, max_count(limit))
  return { window = state.window, previous = state.previous, current = current }
end

function sliding_counter.refund(limit, state, charged, now, cost)
  state = settle_windows(limit, state, now)
  local previous, current = state.previous, state.current
  local window, units = floor_div(floor_div(charged, limit.tick), limit.length), 0
  if window == state.window then
    units = math.min(current, cost)
    current = current - units
  elseif window + 1 == state.window then
    units = math.min(previous, cost)
    previous = previous - units
  end
  return { window = state.window, previous = previous, current = current }, units > 0
end

function sliding_counter.rebase(new, old, state, now)
  local max = max_count(new)
  if new.length * new.tick == old.length * old.tick then
    -- The same windows, perhaps in other ticks: their numbers and counts stay the same.
    return { window = state.window, previous = math.min(state.previous, max), current = math.min(state.current, max) }
  end
  local elapsed
  state, elapsed = settle_windows(old, state, now)
  local used = used_at(old, state, elapsed)
  local begun = math.min(state.window * old.length * old.tick, MAX)
  local window = floor_div(floor_div(math.max(now, begun), new.tick), new.length)
  return { window = window, previous = 0, current = math.min(used, max) }
end

-- The time until the state equals an unused one.
function sliding_counter.until_fresh(limit, state, now)
  local elapsed
  state, elapsed = settle_windows(limit, state, now)
  if used_at(limit, state, elapsed) == 0 then
    return 0
  end
  return until_fits(limit, state, now, limit.capacity)
end
