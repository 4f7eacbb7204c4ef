-- Whether jobs wait for the chain, and whether any chain has unresolved dependents.
exists (select 1 from {prefix}blocker where chain = first.id and waiting = 1) as is_awaited,
exists (select 1 from {prefix}job where rippling = 1) as any_rippling
