-- Removes some expired locks.
-- ?1: now; ?2: maximum number
delete from {prefix}leader
where name in (select name from {prefix}leader where until <= +?1 order by until, name limit +?2)
