-- ?1: name; ?2: token; ?3: until
insert into {prefix}leader (name, token, until) values (?1, ?2, ?3)
on conflict (name) do update set token = excluded.token, until = excluded.until
