-- ?1: seq of the job; ?2: position; ?3: resolved; ?4: waiting
update {prefix}blocker set resolved = ?3, waiting = ?4 where job = ?1 and position = ?2
