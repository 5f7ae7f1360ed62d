-- fixed_window: the same algorithm as in Rust. One count per window, windows aligned to the Unix epoch.
--
-- limit: { capacity, length (in microseconds) }
-- state: { window (its number), count }

local fixed_window = {}

fixed_window.unseen = { window = 0, count = 0 }

-- The state at `now`. A window that has begun is never replaced by an earlier one.
local function settle_window(limit, state, now)
  local window = floor_div(now, limit.length)
  if window > state.window then
    return { window = window, count = 0 }
  end
  return state
end

local function until_end(limit, state, now)
  return since(math.min((state.window + 1) * limit.length, MAX), now)
end

function fixed_window.judge(limit, state, now, cost)
  state = settle_window(limit, state, now)
  local left, count = until_end(limit, state, now), state.count
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif count + cost <= limit.capacity then
    count = count + cost
  else
    verdict, span = NOT_UNTIL, left
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = math.max(limit.capacity - count, 0),
    reset_after = left,
  }
end

function fixed_window.charge(limit, state, now, cost)
  state = settle_window(limit, state, now)
  return { window = state.window, count = math.min(state.count + cost, MAX) }
end

-- A window that has ended takes nothing back.
function fixed_window.refund(limit, state, charged, now, cost)
  state = settle_window(limit, state, now)
  if floor_div(charged, limit.length) ~= state.window then
    return state, false
  end
  return { window = state.window, count = math.max(state.count - cost, 0) }, state.count > 0 and cost > 0
end

function fixed_window.rebase(new, old, state, now)
  if new.length == old.length then
    return state
  end
  state = settle_window(old, state, now)
  local begun = math.min(state.window * old.length, MAX)
  return { window = floor_div(math.max(now, begun), new.length), count = state.count }
end

-- The time until the state equals an unused one.
function fixed_window.until_fresh(limit, state, now)
  if state.count == 0 then
    return 0
  end
  return until_end(limit, state, now)
end
