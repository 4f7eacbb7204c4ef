table attempt (
  job uuid not null,
  fence bigint not null,
  attempt bigint not null,
  worker uuid not null,
  worker_name text,
  started_at bigint not null,
  ended_at bigint,
  ended text not null,
  error text
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)

table blocker (
  job uuid not null,
  chain uuid not null,
  seq bigint not null,
  position integer not null,
  resolved boolean not null,
  waiting boolean not null,
  needed boolean not null,
  eager boolean not null,
  trace text
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)

table chain_filter_v1 (
  types text[],
  statuses text[],
  top_level boolean,
  created_from bigint,
  created_to bigint,
  closed_from bigint,
  closed_to bigint,
  key text
)

table job (
  id uuid not null,
  chain uuid not null,
  seq bigint not null default (nextval('page'::regclass) * 1024),
  fence bigint not null,
  version bigint not null default 0,
  due_at bigint not null,
  created_at bigint not null,
  attempt bigint not null default 0,
  max_attempts bigint,
  started_at bigint,
  closed_at bigint,
  lease_until bigint,
  worker uuid,
  request uuid,
  closed_by uuid,
  outside uuid,
  position integer not null default 0,
  blockers integer not null default 0,
  priority smallint not null,
  cancel_requested boolean not null default false,
  status text not null,
  listed text,
  on_blocker_failure text not null,
  type text not null,
  chain_type text not null,
  ended text,
  worker_name text,
  trace text,
  error text,
  chain_created_at bigint,
  keep_completed bigint not null,
  keep_failed bigint not null,
  keep_cancelled bigint not null,
  chain_trace text,
  key text,
  latest uuid,
  latest_position integer not null default 0,
  chain_closed_at bigint,
  retain_until bigint,
  trim_at bigint,
  key_window bigint,
  key_hold text,
  closed_as text,
  input_codec text not null,
  input bytea not null,
  output_codec text,
  output bytea
) with (fillfactor=40, autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_vacuum_cost_delay=0)

table job_filter_v1 (
  types text[],
  statuses text[],
  chain_types text[],
  created_from bigint,
  created_to bigint,
  closed_from bigint,
  closed_to bigint
)

table job_row_v1 (
  part text,
  item integer,
  ids uuid[],
  words text[],
  numbers bigint[],
  bytes bytea[],
  id uuid,
  chain uuid,
  worker uuid,
  request uuid,
  closed_by uuid,
  type text,
  chain_type text,
  status text,
  input_codec text,
  output_codec text,
  error text,
  on_blocker_failure text,
  trace text,
  worker_name text,
  position integer,
  priority smallint,
  due_at bigint,
  attempt bigint,
  max_attempts bigint,
  fence bigint,
  version bigint,
  lease_until bigint,
  cancel_requested boolean,
  created_at bigint,
  started_at bigint,
  closed_at bigint,
  input bytea,
  output bytea,
  blockers uuid[],
  blocker_traces text[],
  blockers_resolved boolean[],
  key text,
  chain_trace text,
  chain_created_at bigint,
  keep_completed bigint,
  keep_failed bigint,
  keep_cancelled bigint,
  seq bigint
)

table key (
  type text not null,
  key text not null,
  chain uuid
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)

table leader (
  name text not null,
  token uuid not null,
  until bigint not null
) with (fillfactor=50)

table lease (
  id bigint not null,
  request uuid not null,
  until bigint not null,
  type text not null,
  has_blockers boolean not null,
  jobs uuid[] not null
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0)

table leaving (
  leaves_at bigint not null,
  chains uuid[] not null
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_insert_scale_factor=0.05)

table migration (
  version bigint not null,
  name text not null,
  applied_at timestamp with time zone not null default clock_timestamp()
)

table new_v1 (
  item integer,
  id uuid,
  type text,
  codec text,
  input bytea,
  due_at bigint,
  due_after bigint,
  priority smallint,
  max_attempts bigint,
  on_blocker_failure text,
  trace text,
  key text,
  key_hold text,
  key_window bigint,
  replaces uuid,
  keep_completed bigint,
  keep_failed bigint,
  keep_cancelled bigint,
  chain_trace text,
  blockers uuid[],
  blocker_traces text[]
)

table paused (
  type text not null
)

table ready (
  seq bigint not null,
  due_at bigint not null,
  job uuid not null,
  priority smallint not null,
  has_blockers boolean not null,
  bytes integer not null,
  type text not null
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0)

table reply_v1 (
  part text,
  item integer,
  ids uuid[],
  words text[],
  numbers bigint[],
  bytes bytea[]
)

table ripple (
  id bigint not null,
  since bigint not null,
  tx xid8 not null default pg_current_xact_id(),
  seq bigint not null,
  chain uuid not null
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=200)

table schedule (
  name text not null,
  id uuid not null,
  revision uuid not null,
  due_at bigint,
  handled bigint,
  definition text not null,
  state text not null
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)

table settlement_v1 (
  item integer,
  job uuid,
  fence bigint,
  outcome text,
  codec text,
  output bytea,
  error text,
  due_at bigint,
  due_after bigint,
  retention bigint,
  invalid boolean,
  created integer,
  carried integer
)

table tally (
  jobs bigint not null,
  type text not null,
  status text not null,
  former bigint
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0)

table worker (
  id uuid not null,
  name text,
  types text[] not null,
  concurrency bigint not null,
  running bigint not null,
  started_at bigint not null,
  seen_at bigint not null,
  expires_at bigint not null
) with (fillfactor=50)

CREATE INDEX blocker_chain ON blocker USING btree (chain, seq)

CREATE INDEX blocker_needed ON blocker USING btree (chain) WHERE needed

CREATE INDEX blocker_waiting ON blocker USING btree (chain, seq) WHERE waiting

CREATE INDEX job_listed ON job USING btree (type, listed, LEAST("position", 1), seq) WHERE (listed IS NOT NULL)

CREATE INDEX job_trimming ON job USING btree (trim_at, id) WHERE (trim_at IS NOT NULL)

CREATE INDEX lease_request ON lease USING btree (request)

CREATE INDEX lease_until ON lease USING btree (type, until)

CREATE INDEX leaving_due ON leaving USING btree (leaves_at)

CREATE INDEX ripple_chain ON ripple USING btree (chain)

CREATE INDEX ripple_order ON ripple USING btree (since, seq)

CREATE INDEX schedule_due ON schedule USING btree (due_at, name) WHERE (due_at IS NOT NULL)

CREATE UNIQUE INDEX attempt_pkey ON attempt USING btree (job, fence)

CREATE UNIQUE INDEX blocker_pkey ON blocker USING btree (job, "position")

CREATE UNIQUE INDEX job_chain ON job USING btree (chain, "position") WHERE ("position" > 0)

CREATE UNIQUE INDEX job_pkey ON job USING btree (id)

CREATE UNIQUE INDEX job_seq ON job USING btree (seq)

CREATE UNIQUE INDEX key_pkey ON key USING btree (type, key)

CREATE UNIQUE INDEX leader_pkey ON leader USING btree (name)

CREATE UNIQUE INDEX lease_pkey ON lease USING btree (id)

CREATE UNIQUE INDEX migration_pkey ON migration USING btree (version)

CREATE UNIQUE INDEX paused_pkey ON paused USING btree (type)

CREATE UNIQUE INDEX ready_due ON ready USING btree (type, priority, due_at, seq)

CREATE UNIQUE INDEX ripple_pkey ON ripple USING btree (id)

CREATE UNIQUE INDEX schedule_id_key ON schedule USING btree (id)

CREATE UNIQUE INDEX schedule_pkey ON schedule USING btree (name)

CREATE UNIQUE INDEX worker_pkey ON worker USING btree (id)

view attempts as
 SELECT a.job,
    j.type,
    j.chain,
    a.attempt,
    a.ended,
    to_timestamp((((a.started_at)::numeric / 1000.0))::double precision) AS started_at,
    to_timestamp((((a.ended_at)::numeric / 1000.0))::double precision) AS ended_at,
    a.worker,
    a.worker_name,
    a.error
   FROM (( SELECT a_1.job,
            a_1.attempt,
            a_1.ended,
            a_1.started_at,
            a_1.ended_at,
            a_1.worker,
            a_1.worker_name,
            a_1.error
           FROM attempt a_1
        UNION ALL
         SELECT j_1.id,
            j_1.attempt,
                CASE j_1.status
                    WHEN 'running'::text THEN 'running'::text
                    ELSE j_1.ended
                END AS ended,
            j_1.started_at,
                CASE
                    WHEN (j_1.status <> 'running'::text) THEN j_1.closed_at
                    ELSE NULL::bigint
                END AS "case",
            j_1.worker,
            j_1.worker_name,
                CASE
                    WHEN (j_1.status = ANY (ARRAY['failed'::text, 'cancelled'::text])) THEN j_1.error
                    ELSE NULL::text
                END AS "case"
           FROM job j_1
          WHERE ((j_1.worker IS NOT NULL) AND (j_1.started_at IS NOT NULL) AND ((j_1.status = 'running'::text) OR (j_1.ended IS NOT NULL)))) a
     LEFT JOIN job j ON ((j.id = a.job)));

view chain as
 SELECT j.id,
    COALESCE(j.latest, j.id) AS latest,
    j.latest_position,
    j.seq,
    j.created_at,
    j.keep_completed,
    j.keep_failed,
    j.keep_cancelled,
    j.chain_closed_at AS closed_at,
    j.retain_until,
    j.trim_at,
    j.key_window,
    j.chain_type AS type,
    j.closed_as,
    j.key_hold,
    j.key,
    j.chain_trace AS trace
   FROM job j
  WHERE (j."position" <= 0);

view chain_reply_v1 as
 SELECT c.id,
    c.seq,
    c.type,
    c.latest,
    c.created_at,
    ARRAY[c.id, c.latest] AS ids,
    ARRAY[c.type, c.key, c.key_hold, c.closed_as, c.trace] AS words,
    ARRAY[c.created_at, c.keep_completed, c.keep_failed, c.keep_cancelled, c.closed_at, c.retain_until, c.key_window, ( SELECT count(*) AS count
           FROM key k
          WHERE ((k.type = c.type) AND (k.key = c.key) AND (k.chain = c.id)))] AS numbers
   FROM chain c;

view chains as
 SELECT c.id,
    c.type,
    COALESCE(c.closed_as, l.status) AS status,
    c.key,
    to_timestamp((((c.created_at)::numeric / 1000.0))::double precision) AS created_at,
    to_timestamp((((c.closed_at)::numeric / 1000.0))::double precision) AS closed_at,
    to_timestamp((((c.retain_until)::numeric / 1000.0))::double precision) AS retain_until,
    (c.latest_position + 1) AS jobs,
    c.latest AS job,
    l.type AS job_type,
    l.attempt,
    to_timestamp((((l.due_at)::numeric / 1000.0))::double precision) AS due_at,
    l.error,
    json_v1(f.input_codec, f.input) AS input,
    f.input_codec AS input_encoding,
    octet_length(f.input) AS input_bytes,
    json_v1(l.output_codec, l.output) AS output,
    l.output_codec AS output_encoding,
    octet_length(l.output) AS output_bytes
   FROM ((chain c
     LEFT JOIN job f ON ((f.id = c.id)))
     LEFT JOIN job l ON ((l.id = c.latest)));

view counts as
 SELECT t.type,
    t.status,
    (sum(t.jobs))::bigint AS jobs
   FROM tally t
  GROUP BY t.type, t.status
 HAVING (sum(t.jobs) <> (0)::numeric);

view job_reply_v1 as
 SELECT j.id,
    j.chain,
    j.worker,
    j.request,
    j.closed_by,
    j.type,
    j.chain_type,
    j.status,
    j.input_codec,
    j.output_codec,
    j.error,
    j.on_blocker_failure,
    j.trace,
    j.worker_name,
    j."position",
    j.priority,
    j.due_at,
    j.attempt,
    j.max_attempts,
    j.fence,
    j.version,
    j.lease_until,
    j.cancel_requested,
    j.created_at,
    j.started_at,
    j.closed_at,
    j.input,
    j.output,
    b.chains AS blockers,
    b.traces AS blocker_traces,
    b.resolved AS blockers_resolved,
    j.key,
    j.chain_trace,
    COALESCE(j.chain_created_at, j.created_at) AS chain_created_at,
    j.keep_completed,
    j.keep_failed,
    j.keep_cancelled,
    j.seq
   FROM (job j
     LEFT JOIN LATERAL ( SELECT array_agg(b_1.chain ORDER BY b_1."position") AS chains,
            array_agg(b_1.trace ORDER BY b_1."position") AS traces,
            array_agg(b_1.resolved ORDER BY b_1."position") AS resolved
           FROM blocker b_1
          WHERE ((j.blockers > 0) AND (b_1.job = j.id))) b ON (true));

view jobs as
 SELECT j.id,
    j.type,
    j.status,
    j.listed,
    j.key,
    j.chain,
    j.chain_type,
    j."position",
    j.priority,
    j.attempt,
    j.max_attempts,
    to_timestamp((((j.due_at)::numeric / 1000.0))::double precision) AS due_at,
    to_timestamp((((j.created_at)::numeric / 1000.0))::double precision) AS created_at,
    to_timestamp((((j.started_at)::numeric / 1000.0))::double precision) AS started_at,
    to_timestamp((((j.closed_at)::numeric / 1000.0))::double precision) AS closed_at,
    to_timestamp((((j.lease_until)::numeric / 1000.0))::double precision) AS leased_until,
    j.worker,
    j.worker_name,
    j.cancel_requested,
    j.error,
        CASE
            WHEN (j.blockers > 0) THEN ARRAY( SELECT b.chain
               FROM blocker b
              WHERE (b.job = j.id)
              ORDER BY b."position")
            ELSE '{}'::uuid[]
        END AS blockers,
        CASE
            WHEN (j.status = 'blocked'::text) THEN ARRAY( SELECT b.chain
               FROM blocker b
              WHERE ((b.job = j.id) AND b.waiting)
              ORDER BY b."position")
            ELSE '{}'::uuid[]
        END AS waiting_for,
    json_v1(j.input_codec, j.input) AS input,
    j.input_codec AS input_encoding,
    octet_length(j.input) AS input_bytes,
    json_v1(j.output_codec, j.output) AS output,
    j.output_codec AS output_encoding,
    octet_length(j.output) AS output_bytes
   FROM job j;

function acquire_v1(given bigint, by_request uuid, by_worker uuid, by_name text, types text[], maxima bigint[], leases bigint[], max_jobs integer, floor_types text[], floor_priorities bigint[], floors bigint[], in_exchange boolean, careful boolean) set lock_timeout=1s set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function apply_outcome_v1(now bigint, own job, item settlement_v1, next new_v1, named uuid[], meant uuid[])

function apply_steps_v1(now bigint, by_request uuid, own job, items settlement_v1[], new_jobs new_v1[], busy integer[])

function beat_v1(given bigint, who uuid, its_name text, its_types text[], slots bigint, busy bigint, ttl bigint) set lock_timeout=1s set search_path=pg_catalog, pg_temp

function cancel_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[], ask boolean) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function change_schedules_v1(given bigint, names text[], schedules uuid[], expected uuid[], revisions uuid[], not_before bigint[], not_after bigint[], deletes bigint[], due_times bigint[], handled_times bigint[], definitions text[], states text[], other_states text[], chains bigint[], new_jobs new_v1[]) set lock_timeout=1s set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function close_chain_v1(now bigint, of_chain uuid, how text, retention bigint)

function close_job_v1(now bigint, own job, how text, how_ended text, new_error text, codec text, result bytea, by_worker uuid)

function close_longer_v1(now bigint, later uuid[], jobs uuid[], retentions bigint[])

function column_v1(given anyarray, items integer)

function compact_v1()

function complete_from_outside_v1(given bigint, by_request uuid, wanted uuid, seen_version bigint, invalid boolean, items settlement_v1[], new_jobs new_v1[]) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function complete_one_v1(now bigint, of_job uuid, of_fence bigint, codec text, result bytea, retention bigint)

function complete_plain_v1(now bigint, jobs uuid[], fences bigint[], codecs text[], outputs bytea[], retentions bigint[])

function continue_chain_v1(now bigint, own job, new new_v1, named uuid[], meant uuid[], by_worker uuid, how_ended text, OUT refusal reply_v1, OUT next job, OUT closed reply_v1)

function count_details_v1(now bigint, of_type text, has_running boolean, has_pending boolean, OUT expired bigint, OUT paused integer, OUT ready bigint) set jit=off set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set enable_nestloop=on

function count_v1(given bigint, types text[]) set enable_mergejoin=off set enable_nestloop=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function create_carried_v1(now bigint, carried new_v1[], stopping uuid, busy integer[], OUT replies reply_v1[], OUT named uuid[], OUT meant uuid[], OUT refusal reply_v1)

function create_chain_v1(now bigint, new new_v1, named uuid[], meant uuid[])

function create_keyed_v1(given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[], replaces uuid[]) set lock_timeout=1s set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function create_one_acquire_v1(given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[], replaces uuid[], by_request uuid, by_worker uuid, by_name text, wanted text[], maxima bigint[], leases bigint[], max_jobs integer, floor_types text[], floor_priorities bigint[], floors bigint[], careful boolean) set lock_timeout=10ms set enable_seqscan=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function create_plain_v1(given bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[], keep_cancelled bigint[], chain_traces text[]) set lock_timeout=1s set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function create_v1(given bigint, new_jobs new_v1[]) set lock_timeout=1s set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function delete_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[], cascades boolean, only_seen boolean, seen_jobs uuid[], seen_versions bigint[]) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function due_v1(now bigint, due_at bigint, due_after bigint)

function earliest_above_v1(floor_types text[], floor_priorities bigint[], floors bigint[])

function earliest_due_v1(of_type text)

function earliest_lease_v1(of_type text)

function existing_v1(now bigint, ids uuid[], types text[], keys text[], replaces uuid[], mine uuid[])

function expire_v1(given bigint, max_jobs integer) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function expired_v1(now bigint, types text[], max_jobs integer, spared uuid[])

function find_v1(now bigint, chains uuid[], jobs uuid[], types text[], keys text[])

function fitting_v1(places tid[], used bigint, OUT fitting tid[], OUT jobs uuid[], OUT bytes bigint)

function floor_v1(of_type text, of_priority smallint, floor_types text[], floor_priorities bigint[], floors bigint[])

function free_keys_v1(new_jobs new_v1[])

function get_chains_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[]) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function holder_v1(now bigint, key_type text, key_text text)

function holds_key_v1(now bigint, c chain)

function in_snapshot_v1()

function insert_job_v1(now bigint, new new_v1, first job, at_position integer, chains uuid[])

function insert_schedule_v1(new schedule)

function json_v1(codec text, bytes bytea) set search_path=pg_catalog, pg_temp

function later_v1(moment bigint, span bigint)

function leader_lock_v1(given bigint, of_name text, own uuid, ttl bigint) set lock_timeout=1s set search_path=pg_catalog, pg_temp

function leased_types_v1(types text[])

function leaves_v1(closed_at bigint, retain_until bigint)

function list_chains_v1(newest boolean, after bigint, max_chains bigint, types text[], statuses text[], top_level boolean, created_from bigint, created_to bigint, closed_from bigint, closed_to bigint, by_key text, max_scanned bigint) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function list_jobs_v1(newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], of_chain uuid, created_from bigint, created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function list_open_v1(newest boolean, after bigint, max_jobs bigint, types text[], statuses text[], chain_types text[], created_from bigint, created_to bigint, closed_from bigint, closed_to bigint, max_scanned bigint) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function listed_v1(status text)

function lock_all_v1(wanted uuid[], mode text)

function lock_blockers_v1(new_jobs new_v1[])

function lock_chains_v1(wanted uuid[], shared boolean)

function lock_free_v1(wanted uuid[], mode text)

function lock_jobs_v1(wanted uuid[])

function lock_key_v1(now bigint, key_type text, key_text text)

function lock_keys_v1(now bigint, new_jobs new_v1[])

function lock_pointed_v1(key_type text, key_text text)

function lock_ready_v1(wanted uuid[], patient boolean)

function lock_rows_v1(wanted uuid[], mode text)

function lock_shared_v1(wanted uuid[])

function lock_waiting_v1(wanted uuid[], patient boolean) set lock_timeout=250ms

function lost_v1(item settlement_v1, own job)

function mark_v1(now bigint, chains uuid[])

function match_schedule_v1(now bigint, of_name text, of_id uuid, expected uuid, own uuid, not_before bigint, not_after bigint, is_delete boolean, new_handled bigint)

function merge_v1(walks refcursor[], newest boolean, max_listed bigint, max_scanned bigint, INOUT listed uuid[], INOUT scanned bigint, INOUT reached bigint)

function move_lease_v1(of_lease bigint)

function moved_v1(old job, new job)

function new_jobs_v1(ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[], replaces uuid[], blocked bigint[], blockers uuid[], blocker_traces text[]) set enable_mergejoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function next_due_v1(given bigint, types text[], floor_types text[], floor_priorities bigint[], floors bigint[]) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function note_acquired_v1(now bigint, by_request uuid, types text[], maxima bigint[], leases bigint[], places tid[])

function note_deleted_fence_v1(last bigint)

function other_chains_v1(statuses text[], max_chains bigint)

function outputs_bytes_v1(of_job uuid)

function outputs_v1(by_request uuid)

function own_v1(given bigint)

function pause_v1(given bigint, types text[], pausing boolean) set lock_timeout=250ms set search_path=pg_catalog, pg_temp

function pending_types_v1(types text[])

function raise_fences_v1(jobs uuid[])

function reaches_v1(chains uuid[], sought uuid)

function ready_rows_v1(jobs uuid[])

function reap_v1(given bigint, types text[], max_jobs integer, spared uuid[]) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function record_attempt_v1(own job, at_time bigint, how_ended text, its_error text)

function removable_v1(now bigint, max_jobs integer, OUT chains uuid[], OUT jobs integer, OUT too_long uuid)

function remove_chains_v1(chains uuid[])

function remove_jobs_v1(jobs uuid[])

function renew_one_v1(now bigint, of_job uuid, of_fence bigint, until bigint)

function renew_v1(given bigint, jobs uuid[], fences bigint[], leases bigint[]) set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function reply_bytes_v1()

function requeue_v1(now bigint, own job, due bigint, new_error text, how_ended text)

function resolve_blockers_v1(blockers uuid[], named uuid[], meant uuid[], OUT chains uuid[], OUT missing uuid)

function resolve_v1(now bigint, of_chain uuid, how text, jobs uuid[], patient boolean)

function retire_v1(given bigint, who uuid) set lock_timeout=1s set search_path=pg_catalog, pg_temp

function retry_one_v1(now bigint, at_item integer, wanted uuid, seen_version bigint)

function retry_v1(given bigint, jobs uuid[], versions bigint[]) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function ripple_v1(now bigint, patient boolean, INOUT left_over integer, OUT replies reply_v1[])

function row_v1(r reply_v1)

function set_retention_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[], retention bigint) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function set_trim_v1(of_chain uuid)

function settle_items_v1(now bigint, items settlement_v1[], new_jobs new_v1[], INOUT left_over integer, OUT replies reply_v1[])

function settle_one_v1(now bigint, own job, item settlement_v1, carried new_v1[], next new_v1, stopping uuid, busy integer[])

function settle_plain_v1(given bigint, jobs uuid[], fences bigint[], codecs text[], outputs bytea[], retentions bigint[]) set lock_timeout=20ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function settle_v1(given bigint, items settlement_v1[], new_jobs new_v1[]) set lock_timeout=20ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function settlements_v1(jobs uuid[], fences bigint[], outcomes text[], codecs text[], outputs bytea[], errors text[], due_at bigint[], due_after bigint[], retentions bigint[], invalid bigint[], created bigint[], carried bigint[]) set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function shrink_leaving_v1(at_time bigint)

function store_keyed_v1(now bigint, ids uuid[], types text[], codecs text[], inputs bytea[], due_at bigint[], due_after bigint[], priorities bigint[], max_attempts bigint[], on_blocker_failure text[], traces text[], keep_completed bigint[], keep_failed bigint[], keep_cancelled bigint[], chain_traces text[], keys text[], key_holds text[], key_windows bigint[], mine uuid[])

function sweep_v1(now bigint)

function take_keys_v1(now bigint, ids uuid[], types text[], keys text[], replaces uuid[])

function test_time_v1(given bigint)

function tidy_v1(given bigint, after bigint, max_rows integer) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set enable_bitmapscan=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function time_v1(given bigint)

function trigger_v1(given bigint, chains uuid[], jobs uuid[], types text[], keys text[]) set lock_timeout=250ms set enable_seqscan=off set enable_material=off set enable_mergejoin=off set enable_hashjoin=off set jit=off set plan_cache_mode=force_generic_plan set search_path=pg_catalog, pg_temp

function trim_v1(now bigint, of_chain uuid, max_jobs integer)

function try_lock_v1(wanted uuid[], mode text)

function walk_chains_v1(source text, newest boolean, after bigint, wanted chain_filter_v1, of_type text, of_status text, chains uuid[])

function walk_jobs_v1(source text, newest boolean, after bigint, wanted job_filter_v1, of_type text, of_status text, later integer, max_jobs bigint, jobs uuid[])
