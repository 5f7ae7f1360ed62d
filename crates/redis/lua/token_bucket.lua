-- token_bucket: the same algorithm as in Rust. A bucket fills with what is spent and drains at an exact rate; its
-- content is counted in subunits.
--
-- limit: { capacity, tick (in microseconds), unit (subunits per unit of cost), drain (subunits per tick) }
-- state: { tick, part }: it is empty when `part` subunits more than at the start of `tick` have drained, part < drain

local token_bucket = {}

token_bucket.unseen = { tick = 0, part = 0 }

-- The fill level at `now`.
local function level_at(limit, state, now)
  local ticks = state.tick - floor_div(now, limit.tick)
  if ticks < 0 then
    return 0
  end
  return math.min(ticks * limit.drain + state.part, MAX)
end

-- The state of a bucket with this fill level at `now`; it is empty at most one tick after the last representable one.
local function with_level(limit, level, now)
  local tick = floor_div(now, limit.tick) + floor_div(level, limit.drain)
  if tick > MAX then
    return { tick = MAX + 1, part = 0 }
  end
  return { tick = tick, part = math.fmod(level, limit.drain) }
end

-- The time until the fill level is at most `level`.
local function until_at_most(limit, level, state, now)
  local tick = tick_at_most(limit.drain, state.tick, state.part, level)
  if tick <= floor_div(now, limit.tick) then
    return 0
  end
  return since(math.min(tick * limit.tick, MAX), now)
end

local function filled(limit, level, cost)
  return math.min(level + cost * limit.unit, MAX)
end

-- Removes subunits from the bucket. Returns whether there was anything to remove, too.
local function without(limit, state, now, subunits)
  local level = level_at(limit, state, now)
  if level == 0 then
    return state, false
  end
  return with_level(limit, math.max(level - subunits, 0), now), subunits > 0
end

-- `backlog` is the largest fill level at which a charge is admitted.
local function judge_bucket(limit, backlog, state, now, cost)
  local level = level_at(limit, state, now)
  local full = limit.capacity * limit.unit
  local room = math.min(full - cost * limit.unit, backlog)
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif level <= room then
    level = filled(limit, level, cost)
    state = with_level(limit, level, now)
  else
    verdict, span = NOT_UNTIL, until_at_most(limit, room, state, now)
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = floor_div(math.max(math.min(backlog + limit.unit, full) - level, 0), limit.unit),
    reset_after = until_at_most(limit, 0, state, now),
  }
end

function token_bucket.judge(limit, state, now, cost)
  return judge_bucket(limit, limit.capacity * limit.unit, state, now, cost)
end

function token_bucket.charge(limit, state, now, cost)
  return with_level(limit, filled(limit, level_at(limit, state, now), cost), now)
end

-- Gives back only what cannot have drained since the charge. Like every refund, returns the state and whether it contained
-- any of the units.
function token_bucket.refund(limit, state, charged, now, cost)
  local ticks = math.max(floor_div(now, limit.tick) - floor_div(charged, limit.tick), 0)
  return without(limit, state, now, math.max(filled(limit, 0, cost) - ticks * limit.drain, 0))
end

-- Keeps the spent units, rounded up to whole subunits.
function token_bucket.rebase(new, old, state, now)
  if new.tick == old.tick and new.unit == old.unit and new.drain == old.drain then
    return state
  end
  return with_level(new, mul_div_ceil(level_at(old, state, now), new.unit, old.unit), now)
end

-- The time until the state equals an unused one.
function token_bucket.until_fresh(limit, state, now)
  return until_at_most(limit, 0, state, now)
end
