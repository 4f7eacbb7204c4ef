-- The closed chain with unresolved dependents that closed first.
select id from {prefix}job
where rippling = 1 and chain_closed_at is not null
order by chain_closed_at, seq limit 1
