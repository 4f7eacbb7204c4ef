-- Views for people who read the tables: `jobs`, `chains`, `attempts` and `counts`. They show times as timestamps and JSON payloads
-- as `jsonb`. No command uses them, so they cost nothing unless they are queried. A migration that changes columns of the
-- tables must drop these views first and create them again.
--
-- A view reads the tables as its owner, so a role needs only `usage` on the schema and `select` on the view. What comes
-- from other rows is joined by a primary key in a left join. PostgreSQL drops such a join from a query that selects
-- nothing of it.

-- Returns a payload as `jsonb`, or null if it has another encoding or is not valid. JSON that `jsonb` cannot hold is also
-- null, such as a text with `\u0000`. Only PostgreSQL 16 and later can check a text without an error.
create function windlass.json_v1(codec text, bytes bytea) returns jsonb
language plpgsql stable strict
set search_path = pg_catalog, pg_temp
as $$
begin
  if codec <> 'json' then
    return null;
  end if;
  begin
    return convert_from(bytes, 'UTF8')::jsonb;
  exception when others then
    return null;
  end;
end
$$;

-- One row per job.
create view windlass.jobs as
select
  j.id,
  j.type,
  j.status,
  j.listed,                                    -- the status if it is blocked, failed or cancelled; has an index
  j.key,                                       -- its chain's
  j.chain,
  j.chain_type,
  j.position,                                  -- its place in the chain, from 0
  j.priority,
  j.attempt,                                   -- the number of the latest attempt, 0 before the first
  j.max_attempts,
  to_timestamp(j.due_at / 1000.0) as due_at,
  to_timestamp(j.created_at / 1000.0) as created_at,
  to_timestamp(j.started_at / 1000.0) as started_at,
  to_timestamp(j.closed_at / 1000.0) as closed_at,
  to_timestamp(j.lease_until / 1000.0) as leased_until,
  j.worker,                                    -- of the latest attempt
  j.worker_name,
  j.cancel_requested,
  j.error,
  case when j.blockers > 0 then array(
    select b.chain from windlass.blocker b where b.job = j.id order by b.position
  ) else '{}' end as blockers,
  case when j.status = 'blocked' then array(
    select b.chain from windlass.blocker b where b.job = j.id and b.waiting order by b.position
  ) else '{}' end as waiting_for,              -- the blockers that have not ended
  windlass.json_v1(j.input_codec, j.input) as input,
  j.input_codec as input_encoding,
  octet_length(j.input) as input_bytes,
  windlass.json_v1(j.output_codec, j.output) as output,
  j.output_codec as output_encoding,
  octet_length(j.output) as output_bytes
from windlass.job j;

-- One row per chain, with the input of its first job, and the status and output of its latest.
create view windlass.chains as
select
  c.id,
  c.type,
  coalesce(c.closed_as, l.status) as status,
  c.key,
  to_timestamp(c.created_at / 1000.0) as created_at,
  to_timestamp(c.closed_at / 1000.0) as closed_at,
  to_timestamp(c.retain_until / 1000.0) as retain_until,
  c.latest_position + 1 as jobs,               -- how many it has had
  c.latest as job,                             -- its latest job
  l.type as job_type,
  l.attempt,
  to_timestamp(l.due_at / 1000.0) as due_at,
  l.error,
  windlass.json_v1(f.input_codec, f.input) as input,
  f.input_codec as input_encoding,
  octet_length(f.input) as input_bytes,
  windlass.json_v1(l.output_codec, l.output) as output,
  l.output_codec as output_encoding,
  octet_length(l.output) as output_bytes
from windlass.chain c
left join windlass.job f on f.id = c.id
left join windlass.job l on l.id = c.latest;

-- One row per attempt. The attempt that closed its job, and the one that is running, are in the job's row.
create view windlass.attempts as
select
  a.job,
  j.type,
  j.chain,
  a.attempt,
  a.ended,                                     -- `running`, or how it ended
  to_timestamp(a.started_at / 1000.0) as started_at,
  to_timestamp(a.ended_at / 1000.0) as ended_at,
  a.worker,
  a.worker_name,
  a.error
from (
  select a.job, a.attempt, a.ended, a.started_at, a.ended_at, a.worker, a.worker_name, a.error
  from windlass.attempt a
  union all
  select
    j.id, j.attempt, case j.status when 'running' then 'running' else j.ended end, j.started_at,
    case when j.status <> 'running' then j.closed_at end, j.worker, j.worker_name,
    case when j.status in ('failed', 'cancelled') then j.error end
  from windlass.job j
  where j.worker is not null and j.started_at is not null and (j.status = 'running' or j.ended is not null)
) a
left join windlass.job j on j.id = a.job;

-- How many jobs are stored, by type and status.
create view windlass.counts as
select t.type, t.status, sum(t.jobs)::bigint as jobs
from windlass.tally t
group by t.type, t.status
having sum(t.jobs) <> 0;
