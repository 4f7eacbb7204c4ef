-- Times are milliseconds since the Unix epoch, durations are milliseconds. The store's schema and
-- table prefix are part of all names. Each table has a replica identity, so that it can be published.

-- Pages of numbers for the order of creation.
create sequence windlass.page;

-- The largest fence of a deleted job. A sequence, because its value is visible in every snapshot, and a rollback does not
-- revert it.
create sequence windlass.deleted_fence;

-- One row per job. The row of a chain's first job is also the row of the chain, so a chain of one job has one row. Only
-- the functions of the store write here. There are no check constraints, because every statement would read them from
-- the catalog again, which costs a tenth of a completion.
--
-- A plain job is updated twice, when it is acquired and when it completes. Both are HOT updates: no column that they
-- change is in an index, and pages have room for three versions of each row. A column that an index uses must keep its
-- value on this path; `listed` and `trim_at` stay null.
create table windlass.job (
  id uuid primary key,
  chain uuid not null,
  seq bigint not null default nextval('windlass.page') * 1024,  -- the order of creation; a command numbers its jobs within a page
  fence bigint not null,
  version bigint not null default 0,
  due_at bigint not null,
  created_at bigint not null,
  attempt bigint not null default 0,
  max_attempts bigint,
  started_at bigint,
  closed_at bigint,
  lease_until bigint,                          -- while it runs
  worker uuid,                                 -- who made the latest attempt
  request uuid,                                -- the acquire that took it, while it runs
  closed_by uuid,
  outside uuid,                                -- the completion from outside that closed it
  position integer not null default 0,         -- its place in the chain, from 0
  blockers integer not null default 0,         -- how many it was created with
  priority smallint not null,
  cancel_requested boolean not null default false,
  status text not null,                        -- blocked, pending, running, completed, failed or cancelled
  listed text,                                 -- its status if that is blocked, failed or cancelled, for lists
  on_blocker_failure text not null,            -- wait, fail or receive
  type text not null,
  chain_type text not null,
  ended text,                                  -- how the attempt that closed it ended
  worker_name text,                            -- of the latest attempt, if it has one
  trace text,
  error text,

  -- Copies of the chain's values, which never change, so that an acquire reads one row.
  chain_created_at bigint,                     -- null in the first job, which was created with the chain
  keep_completed bigint not null,              -- how long the chain stays after it closed so
  keep_failed bigint not null,
  keep_cancelled bigint not null,
  chain_trace text,
  key text,

  -- The chain, in the row of its first job.
  latest uuid,                                 -- its latest job, null if that is the first
  latest_position integer not null default 0,
  chain_closed_at bigint,
  retain_until bigint,
  trim_at bigint,                              -- when the oldest inner job of the open chain may be removed
  key_window bigint,
  key_hold text,                               -- open, completed, completed_or_failed or any
  closed_as text,                              -- completed, failed or cancelled

  input_codec text not null,
  input bytea not null,
  output_codec text,
  output bytea
) with (
  fillfactor = 40,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
create unique index windlass_job_seq on windlass.job (seq);
create unique index windlass_job_chain on windlass.job (chain, position) where position > 0;
-- First jobs of their chain apart from later ones, because chains are listed by their first job.
create index windlass_job_listed on windlass.job (type, listed, least(position, 1), seq) where listed is not null;
create index windlass_job_trimming on windlass.job (trim_at, id) where trim_at is not null;

-- The chains. Their id is that of their first job. The condition is not `position = 0`: the planner would expect few
-- chains, and begin a join with all of them instead of looking them up.
create view windlass.chain as
select
  j.id, coalesce(j.latest, j.id) as latest, j.latest_position, j.seq, j.created_at, j.keep_completed, j.keep_failed,
  j.keep_cancelled, j.chain_closed_at as closed_at, j.retain_until, j.trim_at, j.key_window, j.chain_type as type,
  j.closed_as, j.key_hold, j.key, j.chain_trace as trace
from windlass.job j
where j.position <= 0;

-- The pending jobs, which acquires take from here. Rows are inserted and deleted, but never updated.
create table windlass.ready (
  seq bigint not null,
  due_at bigint not null,
  job uuid not null,
  priority smallint not null,
  has_blockers boolean not null,               -- whether it was created with blockers
  bytes integer not null,                      -- size of its input
  type text not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create unique index windlass_ready_due on windlass.ready (type, priority, due_at, seq);
alter table windlass.ready replica identity using index windlass_ready_due;

-- The jobs that one acquire took, one row per type and priority. A job of the row is running if its own row has the
-- same request. `until` is at or before the end of the first of their leases: renewals do not change it.
create table windlass.lease (
  id bigint generated always as identity primary key,
  request uuid not null,
  until bigint not null,
  type text not null,
  has_blockers boolean not null,
  jobs uuid[] not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index windlass_lease_request on windlass.lease (request);
create index windlass_lease_until on windlass.lease (type, until);

-- Changes of the number of jobs by type and status. Commands only add rows, so they never wait for each other here. The
-- sum is exact. `tidy_v1` replaces rows with their sums. `former` counts the jobs that ended with this status and were
-- removed or retried since. Only commands that remove or retry jobs write it. The sum of `jobs` and `former` is the number of
-- jobs that ever ended with this status.
create table windlass.tally (
  jobs bigint not null,
  type text not null,
  status text not null,
  former bigint
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table windlass.tally replica identity full;

-- Closed chains by the time from which they may be removed, one row per command and time. A row may contain
-- chains that have since been deleted, reopened, or given another time. Each closed chain is in a row with its time or an
-- earlier one.
create table windlass.leaving (
  leaves_at bigint not null,
  chains uuid[] not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.05);
create index windlass_leaving_due on windlass.leaving (leaves_at);
alter table windlass.leaving replica identity full;

-- Marks of chains that closed, or may have closed, and whose dependents still have to be resolved. A transaction that
-- reads from a snapshot sees neither all dependents nor all marks, so it always adds a mark. A unique constraint on
-- the chain would make such a transaction fail.
create table windlass.ripple (
  id bigint generated always as identity primary key,
  since bigint not null,                       -- when the mark was left
  tx xid8 not null default pg_current_xact_id(),  -- by which transaction
  seq bigint not null,                         -- the chain's
  chain uuid not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
create index windlass_ripple_order on windlass.ripple (since, seq);
create index windlass_ripple_chain on windlass.ripple (chain);

-- The chain that a key points at. Concurrent creators of a key wait for its row.
create table windlass.key (
  type text not null,
  key text not null,
  chain uuid,
  primary key (type, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The chains that a job waits or waited for.
create table windlass.blocker (
  job uuid not null,
  chain uuid not null,
  seq bigint not null,                         -- the job's
  position integer not null,                   -- its place among the job's blockers, from 1
  resolved boolean not null,
  waiting boolean not null,                    -- whether the job is blocked, and by this chain too
  needed boolean not null,                     -- whether the job is open, or failed and may be retried
  eager boolean not null,                      -- whether a failure of the chain ends the wait
  trace text,
  primary key (job, position)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index windlass_blocker_chain on windlass.blocker (chain, seq);
create index windlass_blocker_waiting on windlass.blocker (chain, seq) where waiting;
create index windlass_blocker_needed on windlass.blocker (chain) where needed;

-- Attempts that ended without closing their job.
create table windlass.attempt (
  job uuid not null,
  fence bigint not null,
  attempt bigint not null,
  worker uuid not null,
  worker_name text,
  started_at bigint not null,
  ended_at bigint,
  ended text not null,
  error text,
  primary key (job, fence)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create table windlass.paused (type text primary key);

create table windlass.worker (
  id uuid primary key,
  name text,
  types text[] not null,
  concurrency bigint not null,
  running bigint not null,
  started_at bigint not null,
  seen_at bigint not null,
  expires_at bigint not null
) with (fillfactor = 50);

create table windlass.leader (
  name text primary key,
  token uuid not null,
  until bigint not null
) with (fillfactor = 50);

-- Schedules. Only the library reads the definition and the state. Most schedules wait, so their index is small.
create table windlass.schedule (
  name text collate "C" primary key,
  id uuid not null unique,
  revision uuid not null,
  due_at bigint,
  handled bigint,
  definition text not null,
  state text not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index windlass_schedule_due on windlass.schedule (due_at, name) where due_at is not null;

-- A row of any reply: the part of the reply, the number of the item it answers, and the values of that part in order,
-- by kind.
create type windlass.reply_v1 as (part text, item integer, ids uuid[], words text[], numbers bigint[], bytes bytea[]);

-- A job to create, with the fields of its chain if it is the first job.
create type windlass.new_v1 as (
  item integer, id uuid, type text, codec text, input bytea, due_at bigint, due_after bigint, priority smallint,
  max_attempts bigint, on_blocker_failure text, trace text, key text, key_hold text, key_window bigint, replaces uuid,
  keep_completed bigint, keep_failed bigint, keep_cancelled bigint, chain_trace text, blockers uuid[], blocker_traces text[]
);

-- A settlement. Its carried chains are `carried` jobs after the first `created` jobs of the command, followed by the
-- next job if it continues.
create type windlass.settlement_v1 as (
  item integer, job uuid, fence bigint, outcome text, codec text, output bytea, error text, due_at bigint, due_after bigint,
  retention bigint, invalid boolean, created integer, carried integer
);
