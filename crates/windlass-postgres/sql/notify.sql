-- A notification is lost with the server anyway, so its commit need not wait for the disk.
select 'notified', null::integer, null::uuid[], array[pg_notify($1, p.payload)::text, s.setting], null::bigint[], null::bytea[]
from (select set_config('synchronous_commit', 'off', true)) s (setting), unnest($2::text[]) p (payload)
