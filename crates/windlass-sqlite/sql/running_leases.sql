-- The expiries of all leases, earliest first.
select lease_until, type from {prefix}job where status = 'running' order by lease_until, seq
