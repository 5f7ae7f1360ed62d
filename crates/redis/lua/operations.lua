-- The operations on entries.

local BINDING, OVERAGE = 1, 3
-- The longest `undo` that is kept for an earlier attempt.
local UNDO_BYTES = 256

local function in_force(entry, limit)
  if entry.override and now < entry.override.till then
    return entry.override.limit
  end
  return limit
end

-- The counter of a rule's limit and its position.
local function counter_of(entry, rule)
  for i, counter in ipairs(entry.counters) do
    if same(counter.rule, rule) then
      return counter, i
    end
  end
end

-- Whether nothing was ever counted: such a state is the same under every limit and takes no refund.
local function is_unseen(state)
  local time = state.tick or state.window or state.newest
  return time == 0 and (state.count or 0) == 0 and (state.current or 0) == 0 and (state.previous or 0) == 0
end

-- The state of a counter, converted to `limit`. A changed algorithm starts with an unused state.
local function state_under(counter, limit)
  local algorithm = algorithm_of(limit.algorithm)
  if not counter or counter.limit.algorithm ~= limit.algorithm then
    return algorithm.unseen
  elseif same(counter.limit, limit) or is_unseen(counter.state) then
    return counter.state
  end
  return algorithm.rebase(limit, counter.limit, counter.state, now)
end

-- Keeps what a conversion or a charge does not carry over: the place of a log's cells.
local function with_place(entry, limit, state, before)
  if limit.algorithm == SLIDING_LOG then
    local place = before and before.place
    if not state.at then
      place = place or free_place(entry)
      local fresh = { place = place }
      for _, field in ipairs({ 'newest', 'total', 'count', 'first', 'last' }) do
        fresh[field] = state[field]
      end
      return open_cells(fresh, cells_name(entry, place))
    end
    state.place, state.changed = place, before.changed
  elseif before and before.place then
    drop_cells(entry, before)
  end
  return state
end

local function set_state(entry, counter, limit, state)
  counter.state = with_place(entry, limit, state, counter.state)
  counter.limit, entry.dirty = limit, true
end

local function judge(check, cost)
  local entry = entry_of(check.key)
  local limit = in_force(entry, check.limit)
  local counter = counter_of(entry, check.limit) or entry.counters[1]
  return algorithm_of(limit.algorithm).judge(limit, state_under(counter, limit), now, cost)
end

-- Selects the counter of the check's limit and converts it to the limit that applies; also in a decision that rejects. A
-- limit met for the first time starts with the state of the limit used last.
local function adopt(check)
  local entry = entry_of(check.key)
  local counters = entry.counters
  if #counters == 0 then
    return
  end
  local limit = in_force(entry, check.limit)
  local counter, position = counter_of(entry, check.limit)
  if not counter then
    local last = counters[1]
    last.used = now
    while #counters >= COUNTERS do
      drop_cells(entry, table.remove(counters).state)
    end
    counter = { rule = check.limit, limit = limit, used = now }
    local state = state_under(last, limit)
    if limit.algorithm == SLIDING_LOG then
      state = state.at and copy_of(entry, state) or with_place(entry, limit, state)
    end
    counter.state = state
    table.insert(counters, 1, counter)
    entry.dirty = true
  elseif position > 1 then
    table.insert(counters, 1, table.remove(counters, position))
    entry.dirty = true
  end
  if not same(counter.limit, limit) then
    set_state(entry, counter, limit, state_under(counter, limit))
  end
  counter.used = now
  local other = counters[2]
  if other and since(now, other.used) >= UNUSED then
    drop_cells(entry, other.state)
    counters[2], entry.dirty = nil, true
  end
end

local function charge_counter(entry, counter, cost)
  local limit = in_force(entry, counter.rule)
  local state = state_under(counter, limit)
  if not same(counter.limit, limit) then
    set_state(entry, counter, limit, state)
    state = counter.state
  end
  set_state(entry, counter, limit, algorithm_of(limit.algorithm).charge(limit, state, now, cost))
end

local function charge(check)
  local entry = entry_of(check.key)
  if #entry.counters == 0 then
    local limit = in_force(entry, check.limit)
    local state = with_place(entry, limit, algorithm_of(limit.algorithm).unseen)
    entry.counters[1] = { rule = check.limit, limit = limit, state = state, used = now }
  end
  for _, counter in ipairs(entry.counters) do
    charge_counter(entry, counter, check.cost)
  end
end

local function is_charged(check, outcome)
  return outcome.verdict == PASS or check.role == OVERAGE
end

-- The other costs charged to the key of a check: for a binding check the earlier binding ones, for any other check all
-- binding ones and the earlier others that are charged.
local function beside(checks, outcomes, place)
  local check, cost, shared = checks[place], 0, false
  for i, other in ipairs(checks) do
    if i ~= place and other.key == check.key then
      shared = true
      local counted
      if other.role == BINDING then
        counted = check.role ~= BINDING or i < place
      else
        counted = check.role ~= BINDING and outcomes[i] and is_charged(other, outcomes[i])
      end
      if counted then
        cost = cost + other.cost
      end
    end
  end
  check.shared = shared
  return cost
end

local function judge_all(checks)
  local outcomes, passes = {}, true
  for i, check in ipairs(checks) do
    outcomes[i] = judge(check, beside(checks, outcomes, i) + check.cost)
    passes = passes and (outcomes[i].verdict == PASS or check.role ~= BINDING)
  end
  return outcomes, passes
end

-- Updates `remaining` and `reset_after` to the current values; the verdict stays.
local function refresh(check, outcome)
  local left = judge(check, 0)
  outcome.limit, outcome.remaining, outcome.reset_after = left.limit, left.remaining, left.reset_after
end

-- Keeps the entry as it is before a charge, with the newest cells of its logs, which a charge may change. What an earlier
-- attempt kept stays inside, as long as it is short.
local function keep_undo(entry, attempt)
  if entry.undo and entry.attempt == attempt then
    return
  elseif entry.undo and #entry.undo > UNDO_BYTES then
    entry.undo = nil
  end
  local undo = { #entry.counters > 0 and pack_entry(entry) or '' }
  for i, counter in ipairs(entry.counters) do
    local log = counter.state
    local has_cells = log.place and log.last >= log.first
    undo[2 * i] = has_cells and log.at[log.last] or 0
    undo[2 * i + 1] = has_cells and log.units[log.last] or 0
  end
  entry.undo, entry.attempt = cmsgpack.pack(undo), attempt
end

-- The entry before the charge that kept `undo`.
local function undo_charge(key, entry)
  local undo = cmsgpack.unpack(entry.undo)
  local before = unpack_entry(undo[1], entry.name)
  before.override = entry.override
  for i, counter in ipairs(before.counters) do
    local log = counter.state
    if log.place and log.last >= log.first then
      log.at[log.last], log.units[log.last] = undo[2 * i], undo[2 * i + 1]
    end
  end
  if #before.counters == 0 and entry.counters[1] then
    before.dropped = {}
    for _, counter in ipairs(entry.counters) do
      drop_cells(before, counter.state)
    end
  end
  before.dirty = true
  entries[key] = before
end

-- With `attempt`, the identifier of an attempt, the decision can be cancelled.
local function decide(checks, attempt)
  for _, check in ipairs(checks) do
    local entry = entry_of(check.key)
    local was_dirty = entry.dirty
    entry.dirty = false
    adopt(check)
    if entry.dirty then
      entry.undo = nil
    end
    entry.dirty = entry.dirty or was_dirty
  end
  local outcomes, passes = judge_all(checks)
  if passes then
    for i, check in ipairs(checks) do
      if is_charged(check, outcomes[i]) and check.cost > 0 then
        local entry = entry_of(check.key)
        if attempt then
          keep_undo(entry, attempt)
        else
          entry.undo = nil
        end
        charge(check)
      end
    end
  end
  for i, check in ipairs(checks) do
    local fits = outcomes[i].verdict == PASS
    if fits ~= (passes and is_charged(check, outcomes[i])) or check.shared then
      refresh(check, outcomes[i])
    end
  end
  return outcomes
end

local function peek(checks)
  local outcomes = judge_all(checks)
  for i, check in ipairs(checks) do
    refresh(check, outcomes[i])
  end
  return outcomes
end

-- What a later attempt restores contains the charge of this one, unless it directly follows: then it restores what was
-- before both.
local function forget_attempt(entry, attempt)
  local undo = entry.undo
  entry.undo = nil
  if undo then
    local before = unpack_entry(cmsgpack.unpack(undo)[1], entry.name)
    if before.undo and before.attempt == attempt then
      entry.undo = before.undo
    end
  end
end

-- Gives back what an attempt charged at `charged`: exactly, if nothing was charged since, or only by attempts that are
-- cancelled too; otherwise what a refund gives. A leaky bucket gives back only its last departure, and so nothing.
local function cancel(checks, attempt, charged)
  for _, check in ipairs(checks) do
    local entry = entry_of(check.key)
    if check.cost > 0 and not entry.restored then
      if entry.undo and entry.attempt == attempt then
        undo_charge(check.key, entry)
        entries[check.key].restored = true
      else
        forget_attempt(entry, attempt)
        for _, counter in ipairs(entry.counters) do
          local refund = algorithm_of(counter.limit.algorithm).refund
          set_state(entry, counter, counter.limit, refund(counter.limit, counter.state, charged, now, check.cost))
        end
      end
    end
  end
  for _, check in ipairs(checks) do
    entry_of(check.key).restored = nil
  end
  return peek(checks)
end

-- Gives back only what was charged under the limit that the counter still uses: under another limit the rest is unknown.
-- Under another limit, the departures of a leaky bucket are other moments. Returns whether the counter
-- that decides now has given anything back.
local function refund(entry, limit, cost, charged)
  local override = entry.override
  if override and charged < override.till and now < override.till + REFUNDS_END then
    local is_leaky = limit.algorithm == LEAKY_BUCKET or override.limit.algorithm == LEAKY_BUCKET
    if is_leaky or not override.since or charged <= override.since or now >= override.till then
      return false
    end
    limit = override.limit
  end
  entry.undo = nil
  local gives_back = false
  for i, counter in ipairs(entry.counters) do
    if same(counter.limit, limit) and not is_unseen(counter.state) then
      local state, contains = algorithm_of(limit.algorithm).refund(limit, counter.state, charged, now, cost)
      set_state(entry, counter, limit, state)
      gives_back = gives_back or i == 1 and contains
    end
  end
  return gives_back
end

local function reset(entry)
  for _, counter in ipairs(entry.counters) do
    drop_cells(entry, counter.state)
  end
  entry.counters, entry.undo, entry.dirty = {}, nil, true
end

local function override_limit(entry, till, limit, is_restored)
  local known = entry.override
  local is_same = known and limit and now < known.till and same(known.limit, limit)
  if is_restored and is_same then
    return
  elseif limit then
    entry.override = { till = till, limit = limit, since = is_same and known.since or now }
  elseif entry.override then
    entry.override.till = math.min(entry.override.till, now)
  end
  entry.dirty = true
end

-- Nothing of a malformed entry can be kept, so a reset removes it.
local function drop_malformed(list)
  for _, item in ipairs(list) do
    local entry = entry_of(item.key)
    if entry.malformed then
      entry.malformed, entry.foreign = nil, nil
    end
  end
end

local function is_foreign(list)
  for _, item in ipairs(list) do
    if entry_of(item.key).foreign then
      return true
    end
  end
  return false
end

-- Reads `count` items of an operation. Returns them and the position after them.
local function read_items(count, at, format, last)
  local list = {}
  for i = 1, count do
    local item, limit = {}, nil
    item.key, limit, item.cost, item[last], at = struct.unpack(format, operations, at)
    item.limit = limits[limit]
    list[i] = item
  end
  return list, at
end

-- Reads the operation at `at` and runs it. Returns its reply and the position of the next operation.
local function run(code, at)
  local list, attempt, charged, count, _
  if code == DECIDE_ONE then
    local _, high, low, limit, cost = string.byte(operations, at, at + 4)
    list, at = { { key = high * 256 + low, limit = limits[limit], cost = cost, role = BINDING } }, at + 5
  else
    if code == ATTEMPT or code == CANCEL then
      _, attempt, charged, at = struct.unpack('<BI7I7', operations, at)
    end
    _, count, at = struct.unpack('<BH', operations, at)
    if code <= CANCEL then
      list, at = read_items(count, at, '<HHI7B', 'role')
    else
      list, at = read_items(count, at, '<HHI7I7', 'time')
    end
  end
  if code == RESET then
    drop_malformed(list)
  end
  if is_foreign(list) then
    return FOREIGN, at
  end
  local outcomes
  if code <= ATTEMPT then
    outcomes = decide(list, attempt)
  elseif code == PEEK then
    outcomes = peek(list)
  elseif code == CANCEL then
    outcomes = cancel(list, attempt, charged)
  end
  if outcomes then
    local reply = {}
    for i, o in ipairs(outcomes) do
      reply[i] = struct.pack('<BI7I7I7I7', o.verdict, o.span, o.limit, o.remaining, o.reset_after)
    end
    return table.concat(reply), at
  end
  local has_effect = code ~= REFUND
  for _, item in ipairs(list) do
    local entry = entry_of(item.key)
    if code == REFUND then
      has_effect = refund(entry, item.limit, item.cost, item.time) or has_effect
    elseif code == RESET then
      reset(entry)
    else
      override_limit(entry, item.time, item.limit, item.cost == 1)
    end
  end
  return has_effect and DONE or UNCHANGED, at
end

local function write_all()
  for _, entry in pairs(entries) do
    if entry.dirty then
      write_entry(entry)
    end
  end
end

return run, write_all
