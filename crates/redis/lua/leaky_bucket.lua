-- leaky_bucket: the same algorithm as in Rust. The bucket is that of token_bucket.lua; an admitted request waits until
-- the bucket it found has drained.
--
-- limit: as for token_bucket, and `backlog`: the largest fill level at which a charge is admitted
-- state: as for token_bucket

local leaky_bucket = {
  unseen = token_bucket.unseen,
  charge = token_bucket.charge,
  rebase = token_bucket.rebase,
  until_fresh = token_bucket.until_fresh,
}

function leaky_bucket.judge(limit, state, now, cost)
  local outcome = judge_bucket(limit, limit.backlog, state, now, cost)
  if outcome.verdict == PASS then
    outcome.span = until_at_most(limit, 0, state, now)
  end
  return outcome
end

-- Gives back only the last departure. If several depart within one tick, the last is unknown.
function leaky_bucket.refund(limit, state, departure, now, cost)
  local held = filled(limit, 0, cost)
  local after = level_at(limit, state, departure)
  -- A departure is rounded up to the next tick.
  if after <= held and after + limit.drain > held and limit.unit >= limit.drain then
    return without(limit, state, now, held)
  end
  return state, false
end
