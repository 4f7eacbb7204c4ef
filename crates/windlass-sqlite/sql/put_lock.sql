insert into {prefix}leader (name, token, until) values (?1, ?2, ?3)
on conflict do update set token = excluded.token, until = excluded.until
