with hot (id) as (
  values ('windlass.job'::regclass), ('windlass.ready'::regclass), ('windlass.lease'::regclass), ('windlass.tally'::regclass),
    ('windlass.key'::regclass), ('windlass.blocker'::regclass), ('windlass.ripple'::regclass)
)
select
  'held', null::integer, null::uuid[], array[a.application_name, a.state],
  array[a.pid, extract(epoch from clock_timestamp() - a.xact_start)]::bigint[], null::bytea[]
from pg_stat_activity a
where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
  and extract(epoch from clock_timestamp() - a.xact_start) >= $1::bigint
union all
select 'dead', null, null, array[h.id::text], array[s.n_dead_tup, s.n_live_tup], null
from hot h
join pg_stat_user_tables s on s.relid = h.id
where s.n_dead_tup > greatest(s.n_live_tup, 100000)
union all
select 'vacuum', null, null, array[h.id::text], null, null
from hot h
join pg_class c on c.oid = h.id
where not coalesce(pg_catalog.array_to_string(c.reloptions, ' '), '') like '%autovacuum_vacuum_scale_factor=%'
  or pg_catalog.array_to_string(c.reloptions, ' ') like '%autovacuum_enabled=false%'
union all
select 'may_not_vacuum', null, null, array[pg_catalog.string_agg(h.id::text, ', '), pg_catalog.quote_ident(current_user)], null, null
from (values ('windlass.ready'::regclass), ('windlass.lease'::regclass), ('windlass.tally'::regclass)) h (id)
join pg_class c on c.oid = h.id
join pg_database d on d.datname = current_database()
where not pg_catalog.pg_has_role(c.relowner, 'usage') and not pg_catalog.pg_has_role(d.datdba, 'usage')
  and case when current_setting('server_version_num')::integer >= 170000
    then not pg_catalog.has_table_privilege(h.id, 'maintain') else true end
having count(*) > 0
union all
select 'no_vacuum', null, null, null, null, null
where current_setting('autovacuum') = 'off'
union all
select 'invalid', null, null, array[i.indexrelid::regclass::text], null, null
from hot h
join pg_index i on i.indrelid = h.id
where not i.indisvalid
union all
select 'isolation', null, null, array[l.level, pg_catalog.quote_ident(current_user)], null, null
from (select current_setting('default_transaction_isolation') as level) l
where l.level in ('repeatable read', 'serializable')
union all
select 'read_only', null, null, array[pg_catalog.quote_ident(current_user)], null, null
where current_setting('default_transaction_read_only') = 'on'
union all
select 'timeout', null, null, array[pg_catalog.quote_ident(current_user)], array[s.reset_val::bigint], null
from pg_settings s
where s.name = 'statement_timeout' and s.reset_val::bigint between 1 and 9999
union all
select 'hidden', null, null, array[h.id::text], null, null
from hot h
where pg_catalog.row_security_active(h.id)
union all
select 'now', null, null, null, array[floor(extract(epoch from clock_timestamp()) * 1000)]::bigint[], null
