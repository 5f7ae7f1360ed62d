-- token_bucket: the same algorithm as in Rust. A bucket fills with what is spent and drains at an exact rate; its
-- content is counted in subunits.
--
-- limit: { capacity, tick (in microseconds), unit (subunits per unit of cost), drain (subunits per tick) }, and for a bucket
--   that lends: lent (units beyond the burst, part of the capacity), repay (the units that each of them costs)
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

-- The terms of a bucket that lends, in subunits: the level from which on units are borrowed, and what can be borrowed.
local function terms(limit)
  return (limit.capacity - limit.lent) * limit.unit, limit.lent * limit.unit
end

-- The level after `amount` was spent at `level`.
local function spend(limit, level, amount)
  if not limit.lent then
    return math.min(level + amount, MAX)
  end
  local own = math.min(math.max(terms(limit) - level, 0), amount)
  return math.min(level + own + (amount - own) * limit.repay, MAX)
end

-- What was spent of a bucket with this level, rounded up.
local function spent(limit, level)
  if not limit.lent then
    return level
  end
  local own = terms(limit)
  return math.min(level, own) + ceil_div(math.max(level - own, 0), limit.repay)
end

-- The largest level at which `amount`, at most the capacity, can be spent.
local function room_for(limit, amount)
  if not limit.lent then
    return limit.capacity * limit.unit - amount
  end
  local own, lent = terms(limit)
  if amount <= lent then
    return own + (lent - amount) * limit.repay
  end
  return own + lent - amount
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
  local verdict, span = PASS, 0
  if cost > limit.capacity then
    verdict = NEVER
  else
    local room = math.min(room_for(limit, cost * limit.unit), backlog)
    if level <= room then
      level = spend(limit, level, cost * limit.unit)
      state = with_level(limit, level, now)
    else
      verdict, span = NOT_UNTIL, until_at_most(limit, room, state, now)
    end
  end
  return {
    verdict = verdict,
    span = span,
    limit = limit.capacity,
    remaining = floor_div(math.max(math.min(backlog + limit.unit, full) - spent(limit, level), 0), limit.unit),
    reset_after = until_at_most(limit, 0, state, now),
  }
end

function token_bucket.judge(limit, state, now, cost)
  return judge_bucket(limit, MAX, state, now, cost)
end

function token_bucket.charge(limit, state, now, cost)
  return with_level(limit, spend(limit, level_at(limit, state, now), cost * limit.unit), now)
end

-- Gives back only what cannot have drained since the charge. Like every refund, returns the state and whether it contained
-- any of the units.
function token_bucket.refund(limit, state, charged, now, cost)
  local ticks = math.max(floor_div(now, limit.tick) - floor_div(charged, limit.tick), 0)
  local amount = math.max(filled(limit, 0, cost) - ticks * limit.drain, 0)
  if not limit.lent then
    return without(limit, state, now, amount)
  end
  -- What was borrowed is given back first.
  local level, own = level_at(limit, state, now), terms(limit)
  if level == 0 then
    return state, false
  end
  local debt, left = math.max(level - own, 0), nil
  if debt > 0 and amount * limit.repay <= debt then
    left = level - amount * limit.repay
  else
    left = math.max(spent(limit, level) - amount, 0)
  end
  return with_level(limit, left, now), amount > 0
end

-- Keeps the spent units, rounded up to whole subunits.
function token_bucket.rebase(new, old, state, now)
  local is_same_rate = new.tick == old.tick and new.unit == old.unit and new.drain == old.drain
  if new.lent or old.lent then
    local units = spent(old, level_at(old, state, now))
    return with_level(new, spend(new, 0, mul_div_ceil(units, new.unit, old.unit)), now)
  elseif is_same_rate then
    return state
  end
  return with_level(new, mul_div_ceil(level_at(old, state, now), new.unit, old.unit), now)
end

-- The time until the state equals an unused one.
function token_bucket.until_fresh(limit, state, now)
  return until_at_most(limit, 0, state, now)
end
