-- ?1: jobs as they stand now; ?2: their outputs, one behind the other
with
  -- Each item is taken out of the array once, and its fields out of the item.
  item as materialized (
    select key, jsonb(value) as value from json_each(?1)
  ),
  changed as materialized (
    select
      value ->> 'seq' as seq, value ->> 'status' as status, value ->> 'due_at' as due_at,
      value ->> 'attempt' as attempt, value ->> 'version' as version, value ->> 'waits' as waits,
      value ->> 'closed_at' as closed_at, unhex(value ->> 'closed_by') as closed_by, value ->> 'ended' as ended,
      unhex(value ->> 'outside') as outside, value ->> 'cancel_requested' as cancel_requested,
      value ->> 'error' as error, value ->> 'output_codec' as output_codec,
      value ->> 'output_start' as output_start, value ->> 'output_length' as output_length
    from item
  )
update {prefix}job as job
set
  status = changed.status,
  due_at = changed.due_at,
  attempt = changed.attempt,
  version = changed.version,
  request = iif(changed.status = 'running', job.request, null),
  lease_until = iif(changed.status = 'running', job.lease_until, null),
  cancel_requested = changed.cancel_requested,
  waits = changed.waits,
  closed_at = changed.closed_at,
  closed_by = changed.closed_by,
  ended = changed.ended,
  outside = coalesce(changed.outside, job.outside),
  error = changed.error,
  output_codec = changed.output_codec,
  output = iif(changed.output_codec is null, null, substr(?2, changed.output_start, changed.output_length))
from changed
where job.seq = changed.seq
