-- Sets how many jobs of a type no longer have the status with which they ended.
-- ?1: type; ?2: status; ?3: number
insert into {prefix}tally (type, status, jobs, former) values (?1, ?2, 0, ?3)
on conflict do update set former = excluded.former
