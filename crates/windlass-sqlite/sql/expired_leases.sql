-- Running jobs whose lease has expired, by expiry. Few jobs run at a time, so their index is read in full.
-- ?1: now
select id, type from {prefix}job where status = 'running' and lease_until <= +?1 order by lease_until, seq
