-- Running jobs whose lease has expired, by expiry.
-- ?1: now
select id, type from {prefix}job where status = 'running' and lease_until <= ?1 order by lease_until, seq
