-- ?1: step; ?2: name; ?3: now
insert into {prefix}migration (step, name, applied_at) values (?1, ?2, ?3)
