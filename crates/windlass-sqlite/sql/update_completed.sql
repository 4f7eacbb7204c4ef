-- Jobs that a worker completed and that are the only job of their chain, which closes with them. Most attempts end
-- this way. Unchanged columns and their indexes are not written.
-- ?1: [[seq, retain_until, leaves_at, codec, start of its output, length of its output], ...];
-- ?2: the outputs, concatenated; ?3: now
with
  {items},
  completed as materialized (
    select
      value ->> '$[0]' as seq, value ->> '$[1]' as retain_until, value ->> '$[2]' as leaves_at,
      value ->> '$[3]' as output_codec, value ->> '$[4]' as output_start, value ->> '$[5]' as output_length
    from item
  )
update {prefix}job as job
set
  status = 'completed',
  version = version + 1,
  request = null,
  lease_until = null,
  closed_at = ?3,
  closed_by = worker,
  ended = 'completed',
  error = null,
  output_codec = completed.output_codec,
  output = substr(?2, completed.output_start, completed.output_length),
  chain_closed_at = ?3,
  chain_closed_as = 'completed',
  retain_until = completed.retain_until,
  leaves_at = completed.leaves_at
from completed
where job.seq = completed.seq
