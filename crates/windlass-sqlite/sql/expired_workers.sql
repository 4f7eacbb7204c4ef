-- Workers whose registration has expired.
-- ?1: now; ?2: maximum
select id from {prefix}worker where expires_at <= +?1 order by expires_at limit +?2
