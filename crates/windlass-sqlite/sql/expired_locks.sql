-- Leader locks that have expired.
-- ?1: now; ?2: maximum
select name from {prefix}leader where until <= +?1 order by until limit +?2
