-- token_bucket: the twin of the Rust algorithm of that name. A bucket fills with what is spent and drains at
-- an exact rate; its content is counted in drops.
--
-- limit: { capacity, tick (in microseconds), unit (drops per unit of cost), drain (drops per tick) }
-- state: { drops, at (in ticks) }

local token_bucket = {}

token_bucket.unseen = { drops = 0, at = 0 }

local function settle(limit, state, now)
  local at = math.max(floor_div(now, limit.tick), state.at)
  return { drops = math.max(state.drops - (at - state.at) * limit.drain, 0), at = at }
end

-- The first instant at which at most `drops` are left.
local function when_down_to(limit, state, drops)
  local ticks = ceil_div(math.max(state.drops - drops, 0), limit.drain)
  return math.min((state.at + ticks) * limit.tick, MAX)
end

local function filled(limit, drops, cost)
  return math.min(drops + cost * limit.unit, MAX)
end

function token_bucket.judge(limit, state, now, cost)
  local level = settle(limit, state, now)
  local brim = limit.capacity * limit.unit
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif level.drops <= brim - cost * limit.unit then
    level.drops = filled(limit, level.drops, cost)
  else
    verdict, span = NOT_UNTIL, since(when_down_to(limit, level, brim - cost * limit.unit), now)
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = floor_div(math.max(brim - level.drops, 0), limit.unit),
    reset_after = level.drops == 0 and 0 or since(when_down_to(limit, level, 0), now),
  }
end

function token_bucket.charge(limit, state, now, cost)
  local level = settle(limit, state, now)
  level.drops = filled(limit, level.drops, cost)
  return level
end

-- Only what cannot have drained since the charge is given back.
function token_bucket.refund(limit, state, charged, now, cost)
  local level = settle(limit, state, now)
  local drained = math.max(level.at - floor_div(charged, limit.tick), 0) * limit.drain
  local held = math.max(filled(limit, 0, cost) - drained, 0)
  level.drops = math.max(level.drops - held, 0)
  return level
end

-- Whole units stay spent, a part counting as one.
function token_bucket.rebase(new, old, state, now)
  if new.tick == old.tick and new.unit == old.unit and new.drain == old.drain then
    return state
  end
  local level = settle(old, state, now)
  local units = ceil_div(level.drops, old.unit)
  local at = math.max(now, math.min(level.at * old.tick, MAX))
  return { drops = filled(new, 0, units), at = floor_div(at, new.tick) }
end

function token_bucket.fresh_at(limit, state)
  return when_down_to(limit, state, 0)
end
