-- The closed chain with unresolved dependents that closed first.
select id from {prefix}job where rippling = 1 order by chain_closed_at, seq limit 1
