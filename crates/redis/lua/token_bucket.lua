-- token_bucket: the same algorithm as in Rust. A bucket fills with what is spent and drains at an exact rate; its
-- content is counted in drops (Rust: subunits).
--
-- limit: { capacity, tick (in microseconds), unit (drops per unit of cost), drain (drops per tick) }
-- state: { tick, part }: it is empty when `part` drops more than at the start of `tick` have drained, part < drain

local token_bucket = {}

token_bucket.unseen = { tick = 0, part = 0 }

-- The fill level at `now`.
local function drops_at(limit, state, now)
  local ticks = state.tick - floor_div(now, limit.tick)
  if ticks < 0 then
    return 0
  end
  return math.min(ticks * limit.drain + state.part, MAX)
end

-- The state of a bucket with this many drops at `now`; it is empty at most one tick after the last representable one.
local function holding(limit, drops, now)
  local tick = floor_div(now, limit.tick) + floor_div(drops, limit.drain)
  if tick > MAX then
    return { tick = MAX + 1, part = 0 }
  end
  return { tick = tick, part = math.fmod(drops, limit.drain) }
end

-- The time until at most this many drops are left.
local function until_at_most(limit, drops, state, now)
  local tick = state.tick + 1
  if drops >= state.part then
    tick = state.tick - floor_div(drops - state.part, limit.drain)
  end
  if tick <= floor_div(now, limit.tick) then
    return 0
  end
  return since(math.min(tick * limit.tick, MAX), now)
end

local function filled(limit, drops, cost)
  return math.min(drops + cost * limit.unit, MAX)
end

function token_bucket.judge(limit, state, now, cost)
  local drops = drops_at(limit, state, now)
  local brim = limit.capacity * limit.unit
  local room = brim - cost * limit.unit
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  elseif drops <= room then
    drops = filled(limit, drops, cost)
    state = holding(limit, drops, now)
  else
    verdict, span = NOT_UNTIL, until_at_most(limit, room, state, now)
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = floor_div(math.max(brim - drops, 0), limit.unit),
    reset_after = until_at_most(limit, 0, state, now),
  }
end

function token_bucket.charge(limit, state, now, cost)
  return holding(limit, filled(limit, drops_at(limit, state, now), cost), now)
end

-- Gives back only what cannot have drained since the charge.
function token_bucket.refund(limit, state, charged, now, cost)
  local drops = drops_at(limit, state, now)
  if drops == 0 then
    return state
  end
  local ticks = math.max(floor_div(now, limit.tick) - floor_div(charged, limit.tick), 0)
  local held = math.max(filled(limit, 0, cost) - ticks * limit.drain, 0)
  return holding(limit, math.max(drops - held, 0), now)
end

-- Keeps the spent units, rounded up to whole units.
function token_bucket.rebase(new, old, state, now)
  if new.tick == old.tick and new.unit == old.unit and new.drain == old.drain then
    return state
  end
  return holding(new, filled(new, 0, ceil_div(drops_at(old, state, now), old.unit)), now)
end

-- The time until the state equals an unused one.
function token_bucket.until_fresh(limit, state, now)
  return until_at_most(limit, 0, state, now)
end
