-- Times are milliseconds since the Unix epoch, durations are milliseconds. The store's schema and
-- table prefix are part of all names.

-- One row per job. Frequently read columns come first; payloads, which can be large, come last. Only the functions of
-- the store write here. There are no check constraints, because every statement would read them from the catalog
-- again, which costs a tenth of a completion.
create table windlass.job (
  id uuid primary key,
  chain uuid not null,
  seq bigint generated always as identity,     -- the order of creation
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
  worker_name text,                            -- its name, if it has one
  request uuid,                                -- the acquire that took it, while it runs
  closed_by uuid,
  outside uuid,                                -- the completion from outside that closed it
  position integer not null,                   -- its place in the chain, from 0
  blockers integer not null default 0,         -- how many it was created with
  priority smallint not null,
  cancel_requested boolean not null default false,
  status text not null,                        -- blocked, pending, running, completed, failed or cancelled
  on_blocker_failure text not null,            -- wait, fail or receive
  type text not null,
  chain_type text not null,
  ended text,                                  -- how the attempt that closed it ended
  trace text,
  error text,
  input_codec text not null,
  input bytea not null,
  output_codec text,
  output bytea
) with (
  -- Every job is rewritten when it is acquired and when it ends. So pages keep free space for updates, and dead rows
  -- are vacuumed soon, however many rows are stored.
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
-- Every version of a row has an entry in each of its indexes. The first job of a chain has its index and sequence
-- number in the chain's row, and is left out of these two. Their conditions are written in different ways, so that
-- the planner does not use one index for the other while both are small.
create unique index windlass_job_chain on windlass.job (chain, position) where position > 0;
create unique index windlass_job_seq on windlass.job (seq) where position >= 1;
create index windlass_job_pending on windlass.job (type, priority, due_at, seq) where status = 'pending';
create index windlass_job_running on windlass.job (type, lease_until, seq) where status = 'running';
create index windlass_job_request on windlass.job (request) where status = 'running';
create index windlass_job_blocked on windlass.job (type) where status = 'blocked';
create index windlass_job_closed on windlass.job (type, status) where status in ('completed', 'failed', 'cancelled');

-- One row per chain, whose id is that of its first job. When a chain of one job closes, no indexed column changes and
-- the page has room for the new version, so no index is written.
create table windlass.chain (
  id uuid primary key,
  latest uuid not null,                        -- its latest job
  seq bigint not null,                         -- that of its first job
  created_at bigint not null,
  keep_completed bigint not null,              -- how long it stays after it closed so
  keep_failed bigint not null,
  keep_cancelled bigint not null,
  closed_at bigint,
  retain_until bigint,
  leaves_at bigint,                            -- when the closed chain may leave, see `leaving`
  trim_at bigint,                              -- when the oldest inner job of the open chain may leave
  key_window bigint,
  latest_position integer not null default 0,
  type text not null,
  closed_as text,                              -- completed, failed or cancelled
  key_hold text,                               -- open, completed, completed_or_failed or any
  key text,
  trace text
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
create unique index windlass_chain_seq on windlass.chain (seq);
create index windlass_chain_trimming on windlass.chain (trim_at, id) where trim_at is not null;

-- Closed chains by the time from which they may be removed.
create table windlass.leaving (
  leaves_at bigint not null,
  seq bigint not null,                         -- the chain's
  chain uuid not null,
  primary key (leaves_at, seq)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.05);

-- Marks of chains that closed, or may have closed, and whose dependents still have to be resolved. A transaction that
-- reads from a snapshot sees neither all dependents nor all marks, so it always adds a mark. A unique constraint on
-- the chain would make such a transaction fail.
create table windlass.ripple (
  id bigint generated always as identity primary key,
  since bigint not null,                       -- when the mark was left
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
