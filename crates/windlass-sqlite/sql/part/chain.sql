json_array(
  first.seq, hex(first.id), first.type, hex(first.latest), first.latest_position, first.key, first.key_hold,
  first.key_window, first.key_held, first.retain_completed, first.retain_failed, first.retain_cancelled,
  first.created_at, first.chain_closed_at, first.chain_closed_as, first.retain_until, first.trim_at, first.rippling,
  first.chain_trace
) as chain
