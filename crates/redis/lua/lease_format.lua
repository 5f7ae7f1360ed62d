-- Leases: nodes take blocks of units, spend them locally and settle. See src/lease/mod.rs for the protocol and its proof.
--
-- KEYS     the counters, without duplicates
-- ARGV     1: packed, little endian:
--            header     '<ddHH'  now (us; negative for this server's own time), the shortest time to live of a key (ms),
--                                limits, operations
--            limits     '<Bdddd' algorithm (1 token_bucket, 2 fixed_window, 3 sliding_window_counter), capacity, and
--                                tick, unit, drain | length, 0, 0 | tick, length, 0
--            operations '<BHHddddddddd' kind, key (index in KEYS), limit, and
--                                acquire (1): node, sequence, epoch, spent, granted, want, least, nodes, debt
--                                peek (2):    cost in `least`
--                                reset (3)
--                                override (4): until (us, 0 for none) in `want`; `limit` is the replacement; with 1 in
--                                `debt` it is set only if its limit is not in force
--                                refund (5): node, when the units were spent (us) in `want`, units in `debt`; the reply
--                                has in place of the units that others hold those that they may have spent without a
--                                report, and in place of `available` whether the counter contained any: 1 or 0
-- Reply    packed; for each operation '<Bdddddddddddd': status (0 done, 1 ignored: not the newest request of the node,
--          2 the entry has a newer format, 3 the entry is malformed and only a reset changes it), now, epoch (0: no lease), granted, life (us), available, capacity,
--          retry_after (us), reset_after (us), units that other nodes hold, and the state's three numbers with all leased units
--          charged, the first of them 2^60 if another limit than that of the request applies
--
-- An entry is '<BBBB' version, counters, has an override, records; then each counter '<Bddddddddd': algorithm, the limit's
-- four numbers, the state's three, used, since (us); then the override '<dBdddd' until, limit, and if the header has 2 instead of 1
-- '<d' since (us); then each record '<dddddddB':
-- node, sequence, epoch, at (the time of its first grant, us), granted, spent, expiry (us), whether the counters were reset
-- since it last settled.
--
-- An entry has a counter for each of the last two limits, the one used last first. While nodes with the old and nodes with
-- the new limit of a rule alternate, every lease counts under both, so neither counter starts again. A counter is
-- { limit, state, used (when a node last asked under it), since (leases granted before count as spent) }.

-- `lease.lua` has the fast path, `lease_general.lua` runs everything else.

local VERSION = 1
local MAX = 9007199254740991
local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER = 1, 2, 3
local ACQUIRE, PEEK, RESET, OVERRIDE, REFUND = 1, 2, 3, 4, 5
local DONE, IGNORED, NEWER, MALFORMED = 0, 1, 2, 3
local LIMIT, OPERATION, REPLY = '<Bdddd', '<BHHddddddddd', '<Bdddddddddddd'
-- The number of records is stored in one byte: more nodes do not get leases on one counter.
local MAX_RECORDS = 255
-- Every number of an entry is smaller. Comparisons with it and with 0 are false for a NaN, and one of them for an infinity.
local HIGHEST = 2 ^ 60
local COUNTER, RECORD = '<Bddddddddd', '<dddddddB'
-- A lease of token_bucket lives for a sixth of the time in which the bucket refills, within these bounds.
local MIN_LIFE, MAX_LIFE = 2000000, 10000000

local function new_limit(kind, a, b, c, d)
  local limit = { kind = kind, capacity = a, a = a, b = b, c = c, d = d }
  if kind == TOKEN_BUCKET then
    limit.tick, limit.unit, limit.drain = b, c, d
    local refill = a * c / d * b
    limit.life = math.floor(math.max(MIN_LIFE, math.min(MAX_LIFE, refill / 6)))
  elseif kind == FIXED_WINDOW then
    limit.length, limit.window = b, b
  else
    limit.tick, limit.length, limit.window = b, c, b * c
  end
  return limit
end

-- The units of a grant. A first block is the node's fair share of what the nodes without a lease can get (`others` have
-- one); later blocks follow its demand, at most half of what is left, so that blocks shrink near the limit.
local function block_size(available, has_lease, others, want, least, nodes)
  if not (available > 0 and available >= least) then
    return 0
  end
  local parts = has_lease and math.min(nodes, 2) or math.max(nodes - others, 1)
  local share = (available - math.fmod(available, parts)) / parts
  return math.min(available, want, math.max(share, least, 1))
end
