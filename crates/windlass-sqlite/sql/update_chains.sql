-- ?1: chains as they stand now
with
  -- Each item is taken out of the array once, and its fields out of the item.
  item as materialized (
    select key, jsonb(value) as value from json_each(?1)
  ),
  changed as materialized (
    select
      value ->> 'seq' as seq, unhex(value ->> 'latest') as latest, value ->> 'latest_position' as latest_position,
      value ->> 'key_held' as key_held, value ->> 'chain_closed_at' as chain_closed_at,
      value ->> 'chain_closed_as' as chain_closed_as, value ->> 'retain_until' as retain_until,
      value ->> 'leaves_at' as leaves_at, value ->> 'trim_at' as trim_at, value ->> 'rippling' as rippling
    from item
  )
update {prefix}job as job
set
  latest = changed.latest,
  latest_position = changed.latest_position,
  key_held = changed.key_held,
  chain_closed_at = changed.chain_closed_at,
  chain_closed_as = changed.chain_closed_as,
  retain_until = changed.retain_until,
  leaves_at = changed.leaves_at,
  trim_at = changed.trim_at,
  rippling = changed.rippling
from changed
where job.seq = changed.seq
